package peer

import (
	"math"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Finish lets nothing be sent any more, because of err, but what waits already, for which
// there is so much time. Then the Conn ends, with err as the cause.
func (p *Peer) Finish(err error, within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Finish(err, within, nil)
}

// HalfClose lets nothing be sent any more, because of err, but what waits already. Then the
// Conn is half-closed, and Run goes on until the other side has ended, too.
func (p *Peer) HalfClose(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halfClosed = true
	p.out.Finish(err, math.MaxInt64, func() []*jsonrpc.Message { return nil })
}

// A drain is how a Peer drains.
type drain struct {
	cause  error
	within time.Duration
}

// Drain refuses new requests from now on. When all that are open are answered and the
// answers are written, for which there is so much time, the Conn ends, with err as the cause.
func (p *Peer) Drain(err error, within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drain == nil {
		p.drain = &drain{err, within}
	}
	p.drainedLocked()
}

func (p *Peer) drainedLocked() {
	if d := p.drain; d != nil && p.requests.Len() == 0 && p.owed == 0 {
		p.out.Finish(d.cause, d.within, nil)
	}
}

// Lost is the end of a Peer, as a call sees it.
type Lost struct {
	End   *jsonrpc.ClosedError
	Phase jsonrpc.Phase
}

// Wire returns the error for who waits for the call. The upstream is the one that is lost.
func (l *Lost) Wire(code int, upstream string) *jsonrpc.Error {
	if l.End.Cause.Kind == jsonrpc.KindOverloaded {
		return jsonrpc.Overloaded(upstream)
	}
	return l.End.Wire(code, upstream, l.Phase)
}

// End is the end of the Peer, because its Conn has ended or there will be none: of err, if
// that is not a [*jsonrpc.ClosedError], it is only known that calls may be lost. Everything
// that is open hears of it before End returns. The first End counts.
func (p *Peer) End(err error) {
	end := jsonrpc.EndOf(err, jsonrpc.CauseLinkLost)
	p.mu.Lock()
	p.out.Close(end)
	calls, requests := p.calls.Close(end), p.requests.Close(end)
	p.overLocked(calls, requests)
	p.mu.Unlock()
	p.tellEnd(end, calls, requests)
}

func (p *Peer) overLocked(calls []*Call, requests []*Request) {
	for _, c := range calls {
		c.over = true
	}
	for _, r := range requests {
		r.over.Store(true)
	}
}

func (p *Peer) tellEnd(end *jsonrpc.ClosedError, calls []*Call, requests []*Request) {
	for _, c := range calls {
		phase := jsonrpc.NotSent
		if c.sent && end.Delivered {
			phase = jsonrpc.InFlight
		}
		c.settle(nil, &Lost{end, phase})
	}
	for _, r := range requests {
		r.cancelled(nil, jsonrpc.Span{})
	}
}
