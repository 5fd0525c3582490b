package eras

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

const (
	startFor        = 2 * time.Second // servers ask for roots when they start, which says nothing of their calls
	maxCallRequests = 64              // of one call at once; beyond, they are refused
)

// A serverRequest is a request of a legacy server that a client has to answer.
type serverRequest struct {
	*peer.Request
	c   *modernCall
	key string // in inputRequests
}

// asked handles a request of the server.
func (l *legacySession) asked(r *peer.Request) {
	if r.Method == mcp.MethodPing {
		r.RespondIfRoom(&jsonrpc.Message{Result: noResult})
		return
	}
	c, refusal := l.whose(r)
	if refusal == nil {
		refusal = c.refuses(r.Message)
	}
	if refusal != nil {
		r.RespondIfRoom(jsonrpc.Failure(refusal))
		return
	}
	c.asked++
	q := &serverRequest{r, c, keyOf(c.asked)}
	c.requests = append(c.requests, q)
	r.Assign(c, "", nil)
	r.OnCancel(func(*jsonrpc.Message, jsonrpc.Span) {
		l.a.locked(q.done)
	})
	if l.ofStart(r.Method) {
		c.gather(startCollectFor)
	} else {
		c.gather(collectFor)
	}
}

// ofStart reports whether a request may be one that a server makes when it starts.
func (l *legacySession) ofStart(method string) bool {
	return method == mcp.MethodRootsList && time.Since(l.began) < startFor
}

// keyOf returns the key in inputRequests of the nth request for a call.
func keyOf(n int) string { return "q" + strconv.Itoa(n) }

// whose returns the call that a request of the server belongs to. That must be certain, or
// it might be shown to somebody else. An upstream whose requests do not tell has a session
// for each call from then on.
func (l *legacySession) whose(r *peer.Request) (*modernCall, *jsonrpc.Error) {
	switch r.Method {
	case mcp.MethodRootsList, mcp.MethodSample, mcp.MethodElicit:
	default:
		return nil, jsonrpc.MethodNotFound(r.Method)
	}
	if !r.Message.Related.IsZero() && l.relates {
		if r.Of != nil {
			if c, ok := r.Of.Value.(*modernCall); ok {
				return c, nil
			}
		}
		return nil, errNotNeeded
	}
	c, n := l.atWork()
	ofStart := l.ofStart(r.Method)
	switch {
	case n != 1 && ofStart, n == 0 && r.Method == mcp.MethodRootsList:
		return nil, jsonrpc.MethodNotFound(r.Method)
	case ofStart: // may be of the call, too
		return c, nil
	}
	if _, known := l.a.b.asking.LoadOrStore(l.a.id.upstream, true); !known {
		l.log.Debug("upstream sends requests: each call of modern clients has its own session")
	}
	switch n {
	case 0:
		return nil, errNoCall
	case 1:
		return c, nil
	}
	l.ambiguous(r.Method)
	return nil, peer.ErrUnattributed
}

// ambiguous handles a request that cannot be attributed. If that is because of suspended
// calls alone, the oldest gives way for the next request.
func (l *legacySession) ambiguous(method string) {
	level := slog.LevelDebug
	if !l.warned {
		level, l.warned = slog.LevelWarn, true
	}
	l.log.Log(context.Background(), level, "upstream sent a request that cannot be attributed to one of its calls", "method", method)
	waits := 0
	for c := range l.calls {
		if c.works() && c.state == forwarded {
			waits++
		}
	}
	if waits > 1 {
		return
	}
	l.a.giveUpOldestLocked(func(p *suspension) bool { return p.isAtServer() && p.call.session == l })
}

// atWork returns how many calls the server works on, and one of them.
func (l *legacySession) atWork() (one *modernCall, n int) {
	for c := range l.calls {
		if c.works() {
			one = c
			n++
		}
	}
	return one, n
}

// refuses returns why the client of a call cannot be asked something; nil if it
// can.
func (c *modernCall) refuses(m *jsonrpc.Message) *jsonrpc.Error {
	switch {
	case c.state == cancelled:
		return errNotNeeded
	case !mcp.MethodOf(c.method).Asks:
		return errCannotAsk
	case len(c.requests) >= maxCallRequests:
		return errTooManyAsks
	}
	return AbilitiesOf(c.Capabilities).Refuses(m.Method, m.Params)
}

// refuse answers all requests that belong to a call with an error.
func (c *modernCall) refuse(err *jsonrpc.Error) {
	for _, q := range c.requests {
		q.Fail(err)
	}
	c.requests = nil
}

// done forgets a request that is over.
func (q *serverRequest) done() {
	q.c.requests = slices.DeleteFunc(q.c.requests, func(other *serverRequest) bool { return other == q })
}
