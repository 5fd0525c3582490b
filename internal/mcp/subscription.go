package mcp

import (
	"encoding/json"
	"iter"
	"maps"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Subscriptions are the resources to which the holders of a server session subscribe. The server
// has at most one subscription to each. Operations on a resource run one after the other, so that
// the last one decides. The lock of the owner guards them.
type Subscriptions[H comparable] struct {
	// Ask sends a request to the server. answered must be called with the answer, with the lock
	// held. Static.
	Ask func(method string, params json.RawMessage, op Subscribing[H], answered func(answer *jsonrpc.Message))

	byURI map[string]*subscription[H]
	held  map[H]map[string]*subscription[H]
}

// A subscription is that to one resource.
type subscription[H comparable] struct {
	uri    string
	on     bool // the server has it
	by     map[H]struct{}
	ops    []Subscribing[H] // pending; if asking, the first is at the server
	asking bool
}

// A Subscribing is a subscription or unsubscription by a holder.
type Subscribing[H comparable] struct {
	By     H
	On     bool
	Params json.RawMessage
	Of     any // the request that it serves; nil for none

	Wanted func() bool                   // reports whether the holder still wants it; false if no holder does
	Done   func(answer *jsonrpc.Message) // nil if it is no longer wanted
}

// Add performs op when it is its turn.
func (ss *Subscriptions[H]) Add(uri string, op Subscribing[H]) {
	sub := ss.byURI[uri]
	if sub == nil {
		if ss.byURI == nil {
			ss.byURI, ss.held = make(map[string]*subscription[H]), make(map[H]map[string]*subscription[H])
		}
		sub = &subscription[H]{uri: uri, by: make(map[H]struct{})}
		ss.byURI[uri] = sub
	}
	sub.ops = append(sub.ops, op)
	ss.next(sub)
}

// next performs operations until one needs the server, and sends that.
func (ss *Subscriptions[H]) next(sub *subscription[H]) {
	for !sub.asking && len(sub.ops) > 0 {
		op := sub.ops[0]
		switch {
		case !op.Wanted():
			op.Done(nil)
		case sub.needsServer(op):
			ss.askFor(sub, op)
			return
		default:
			ss.hold(sub, op)
			op.Done(&jsonrpc.Message{Result: json.RawMessage(`{}`)})
		}
		sub.ops = sub.ops[1:]
	}
	switch {
	case sub.asking || len(sub.by) > 0:
	case sub.on: // all its holders have left
		none := Subscribing[H]{
			Params: URIParams(sub.uri),
			Wanted: func() bool { return false }, Done: func(*jsonrpc.Message) {},
		}
		sub.ops = []Subscribing[H]{none}
		ss.askFor(sub, none)
	default:
		delete(ss.byURI, sub.uri)
	}
}

// needsServer reports whether op changes the state of the server.
func (sub *subscription[H]) needsServer(op Subscribing[H]) bool {
	if op.On {
		return !sub.on
	}
	_, holds := sub.by[op.By]
	return sub.on && (holds && len(sub.by) == 1 || len(sub.by) == 0)
}

func (ss *Subscriptions[H]) hold(sub *subscription[H], op Subscribing[H]) {
	if !op.On {
		ss.drop(sub, op.By)
		return
	}
	if ss.held[op.By] == nil {
		ss.held[op.By] = make(map[string]*subscription[H])
	}
	sub.by[op.By], ss.held[op.By][sub.uri] = struct{}{}, sub
}

func (ss *Subscriptions[H]) drop(sub *subscription[H], by H) {
	delete(sub.by, by)
	delete(ss.held[by], sub.uri)
	if len(ss.held[by]) == 0 {
		delete(ss.held, by)
	}
}

func (ss *Subscriptions[H]) askFor(sub *subscription[H], op Subscribing[H]) {
	method := MethodUnsubscribe
	if op.On {
		method = MethodSubscribe
	}
	sub.asking = true
	ss.Ask(method, op.Params, op, func(answer *jsonrpc.Message) { ss.answered(sub, op.On, answer) })
}

// answered handles the server's answer to the first of sub.ops. If a subscription fails, those that
// wait behind it fail, too.
func (ss *Subscriptions[H]) answered(sub *subscription[H], on bool, answer *jsonrpc.Message) {
	sub.asking = false
	failed := answer.Error != nil
	sub.on = on && !failed // after a failed unsubscription nobody wants it either
	for first := true; len(sub.ops) > 0 && (first || on && failed && sub.ops[0].On); first = false {
		op := sub.ops[0]
		sub.ops = sub.ops[1:]
		if !op.Wanted() {
			op.Done(nil)
			continue
		}
		if !on || !failed {
			ss.hold(sub, op)
		}
		op.Done(answer)
	}
	ss.next(sub)
}

// Release drops a resource of a holder.
func (ss *Subscriptions[H]) Release(by H, uri string) {
	if sub := ss.byURI[uri]; sub != nil {
		ss.drop(sub, by)
		ss.next(sub)
	}
}

// ReleaseAll drops all resources of a holder. Operations at the server take effect when they are
// answered.
func (ss *Subscriptions[H]) ReleaseAll(by H) {
	for uri := range ss.held[by] {
		ss.Release(by, uri)
	}
}

// Held returns the number of resources of a holder, and whether uri is one of them.
func (ss *Subscriptions[H]) Held(by H, uri string) (n int, has bool) {
	return len(ss.held[by]), ss.held[by][uri] != nil
}

// Holders returns the holders that subscribe to a resource or to one above it. Each comes once, with the
// longest such URI to which it subscribes.
func (ss *Subscriptions[H]) Holders(uri string) iter.Seq2[H, string] {
	return func(yield func(H, string) bool) {
		var told map[H]struct{}
		for whole := range wholes(uri) {
			sub := ss.byURI[whole]
			if sub == nil {
				continue
			}
			for h := range sub.by {
				if _, again := told[h]; !again && !yield(h, whole) {
					return
				}
			}
			if told == nil {
				told = make(map[H]struct{})
			}
			maps.Copy(told, sub.by)
		}
	}
}

// deepest bounds the levels at which a whole is looked for: a hostile server sends a URI of slashes.
const deepest = 100

// wholes returns a URI, and then the URIs above it, each with and without a slash at the end.
func wholes(uri string) iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield(uri) {
			return
		}
		i := len(uri)
		for range deepest {
			if i = strings.LastIndexByte(uri[:i], '/'); i <= 0 {
				return
			}
			if i < len(uri)-1 && !yield(uri[:i+1]) || !yield(uri[:i]) {
				return
			}
		}
	}
}

// URIParams returns the params of a message about one resource.
func URIParams(uri string) json.RawMessage {
	return jsonrpc.Set(nil, jsonrpc.Value{Key: "uri", Text: jsonrpc.Quote(uri)})
}

// LevelParams returns the params of logging/setLevel for a level of [ReadLevel].
func LevelParams(level int) json.RawMessage {
	return jsonrpc.Set(nil, jsonrpc.Value{Key: "level", Text: jsonrpc.Quote(LogLevels[level-1])})
}

// InitializeParams returns the params of initialize for a client with these capabilities. If info
// is nil, it is the proxy's own.
func InitializeParams(capabilities, info json.RawMessage) json.RawMessage {
	if info == nil {
		info = json.RawMessage(`{"name":"mcp-proxy","version":"1"}`)
	}
	return jsonrpc.Set(nil,
		jsonrpc.Value{Key: "protocolVersion", Text: jsonrpc.Quote(LegacyVersions[0])},
		jsonrpc.Value{Key: "capabilities", Text: capabilities},
		jsonrpc.Value{Key: "clientInfo", Text: info})
}
