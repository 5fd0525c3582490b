package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Filter selects the notifications of a subscription (2026-07-28 basic/patterns/subscriptions,
// and taskIds of the tasks extension).
type Filter struct {
	// Lists selects the list_changed notifications of tools, prompts and resources. The fourth
	// list, templates, changes with resources.
	Lists [4]bool

	URIs  []string // of resources whose updates it selects
	Tasks []string // ids

	// As is the text that the filter was read from, with all its members; nil for a filter created
	// here.
	As json.RawMessage
}

// MaxWatched bounds the URIs and the tasks of a subscription. Subscriptions with more are refused.
const MaxWatched = 1000

// lists is the number of lists with a list_changed notification.
const lists = 3

// filterKeys are the members of a filter: the lists in the order of kinds, then the other two.
var filterKeys = [...]string{"toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions", "taskIds"}

// ReadFilter reads the filter in the params of a subscription or an acknowledgment. It does not
// keep their bytes.
func ReadFilter(n *Notes) (Filter, error) {
	raw, err := n.Raw(Key), n.Err(Key)
	if err == nil && (len(raw) == 0 || raw[0] != '{') {
		err = errors.New(`"notifications" is missing or not an object`)
	}
	if err != nil {
		return Filter{}, err
	}
	var at [len(filterKeys)]jsonrpc.Span
	if err := jsonrpc.Find(raw, jsonrpc.Span{}, at[:], filterKeys[:]...); err != nil {
		return Filter{}, err
	}
	f := Filter{As: bytes.Clone(raw)}
	for k := range lists {
		f.Lists[k] = string(at[k].Of(raw)) == "true"
	}
	if f.URIs, err = stringsOf(at[3].Of(raw), filterKeys[3]); err != nil {
		return Filter{}, err
	}
	f.Tasks, err = stringsOf(at[4].Of(raw), filterKeys[4])
	return f, err
}

// stringsOf returns the elements of an array of strings, without duplicates.
func stringsOf(array json.RawMessage, key string) ([]string, error) {
	if array == nil {
		return nil, nil
	}
	elements, err := jsonrpc.Elements(array)
	if err != nil || len(elements) > MaxWatched {
		return nil, errors.New(`"` + key + `" is not an array, or is too long`)
	}
	var found []string
	seen := make(map[string]bool, len(elements))
	for _, e := range elements {
		if IsTooLong(e) {
			return nil, fmt.Errorf("an element of %q %w", key, ErrTooLong)
		}
		s, ok := jsonrpc.Unquote(e)
		if !ok {
			return nil, errors.New(`"` + key + `" has an element that is not a string`)
		}
		if !seen[s] {
			seen[s] = true
			found = append(found, s)
		}
	}
	return found, nil
}

// On returns base with its members replaced by those of f.
func (f *Filter) On(base json.RawMessage) json.RawMessage {
	var values []jsonrpc.Value
	for k := range lists {
		v := jsonrpc.Value{Key: filterKeys[k]}
		if f.Lists[k] {
			v.Text = json.RawMessage("true")
		}
		values = append(values, v)
	}
	return jsonrpc.Set(base, append(values,
		jsonrpc.Value{Key: filterKeys[3], Text: arrayOf(f.URIs)},
		jsonrpc.Value{Key: filterKeys[4], Text: arrayOf(f.Tasks)})...)
}

// Unknown returns the members of the filter that the proxy does not know, which are of extensions, as
// an object; nil for none.
func (f *Filter) Unknown() json.RawMessage {
	if f.As == nil {
		return nil
	}
	var none Filter
	if unknown := none.On(f.As); string(unknown) != "{}" {
		return unknown
	}
	return nil
}

// Text returns the JSON text of f.
func (f *Filter) Text() json.RawMessage {
	if f.As != nil {
		return f.As
	}
	return f.On(nil)
}

// arrayOf returns a JSON array of strings; nil for nil.
func arrayOf(texts []string) json.RawMessage {
	if texts == nil {
		return nil
	}
	quoted := make([]json.RawMessage, len(texts))
	for i, s := range texts {
		quoted[i] = jsonrpc.Quote(s)
	}
	return jsonrpc.Array(quoted)
}

// Covers reports whether f, the acknowledged filter of a client's wish, selects a notification of
// an upstream. An update may be for a part of a resource in the filter, which the URIs usually
// show. Where they do not, the upstream is trusted.
func (f *Filter) Covers(m *jsonrpc.Message, wish *Filter) bool {
	switch m.Method {
	case MethodResourceUpdated:
		uri, _ := Read(m).Text(Key)
		return f.URIs != nil && (isPart(uri, f.URIs) || !isPart(uri, wish.URIs))
	case MethodTask:
		id, ok := Read(m).Text(Key)
		return ok && slices.Contains(f.Tasks, id)
	}
	return true
}

// isPart reports whether uri is one of uris, or below one of them.
func isPart(uri string, uris []string) bool {
	return slices.ContainsFunc(uris, func(of string) bool {
		return uri == of || strings.HasPrefix(uri, strings.TrimSuffix(of, "/")+"/")
	})
}

func (f *Filter) IsEmpty() bool {
	return f.Lists == [4]bool{} && f.URIs == nil && f.Tasks == nil && f.As == nil
}

// OnlyLists reports whether the filter selects nothing but changes of lists.
func (f *Filter) OnlyLists() bool { return f.URIs == nil && f.Tasks == nil && f.As == nil }

func (f *Filter) Equal(g *Filter) bool {
	return f.Lists == g.Lists && slices.Equal(f.URIs, g.URIs) && slices.Equal(f.Tasks, g.Tasks) && bytes.Equal(f.As, g.As)
}
