package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A filter says which notifications a subscription is about (2026-07-28
// basic/patterns/subscriptions, and taskIds of the tasks extension).
type filter struct {
	lists [kinds]bool // of tools, prompts and resources: list_changed
	uris  []string    // of resources: updated
	tasks []string    // ids

	// as is how it was written, with what else it has; nil for one made here.
	as json.RawMessage
}

// maxWatched bounds the URIs and the tasks of one subscription; one with more is refused.
const maxWatched = 1000

// filterKeys are the members of a filter: lists in the order of kinds, and
// resourceSubscriptions and taskIds behind them.
var filterKeys = [...]string{"toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions", "taskIds"}

// readFilter reads the filter in the params of a subscription or of an acknowledgment.
// It keeps no bytes of them.
func readFilter(params json.RawMessage) (filter, error) {
	raw, err := jsonrpc.Member(params, "notifications")
	if err == nil && (len(raw) == 0 || raw[0] != '{') {
		err = errors.New(`"notifications" is missing or not an object`)
	}
	if err != nil {
		return filter{}, err
	}
	var at [len(filterKeys)]jsonrpc.Span
	if err := jsonrpc.Find(raw, jsonrpc.Span{}, at[:], filterKeys[:]...); err != nil {
		return filter{}, err
	}
	f := filter{as: bytes.Clone(raw)}
	for k := tools; k <= resources; k++ {
		f.lists[k] = string(at[k].Of(raw)) == "true"
	}
	if f.uris, err = stringsOf(at[3].Of(raw), filterKeys[3]); err != nil {
		return filter{}, err
	}
	f.tasks, err = stringsOf(at[4].Of(raw), filterKeys[4])
	return f, err
}

// stringsOf returns the elements of an array of strings, each once.
func stringsOf(array json.RawMessage, key string) ([]string, error) {
	if array == nil {
		return nil, nil
	}
	elements, err := jsonrpc.Elements(array)
	if err != nil || len(elements) > maxWatched {
		return nil, errors.New(`"` + key + `" is no array or too long`)
	}
	var found []string
	seen := make(map[string]bool, len(elements))
	for _, e := range elements {
		s, ok := jsonrpc.Unquote(e)
		if !ok {
			return nil, errors.New(`"` + key + `" holds what is no string`)
		}
		if !seen[s] {
			seen[s] = true
			found = append(found, s)
		}
	}
	return found, nil
}

// on returns base as a filter for what f says, whatever base says of that.
func (f *filter) on(base json.RawMessage) json.RawMessage {
	var values []jsonrpc.Value
	for k := tools; k <= resources; k++ {
		v := jsonrpc.Value{Key: filterKeys[k]}
		if f.lists[k] {
			v.Text = json.RawMessage("true")
		}
		values = append(values, v)
	}
	return jsonrpc.Set(base, append(values,
		jsonrpc.Value{Key: filterKeys[3], Text: arrayOf(f.uris)},
		jsonrpc.Value{Key: filterKeys[4], Text: arrayOf(f.tasks)})...)
}

// text returns f as it is sent.
func (f *filter) text() json.RawMessage {
	if f.as != nil {
		return f.as
	}
	return f.on(nil)
}

// arrayOf returns a JSON array of strings; nil for none.
func arrayOf(texts []string) json.RawMessage {
	if texts == nil {
		return nil
	}
	b := []byte{'['}
	for i, s := range texts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, jsonrpc.Quote(s)...)
	}
	return append(b, ']')
}

// covers reports whether f, what is left of a client's wish, is about a notification
// of an upstream. An update may be of a part of what was asked for: that goes by how
// URIs are written, and is believed where it does not say.
func (f *filter) covers(m *jsonrpc.Message, wish *filter) bool {
	switch m.Method {
	case mcp.MethodResourceUpdated:
		uri, _ := unquoted(m.Params, "uri")
		return f.uris != nil && (isPart(uri, f.uris) || !isPart(uri, wish.uris))
	case mcp.MethodTask:
		id, ok := unquoted(m.Params, "taskId")
		return ok && slices.Contains(f.tasks, id)
	}
	return true
}

func unquoted(params json.RawMessage, key string) (string, bool) {
	raw, _ := jsonrpc.Member(params, key)
	return jsonrpc.Unquote(raw)
}

// isPart reports whether uri is one of uris, or below one of them.
func isPart(uri string, uris []string) bool {
	return slices.ContainsFunc(uris, func(of string) bool {
		return uri == of || strings.HasPrefix(uri, strings.TrimSuffix(of, "/")+"/")
	})
}

func (f *filter) isEmpty() bool {
	return f.lists == [kinds]bool{} && f.uris == nil && f.tasks == nil && f.as == nil
}

func (f *filter) equal(g *filter) bool {
	return f.lists == g.lists && slices.Equal(f.uris, g.uris) && slices.Equal(f.tasks, g.tasks) && bytes.Equal(f.as, g.as)
}
