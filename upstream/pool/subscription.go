package pool

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A sharedSub is a URI that clients subscribe to. The server has at most one
// subscription to it. What clients want is done one after the other, so that the
// server's last word is the last one's. Guarded by shared.mu.
type sharedSub struct {
	uri     string
	raw     json.RawMessage // its JSON text
	on      bool            // the server has it
	holders map[*sharer]struct{}
	ops     []subOp // the first is with the server if asking
	asking  bool
}

// A subOp is a client's subscription or unsubscription that waits for its turn.
type subOp struct {
	call   *sharedCall // nil if there is no client any more
	params json.RawMessage
	on     bool
}

// subscribe handles resources/subscribe and resources/unsubscribe.
func (s *sharer) subscribe(c *sharedCall, m *jsonrpc.Message) {
	raw, err := jsonrpc.Member(m.Params, "uri")
	uri, ok := jsonrpc.Unquote(raw)
	if err == nil && !ok {
		err = errMissing("uri")
	}
	if err == nil {
		_, err = s.checkMeta(m.Params)
	}
	sh := s.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	on := m.Method == mcp.MethodSubscribe
	_, held := s.subs[uri]
	switch {
	case s.ended:
		return
	case err != nil:
		sh.failLocked(c, jsonrpc.InvalidParams(err.Error()))
		return
	case on && !held && len(s.subs) >= maxSharerSubs:
		sh.failLocked(c, jsonrpc.Overloaded(sh.name))
		return
	}
	sub := sh.subs[uri]
	if sub == nil {
		sub = &sharedSub{uri: uri, raw: bytes.Clone(raw), holders: make(map[*sharer]struct{})}
		sh.subs[uri] = sub
	}
	sub.ops = append(sub.ops, subOp{c, bytes.Clone(m.Params), on})
	sh.nextOpLocked(sub)
}

// nextOpLocked does what can be done without the server, and asks it for the
// rest.
func (sh *shared) nextOpLocked(sub *sharedSub) {
	for !sub.asking && len(sub.ops) > 0 {
		op := sub.ops[0]
		if !op.alive() {
			sub.ops = sub.ops[1:]
			sh.forgetOpLocked(op)
			continue
		}
		if sub.needsServer(op) {
			op.call.by.sent = true
			sh.askSubLocked(sub, op)
			return
		}
		sub.ops = sub.ops[1:]
		sub.hold(op.call.by, op.on)
		sh.settleLocked(op.call, jsonrpc.NewResult(op.call.id, noResult))
	}
	switch {
	case sub.asking || len(sub.holders) > 0:
	case sub.on: // its clients have left
		sub.ops = []subOp{{params: slices.Concat([]byte(`{"uri":`), sub.raw, []byte{'}'})}}
		sh.askSubLocked(sub, sub.ops[0])
	default:
		delete(sh.subs, sub.uri)
	}
}

// alive reports whether the client still waits for op.
func (op subOp) alive() bool {
	return op.call != nil && op.call.by.calls[op.call.id] == op.call && !op.call.cancelled
}

// forgetOpLocked ends the call of an op that is not alive.
func (sh *shared) forgetOpLocked(op subOp) {
	if op.call != nil {
		sh.settleLocked(op.call, nil)
	}
}

// needsServer reports whether op changes what the server has.
func (sub *sharedSub) needsServer(op subOp) bool {
	if op.on {
		return !sub.on
	}
	_, holds := sub.holders[op.call.by]
	return sub.on && (holds && len(sub.holders) == 1 || len(sub.holders) == 0)
}

func (sub *sharedSub) hold(s *sharer, on bool) {
	if on {
		sub.holders[s] = struct{}{}
		s.subs[sub.uri] = struct{}{}
		return
	}
	delete(sub.holders, s)
	delete(s.subs, sub.uri)
}

func (sh *shared) askSubLocked(sub *sharedSub, op subOp) {
	method := mcp.MethodUnsubscribe
	if op.on {
		method = mcp.MethodSubscribe
	}
	sub.asking = true
	sh.askLocked(method, op.params, op.call, func(answer *jsonrpc.Message) { sh.subAnswered(sub, op.on, answer) })
}

// subAnswered handles the server's answer to the first of sub.ops. A failed
// subscription fails for all that waited behind it.
func (sh *shared) subAnswered(sub *sharedSub, on bool, answer *jsonrpc.Message) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sub.asking = false
	failed := answer.Error != nil
	sub.on = on && !failed // after a failed unsubscription nobody wants it either
	for first := true; len(sub.ops) > 0 && (first || on && failed && sub.ops[0].on); first = false {
		op := sub.ops[0]
		sub.ops = sub.ops[1:]
		if !op.alive() {
			sh.forgetOpLocked(op)
			continue
		}
		if !on || !failed {
			sub.hold(op.call.by, on)
		}
		sh.settleLocked(op.call, &jsonrpc.Message{ID: op.call.id, Result: answer.Result, Error: answer.Error, Extra: answer.Extra})
	}
	sh.nextOpLocked(sub)
}

// unsubscribeAllLocked lets go of what a client that has left subscribed to. What
// is with the server is seen to when that is answered.
func (sh *shared) unsubscribeAllLocked(s *sharer) {
	for uri := range s.subs {
		sub := sh.subs[uri]
		delete(sub.holders, s)
		sh.nextOpLocked(sub)
	}
}

// updated tells those who subscribed to that very URI. To a server it may be a part
// of what somebody subscribed to, but of whose it cannot say.
func (sh *shared) updated(m *jsonrpc.Message) {
	uri, ok := jsonrpc.Unquote(json.RawMessage(member(m.Params, "uri")))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sub := sh.subs[uri]; ok && sub != nil {
		for s := range sub.holders {
			s.hearLocked(m, jsonrpc.ID{})
		}
	}
}
