package mcp

import (
	"bytes"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// traceKeys are the keys in _meta that say which trace a message is part of (SEP-414). They are
// read only if traces are on, and so they are not Members.
var traceKeys = []string{"traceparent", "tracestate", "baggage"}

// traced returns their positions in params. It returns false if they are ambiguous.
func (n *Notes) traced() (at [3]jsonrpc.Span, ok bool) {
	if n.Err(InMeta) != nil {
		return at, false
	}
	if !n.Has(InMeta) {
		return at, true
	}
	return at, jsonrpc.Find(n.params, n.At(InMeta), at[:], traceKeys...) == nil
}

// TraceContext returns what _meta says about the trace, nothing if that is ambiguous.
func (n *Notes) TraceContext() (t jsonrpc.TraceContext) {
	at, ok := n.traced()
	if !ok {
		return t
	}
	for i, to := range []*string{&t.Parent, &t.State, &t.Baggage} {
		*to, _ = jsonrpc.Unquote(at[i].Of(n.params))
	}
	return t
}

// TraceEdits returns the edits that set the trace context in params to t, which must have a parent.
// A state in params that t lacks is emptied; a baggage in params stays. It returns none if params
// or _meta are ambiguous or not objects.
func (n *Notes) TraceEdits(t jsonrpc.TraceContext) (edits []jsonrpc.Edit) {
	at, ok := n.traced()
	if !ok {
		return nil
	}
	var missing []byte
	for i, value := range []string{t.Parent, t.State, t.Baggage} {
		switch {
		case at[i].IsZero() && value != "":
			missing = append(missing, ',')
			missing = append(append(append(missing, jsonrpc.Quote(traceKeys[i])...), ':'), jsonrpc.Quote(value)...)
		case !at[i].IsZero() && i < 2:
			edits = append(edits, jsonrpc.Edit{Span: at[i], With: jsonrpc.Quote(value)})
		}
	}
	if missing == nil {
		return edits
	}
	in, with := n.At(InMeta), missing[1:]
	if !n.Has(InMeta) {
		in, with = jsonrpc.Span{End: len(n.params)}, slices.Concat([]byte(`"_meta":{`), with, []byte{'}'})
	}
	first, ok := opening(n.params, in, with)
	if !ok {
		return nil
	}
	return append(edits, first)
}

// opening returns the edit that inserts members at the start of the object that in covers; false if
// that is not an object.
func opening(doc []byte, in jsonrpc.Span, members []byte) (jsonrpc.Edit, bool) {
	const space = " \t\r\n"
	object := bytes.TrimLeft(doc[in.Start:in.End], space)
	if len(object) == 0 || object[0] != '{' {
		return jsonrpc.Edit{}, false
	}
	at := in.End - len(object) + 1
	if rest := bytes.TrimLeft(object[1:], space); rest[0] != '}' {
		members = append(slices.Clip(members), ',')
	}
	return jsonrpc.Edit{Span: jsonrpc.Span{Start: at, End: at}, With: members}, true
}
