package eras

import (
	"bytes"
	"encoding/json"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"testing"
)

// The fast functions return the same as the complete ones, and equally valid JSON.
func TestCompletedIsAModernResult(t *testing.T) {
	for _, result := range []string{`{}`, ` { } `, `{"a":1}`, "{\"a\":{}\n}\n", `{"content":[{"text":"}"}]}`,
		`{"_meta":{}}`, `{"_meta":{"v":1},"a":2}`, `{"resultType":"x"}`, `{"\u0072esultType":"x"}`, `{"content":"_meta"}`} {
		for _, method := range []string{"tools/call", "tools/list"} {
			for _, info := range []string{"", `{"name":"s"}`} {
				got := completed(method, json.RawMessage(result), nilIfEmpty(info))
				want := toModernResult(method, json.RawMessage(result), nilIfEmpty(info))
				if string(spaceless(got)) != string(spaceless(want)) || !json.Valid(got) {
					t.Errorf("%s of %s:\n got %s\nwant %s", method, result, got, want)
				}
			}
		}
	}
}

func nilIfEmpty(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

func TestMetaIsReadStrictly(t *testing.T) {
	for _, meta := range []string{
		`{"progressToken":1,"progressToken":2}`,
		`{"ProgressToken":1}`,
		`{"io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/ClientCapabilities":{"roots":{}}}`,
		`{"io.modelcontextprotocol/logLevel":"debug","io.modelcontextprotocol/logLevel":"error"}`,
		`5`,
		`{"io.modelcontextprotocol/clientCapabilities":{"experimental":{"x":"` + string(make([]byte, maxCapabilities)) + `"}}}`,
	} {
		if _, err := readModernRequest(mcp.ReadParams(mcp.MethodToolsCall, json.RawMessage(`{"_meta":`+meta+`}`))); err == nil {
			t.Errorf("%.60s was read", meta)
		}
	}
	r, err := readModernRequest(mcp.ReadParams(mcp.MethodToolsCall, json.RawMessage(`{"_meta":{"a\"b":1,"io.modelcontextprotocol/logLevel":"emergency","io.modelcontextprotocol/x":2}}`)))
	if err != nil || string(r.meta) != `{"a\"b":1,"io.modelcontextprotocol/x":2` || r.Level != 8 {
		t.Errorf("got %s, %d, %v", r.meta, r.Level, err)
	}
}

// spaceless returns JSON text without white space and with sorted members.
func spaceless(text json.RawMessage) json.RawMessage {
	var value any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if d.Decode(&value) != nil {
		return text
	}
	out, _ := json.Marshal(value)
	return out
}
