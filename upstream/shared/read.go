package shared

import (
	"encoding/json"
	"fmt"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// relatedTask returns the task that a message says it belongs to; "" for none. It is an
// error if two readers of its _meta could read two things.
func relatedTask(notes *mcp.Notes) (string, error) {
	err := notes.Err(mcp.InMeta, mcp.Token, mcp.RelatedTask, mcp.RelatedTaskID)
	if err != nil || !notes.Has(mcp.RelatedTask) {
		return "", err
	}
	task, ok := notes.Text(mcp.RelatedTaskID)
	if !ok {
		return "", errMissing("taskId")
	}
	return task, nil
}

func errMissing(key string) error { return fmt.Errorf("%q is missing or not a string", key) }

// textIn returns the JSON text of a member of an object, "" if it has none that
// can be read.
func textIn(object json.RawMessage, key string) string {
	value, err := jsonrpc.Member(object, key)
	if err != nil {
		return ""
	}
	return string(value)
}

// infoLevel is what a client hears that did not say what it wants to hear.
var infoLevel = mcp.ReadLevel([]byte(`"info"`))

// levelIn returns the level of logging/setLevel or of a log message; zero if it has none.
func levelIn(notes *mcp.Notes) int {
	if notes.Err(mcp.Key) != nil {
		return 0
	}
	return mcp.ReadLevel(notes.Raw(mcp.Key))
}

// levelOf returns the level that a request asks for. What is none is the server's to
// refuse; until then it may log anything.
func levelOf(raw json.RawMessage) int {
	if raw == nil || string(raw) == "null" {
		return 0
	}
	return max(1, mcp.ReadLevel(raw))
}

// wants reports whether somebody who wants to hear from a level on, if not zero, wants to
// hear a message of a level. One that is of none may be of any.
func wants(level, from int) bool { return from != 0 && (level == 0 || level >= from) }
