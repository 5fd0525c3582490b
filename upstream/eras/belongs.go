package eras

import (
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// hopReserved are those of reserved that are not the id of a request.
var hopReserved = slices.DeleteFunc(slices.Clone(reserved), func(v jsonrpc.Value) bool { return v.Key == mcp.KeySubscription })

// stripHop is stripReserved, but keeps the id of a request.
func stripHop(object json.RawMessage) json.RawMessage {
	if !mayHave(object, "_meta") {
		return object
	}
	return mcp.SetMeta(object, hopReserved...)
}

// forClient returns the params of a notification of a call for its client: with the client's id and token of the call
// in place of ours, and without the other keys of _meta that concern only one hop. It returns false if the params name
// anything else.
func forClient(m *jsonrpc.Message, ours, id jsonrpc.ID, token json.RawMessage) (json.RawMessage, bool) {
	notes := mcp.Read(m)
	named, said := notes.Named()
	if !said || named.IsZero() {
		return stripReserved(m.Params), true
	}
	if named != ours {
		return nil, false
	}
	params, ok := notes.As(id, token)
	return mcp.SetMeta(params, hopReserved...), ok
}

// callNamed returns the call (C, the Value of its request) of a client that a message of the client names, by the id of
// the request or by its token; the zero C if there is none. The caller has the lock of the calls.
func callNamed[C interface {
	comparable
	progressToken() json.RawMessage
}](client *peer.Peer, notes *mcp.Notes) (c C, named bool) {
	var none C
	if notes.Has(mcp.Subscription) {
		id, _ := notes.ID(mcp.Subscription)
		if r := client.Request(id); r != nil {
			c, _ = r.Value.(C)
		}
		return c, c != none || mcp.CouldBeOurs(id)
	}
	client.Requests(func(r *peer.Request) bool {
		if other, ok := r.Value.(C); ok && notes.HasToken(other.progressToken()) {
			c = other
		}
		return false
	})
	return c, c != none
}

// named returns the subscription id that a request of an extension has at the server: the id of the call that find
// returns, or what the client wrote if that cannot be an id of ours. It returns nil if the request has none, and an
// error if the request names no call.
func named(notes *mcp.Notes, find func() *peer.Call) (json.RawMessage, error) {
	if !notes.Method.MaybeOfExtension() {
		return nil, nil
	}
	if err := notes.Err(mcp.InMeta, mcp.Subscription); err != nil || !notes.Has(mcp.Subscription) {
		return nil, err
	}
	if c := find(); c != nil {
		return c.ID.Raw(), nil
	}
	if id, _ := notes.ID(mcp.Subscription); mcp.CouldBeOurs(id) {
		return nil, mcp.ErrUnknownSubscription
	}
	return notes.Raw(mcp.Subscription), nil
}

// withSubscription returns converted, the conversion of a result, with the client's own id as subscription id, if
// the result has the id of its call there.
func withSubscription(converted, result json.RawMessage, ours, id jsonrpc.ID) json.RawMessage {
	if !mayHave(result, "subscriptionId") {
		return converted
	}
	meta, _ := jsonrpc.Member(result, "_meta")
	raw, _ := jsonrpc.Member(meta, mcp.KeySubscription)
	found, _ := jsonrpc.ParseID(raw)
	if n, ok := found.Answered(); !ok || jsonrpc.IntID(n) != ours {
		return converted
	}
	return mcp.SetMeta(converted, jsonrpc.Value{Key: mcp.KeySubscription, Text: id.Raw()})
}
