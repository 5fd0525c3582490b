package pool

import (
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Subscriptions are the resources of a session that holders want to hear of. The server
// has at most one subscription to each. What holders want is done one after the other, so
// that the server's last word is the last one's. Guarded by the lock of its owner.
type subscriptions[H comparable] struct {
	// ask asks the server, and has answered called with its answer, with the lock held.
	// Static.
	ask func(method string, params json.RawMessage, op subscribing[H], answered func(answer *jsonrpc.Message))

	byURI map[string]*subscription[H]
	held  map[H]map[string]*subscription[H]
}

// A subscription is one resource.
type subscription[H comparable] struct {
	uri    string
	on     bool // the server has it
	by     map[H]struct{}
	ops    []subscribing[H] // that wait for their turn; the first is with the server if asking
	asking bool
}

// A subscribing is a subscription, or the opposite, that a holder wants.
type subscribing[H comparable] struct {
	by     H
	on     bool
	params json.RawMessage
	of     queuedRequest // the request that it is for; zero for none

	wanted func() bool                   // it still is; nil: no holder does
	done   func(answer *jsonrpc.Message) // nil if it is not wanted any more
}

// add does what a holder wants, when it is its turn.
func (ss *subscriptions[H]) add(uri string, op subscribing[H]) {
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

// next does what can be done without the server, and asks it for the rest.
func (ss *subscriptions[H]) next(sub *subscription[H]) {
	for !sub.asking && len(sub.ops) > 0 {
		op := sub.ops[0]
		switch {
		case !op.wanted():
			op.done(nil)
		case sub.needsServer(op):
			ss.askFor(sub, op)
			return
		default:
			ss.hold(sub, op)
			op.done(&jsonrpc.Message{Result: noResult})
		}
		sub.ops = sub.ops[1:]
	}
	switch {
	case sub.asking || len(sub.by) > 0:
	case sub.on: // its holders have left
		none := subscribing[H]{
			params: jsonrpc.Set(nil, jsonrpc.Value{Key: "uri", Text: jsonrpc.Quote(sub.uri)}),
			wanted: func() bool { return false }, done: func(*jsonrpc.Message) {},
		}
		sub.ops = []subscribing[H]{none}
		ss.askFor(sub, none)
	default:
		delete(ss.byURI, sub.uri)
	}
}

// needsServer reports whether op changes what the server has.
func (sub *subscription[H]) needsServer(op subscribing[H]) bool {
	if op.on {
		return !sub.on
	}
	_, holds := sub.by[op.by]
	return sub.on && (holds && len(sub.by) == 1 || len(sub.by) == 0)
}

func (ss *subscriptions[H]) hold(sub *subscription[H], op subscribing[H]) {
	if !op.on {
		ss.drop(sub, op.by)
		return
	}
	if ss.held[op.by] == nil {
		ss.held[op.by] = make(map[string]*subscription[H])
	}
	sub.by[op.by], ss.held[op.by][sub.uri] = struct{}{}, sub
}

func (ss *subscriptions[H]) drop(sub *subscription[H], by H) {
	delete(sub.by, by)
	delete(ss.held[by], sub.uri)
	if len(ss.held[by]) == 0 {
		delete(ss.held, by)
	}
}

func (ss *subscriptions[H]) askFor(sub *subscription[H], op subscribing[H]) {
	method := mcp.MethodUnsubscribe
	if op.on {
		method = mcp.MethodSubscribe
	}
	sub.asking = true
	ss.ask(method, op.params, op, func(answer *jsonrpc.Message) { ss.answered(sub, op.on, answer) })
}

// answered handles the server's answer to the first of sub.ops. A failed subscription
// fails for all that waited behind it.
func (ss *subscriptions[H]) answered(sub *subscription[H], on bool, answer *jsonrpc.Message) {
	sub.asking = false
	failed := answer.Error != nil
	sub.on = on && !failed // after a failed unsubscription nobody wants it either
	for first := true; len(sub.ops) > 0 && (first || on && failed && sub.ops[0].on); first = false {
		op := sub.ops[0]
		sub.ops = sub.ops[1:]
		if !op.wanted() {
			op.done(nil)
			continue
		}
		if !on || !failed {
			ss.hold(sub, op)
		}
		op.done(answer)
	}
	ss.next(sub)
}

// release lets go of a resource that a holder has.
func (ss *subscriptions[H]) release(by H, uri string) {
	if sub := ss.byURI[uri]; sub != nil {
		ss.drop(sub, by)
		ss.next(sub)
	}
}

// releaseAll lets go of all that a holder has. What is with the server is seen to when
// that is answered.
func (ss *subscriptions[H]) releaseAll(by H) {
	for uri := range ss.held[by] {
		ss.release(by, uri)
	}
}

// holders returns who wants to hear of a resource.
func (ss *subscriptions[H]) holders(uri string) map[H]struct{} {
	if sub := ss.byURI[uri]; sub != nil {
		return sub.by
	}
	return nil
}
