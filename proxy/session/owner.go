package session

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"strconv"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// When an upstream has asked a client something, the answer and the state that came with
// the request are for that upstream alone (2026-07-28 basic/patterns/mrtr). They never go
// to one that only may have the resource or the task.

// owners remembers which upstream has what of one client.
type owners struct {
	tasks        tasks        // that upstreams run
	clientTasks  tasks        // that the client runs, for upstreams
	readers      readers      // of resources, in the modern era
	resourceSubs resourceSubs // in the legacy era
}

// forget forgets an upstream that was hung up.
func (o *owners) forget(u *upstreamConn) {
	o.tasks.forget(u)
	o.clientTasks.forget(u)
	o.readers.forget(u)
	o.resourceSubs.forget(u)
}

// maxReaders bounds how many answered reads of one session are remembered.
const maxReaders = 10000

// readers remembers which upstream answered a client's last read of a resource. A retry
// of that read goes there.
type readers struct {
	mu sync.Mutex // guards of; nothing else is locked under it
	of map[catalog.Digest]*upstreamConn
}

// add remembers u. When there is no room it forgets all others; who of them has asked a
// client something is then found by asking.
func (r *readers) add(key catalog.Digest, u *upstreamConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u.isHungUp() { // its answer was on the way when it went
		return
	}
	if len(r.of) >= maxReaders {
		clear(r.of)
	}
	put(&r.of, key, u)
}

func (r *readers) get(key catalog.Digest) *upstreamConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[key]
}

// forget forgets an upstream that was hung up.
func (r *readers) forget(u *upstreamConn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.of, func(_ catalog.Digest, reader *upstreamConn) bool { return reader == u })
}

// readerKey is what a call's read is remembered by.
func (c *call) readerKey(uri string) (key catalog.Digest) {
	hash := sha256.New()
	hash.Write(c.identity()) // an object: what follows is no part of it
	hash.Write([]byte(uri))
	hash.Sum(key[:0])
	return key
}

// readResource routes resources/read, which may be a retry in the modern era.
func (s *session) readResource(c *call) *jsonrpc.Error {
	if c.era == mcp.Legacy {
		return s.byURI(c)
	}
	n := c.notes
	if err := n.Err(mcp.Key, mcp.Responses, mcp.RequestState); err != nil {
		return invalidParams(err.Error())
	}
	c.retry = isGiven(n.Raw(mcp.Responses)) || isGiven(n.Raw(mcp.RequestState))
	if uri, ok := n.Text(mcp.Key); ok && c.upstreams.only() == nil {
		key := c.readerKey(uri)
		s.whenAnswered(c, func(answer *jsonrpc.Message) { s.readAnswered(c, answer, key, uri) })
	}
	return s.toOwnerOf(c, mcp.Key)
}

// isGiven reports whether a member is there; null is none.
func isGiven(value json.RawMessage) bool { return value != nil && string(value) != "null" }

// readAnswered remembers who answered a read. If the last upstream that was asked has no
// resources at all, the client hears that nobody has this one.
func (s *session) readAnswered(c *call, answer *jsonrpc.Message, key catalog.Digest, uri string) {
	if code, _ := jsonrpc.Member(answer.Error, "code"); string(code) == noMethod {
		answer.Error = resourceNotFound(mcp.Modern, uri).Raw()
	}
	if answer.Error == nil && c.sent != nil {
		s.readers.add(key, c.sent.conn)
	}
}

// knownOwner returns the upstream that is known to have a resource: for a retry the one
// that has asked for it, else one that lists it or has a template for it.
func (s *session) knownOwner(c *call, uri string) *upstreamConn {
	if c.retry {
		if u := s.readers.get(c.readerKey(uri)); u != nil {
			return u
		}
	}
	return c.upstreams.ownerOf(c.view, uri)
}

// plainRead turns the params of a retry into those of a first read.
func (c *call) plainRead() json.RawMessage {
	return jsonrpc.Set(c.msg.Params, jsonrpc.Value{Key: "_meta", Text: c.identity()},
		jsonrpc.Value{Key: "inputResponses"}, jsonrpc.Value{Key: "requestState"})
}

// unaware reports whether an error of an upstream says that it does not have a resource,
// or that it was never asked. Then another one may have it. Any other error comes from
// the upstream that has it. Servers that have no code for it say 0.
func unaware(text json.RawMessage) bool {
	raw, err := jsonrpc.Member(text, "code")
	if err != nil {
		return false
	}
	switch code, _ := strconv.Atoi(string(raw)); code {
	case jsonrpc.CodeResourceNotFound, jsonrpc.CodeInvalidParams, jsonrpc.CodeMethodNotFound, 0:
		return true
	}
	data := jsonrpc.ReadErrorData(text)
	return data.Reason == jsonrpc.ReasonClosed && data.Phase == jsonrpc.NotSent
}

// whoAnswers asks upstreams in turn and returns the first one with a result. If none has
// one, it answers c with the first error that says more than "unknown", else with the
// last error.
func (s *session) whoAnswers(ctx context.Context, c *call, conns []*upstreamConn, method string, params json.RawMessage) *upstreamConn {
	var refusal *jsonrpc.Message
	vague := false
	for _, u := range conns {
		answer := u.askWithin(ctx, method, params)
		switch {
		case ctx.Err() != nil:
			return nil // c was taken
		case answer.Error == nil:
			return u
		}
		if refusal == nil || vague {
			refusal, vague = c.checked(u, answer), unaware(answer.Error)
		}
	}
	s.settle(c, refusal)
	return nil
}

// askWithin is ask within the list timeout. When that ends, the answer is an error.
func (u *upstreamConn) askWithin(ctx context.Context, method string, params json.RawMessage) *jsonrpc.Message {
	ctx, cancel := context.WithTimeout(ctx, u.s.p.listTimeout())
	defer cancel()
	answer, err := u.ask(ctx, method, params)
	if err != nil {
		return jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.TimedOut(u.up.Name))
	}
	return answer
}
