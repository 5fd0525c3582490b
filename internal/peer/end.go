package peer

import (
	"math"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Finish makes the Peer send nothing more, because of err, except for what is queued. Then, or
// after within, the Conn ends with err as the cause.
func (p *Peer) Finish(err error, within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Finish(err, within, nil)
}

// HalfClose makes the Peer send nothing more, because of err, except for what is queued. Then it
// half-closes the Conn, and Run continues until the other side has ended, too.
func (p *Peer) HalfClose(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.halfClosed = true
	p.out.Finish(err, math.MaxInt64, func() []*jsonrpc.Message { return nil })
}

// Retire is Finish if nothing is open: no call, no request, and nothing that is queued. It reports
// whether that is so. Calls and requests that come later are refused.
func (p *Peer) Retire(within time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls.Len()+p.requests.Len()+p.owed+p.out.Len() > 0 {
		return false
	}
	p.calls.Close(jsonrpc.ErrClosed)
	p.requests.Close(jsonrpc.ErrClosed)
	p.out.Finish(jsonrpc.ErrClosed, within, nil)
	return true
}

// Drain refuses new requests from now on. When all open requests have been answered and the answers
// written, for which within is the limit, the Conn ends with err as the cause.
func (p *Peer) Drain(err error, within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drain == nil {
		p.drain = func() { p.out.Finish(err, within, nil) }
	}
	p.drainedLocked()
}

func (p *Peer) drainedLocked() {
	if p.drain != nil && p.requests.Len() == 0 && p.owed == 0 {
		p.drain()
	}
}

// A Lost is the end of a Peer as one of its calls sees it.
type Lost struct {
	End   *jsonrpc.ClosedError
	Phase jsonrpc.Phase
}

// Wire returns the error for the call's caller, which names the upstream.
func (l *Lost) Wire(upstream string) *jsonrpc.Error {
	if l.End.Cause.Kind == jsonrpc.KindOverloaded {
		return jsonrpc.Overloaded(upstream)
	}
	return l.End.Wire(jsonrpc.CodeInternalError, upstream, l.Phase)
}

// Unsent returns the error for the caller of a call that was not sent because of an end: the
// connection-closed error, or overloaded if there was no room for a stream.
func Unsent(end *jsonrpc.ClosedError, upstream string) *jsonrpc.Error {
	return (&Lost{end, jsonrpc.NotSent}).Wire(upstream)
}

// End ends the Peer, because its Conn has ended or will never exist. If err is not a
// [*jsonrpc.ClosedError], calls that were sent may have run. Everything that is open is settled
// before End returns. The first End counts.
func (p *Peer) End(err error) {
	end := jsonrpc.EndOf(err, jsonrpc.CauseLinkLost)
	p.mu.Lock()
	p.out.Close(end)
	calls, requests := p.calls.Close(end), p.requests.Close(end)
	p.overLocked(calls, requests)
	p.mu.Unlock()
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

// overLocked marks what was taken out of the tables.
func (p *Peer) overLocked(calls []*Call, requests []*Request) {
	for _, c := range calls {
		c.over = true
	}
	for _, r := range requests {
		r.over.Store(true)
	}
}
