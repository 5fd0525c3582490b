package mcp

import (
	"bytes"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// traceKeys are where _meta says which trace a message is part of (SEP-414). They are read
// only when somebody follows traces, and so are no Members.
var traceKeys = []string{"traceparent", "tracestate", "baggage"}

// A traced is where they stand in params.
type traced [3]jsonrpc.Span

// traced finds them. It is false if another reader could find something else.
func (n *Notes) traced() (at traced, ok bool) {
	if n.Err(InMeta) != nil {
		return at, false
	}
	if !n.Has(InMeta) {
		return at, true
	}
	return at, jsonrpc.Find(n.params, n.At(InMeta), at[:], traceKeys...) == nil
}

// TraceContext returns what _meta says about the trace; nothing where it is ambiguous.
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

// TraceEdits returns the edits that make params say t about the trace, which has a parent.
// A state that the params have and t has not is emptied; a baggage of theirs stays. There
// are none if params, or _meta, are ambiguous or no object.
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

// opening returns the edit that puts members first into the object that in covers; false if
// it is none.
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
