package mcp

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Named returns the id of ours that a notification names as its request: as subscription id, or as
// progress token in params or in _meta, which are all the id of one call. said is false if it names
// none. If it names several, or is ambiguous, id is zero. A progress token that is not an integer is
// the sender's own, not one of ours; a subscription id is always that of a request.
func (n *Notes) Named() (id jsonrpc.ID, said bool) {
	if n.Err(InMeta, Subscription, Token, ParamToken) != nil {
		return jsonrpc.ID{}, true
	}
	for _, m := range [...]Member{Subscription, Token, ParamToken} {
		found, ok := n.minted(m)
		switch {
		case !ok && m == Subscription && n.Has(m):
			return jsonrpc.ID{}, true
		case !ok:
		case said && found != id:
			return jsonrpc.ID{}, true
		default:
			id, said = found, true
		}
	}
	return id, said
}

// minted returns the value of a member as an id of ours; false if it cannot be one.
func (n *Notes) minted(m Member) (jsonrpc.ID, bool) {
	if !n.Has(m) {
		return jsonrpc.ID{}, false
	}
	id, _ := n.ID(m)
	number, ok := id.Answered()
	return jsonrpc.IntID(number), ok
}

// As returns the params with the other side's id and progress token in place of ours, which Named
// has returned, and with edits made. It returns false if they name what the other side does not
// have: nobody gave the sender the token of a call without one.
func (n *Notes) As(id jsonrpc.ID, token json.RawMessage, edits ...jsonrpc.Edit) (json.RawMessage, bool) {
	for _, m := range [...]Member{Subscription, Token, ParamToken} {
		if _, ok := n.minted(m); !ok {
			continue
		}
		with := token
		if m == Subscription {
			with = id.Raw()
		}
		if len(with) == 0 {
			return nil, false
		}
		edits = append(edits, jsonrpc.Edit{Span: n.At(m), With: with})
	}
	return jsonrpc.Replace(n.params, edits...), true
}

// HasToken reports whether the message names a request by the sender's own progress token, which is not nil.
func (n *Notes) HasToken(own json.RawMessage) bool {
	return own != nil && (bytes.Equal(n.Raw(Token), own) || bytes.Equal(n.Raw(ParamToken), own))
}

// Own returns the params with our id in place of the sender's own id and progress token of a request. It is the
// reverse of As.
func (n *Notes) Own(id jsonrpc.ID, token json.RawMessage) json.RawMessage {
	edits := []jsonrpc.Edit{{Span: n.At(Subscription), With: id.Raw()}}
	for _, m := range [...]Member{Token, ParamToken} {
		if token != nil && bytes.Equal(n.Raw(m), token) {
			edits = append(edits, jsonrpc.Edit{Span: n.At(m), With: id.Raw()})
		}
	}
	return jsonrpc.Replace(n.params, edits...)
}

// ErrUnknownSubscription is the fault of a message that names, by a subscription id, a request that its sender
// does not have.
var ErrUnknownSubscription = errors.New("unknown subscription")

// CouldBeOurs reports whether a server could mistake an id that another side has written for that of a
// call of ours, all of which are integers.
func CouldBeOurs(id jsonrpc.ID) bool {
	_, ok := id.Answered()
	return ok
}

// AnsweredAs returns a result, an error, or the params of a notification with the id of the other
// side's request in place of ours, wherever it has that as subscription id: in _meta, or in the _meta
// of the data of an error.
func AnsweredAs(text json.RawMessage, ours, theirs jsonrpc.ID) json.RawMessage {
	if !MayHave(text, subscriptionID) {
		return text
	}
	var in [2]jsonrpc.Span
	if jsonrpc.Find(text, jsonrpc.Span{}, in[:], "_meta", "data") != nil {
		return text
	}
	var inData [1]jsonrpc.Span
	if !in[1].IsZero() && jsonrpc.Find(text, in[1], inData[:], "_meta") != nil {
		return text
	}
	var edits []jsonrpc.Edit
	for _, meta := range [...]jsonrpc.Span{in[0], inData[0]} {
		var at [1]jsonrpc.Span
		if meta.IsZero() || jsonrpc.Find(text, meta, at[:], KeySubscription) != nil {
			continue
		}
		id, _ := jsonrpc.ParseID(at[0].Of(text))
		if number, ok := id.Answered(); ok && jsonrpc.IntID(number) == ours {
			edits = append(edits, jsonrpc.Edit{Span: at[0], With: theirs.Raw()})
		}
	}
	return jsonrpc.Replace(text, edits...)
}

var subscriptionID = []byte("subscriptionId")
