package remote

import (
	"context"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A reach records how far a request came.
type reach struct {
	connected atomic.Bool  // it has a connection, so some of it may have been sent
	kept      atomic.Bool  // in this attempt it got a connection that had served others
	delivered *atomic.Bool // set with connected; the session's, nil for requests that do not count there

	mu        sync.Mutex    // guards the fields below
	sending   bool          // it is being sent, or was sent and not refused
	takenBack bool          // it must not be sent (again)
	settled   bool          // written is closed
	written   chan struct{} // closed when the whole request was written, or never will be; new for each attempt
	when      time.Time     // then
}

func newReach(delivered *atomic.Bool) *reach {
	return &reach{delivered: delivered, written: make(chan struct{})}
}

// begin records that the request is being sent. It returns false if that was taken back.
func (r *reach) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.takenBack {
		return false
	}
	r.sending = true
	r.renewLocked()
	return true
}

// refused records that the server refused the request without running it.
func (r *reach) refused() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sending = false
}

// takeBack prevents the request from being sent, and reports whether it came in time: then
// the server needs no cancellation.
func (r *reach) takeBack() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.takenBack = r.takenBack || !r.sending
	return r.takenBack
}

// whenWritten returns a channel that is closed when the whole request was written, or never
// will be.
func (r *reach) whenWritten() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written
}

// sinceWritten returns how long ago written was closed; zero if it was not.
func (r *reach) sinceWritten() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.settled {
		return 0
	}
	return time.Since(r.when)
}

func (r *reach) connect() {
	r.connected.Store(true)
	if r.delivered != nil {
		r.delivered.Store(true)
	}
}

// nothingLeft records that nothing of the request left, although net/http said that it had written it: to
// a buffer.
func (r *reach) nothingLeft() {
	r.connected.Store(false)
	r.kept.Store(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewLocked()
}

func (r *reach) renewLocked() {
	if r.settled {
		r.settled, r.written = false, make(chan struct{})
	}
}

func (r *reach) done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.settled {
		r.settled, r.when = true, time.Now()
		close(r.written)
	}
}

// trace records how far a request without a body comes.
func (r *reach) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { r.connect() },
	})
}

// abortable returns ctx with a function that gives a request up. It is nil for plain HTTP, which is
// HTTP/1, where timeoutConn is enough.
func abortable(ctx context.Context, url string) (context.Context, context.CancelCauseFunc) {
	if strings.HasPrefix(url, "http:") {
		return ctx, nil
	}
	return context.WithCancelCause(ctx)
}

// traceWrite records how far a request with a small body comes, and calls giveUp, unless that is nil, if
// it is not written within the timeout. Such a body need not be a [body]: before one that is not net/http's own, net/http
// would write the header by itself.
func (r *reach) traceWrite(ctx context.Context, timeout time.Duration, giveUp context.CancelCauseFunc) context.Context {
	var stalled *time.Timer // the hooks of one attempt are called one after the other
	var conn *timeoutConn   // that net/http has got; nil before, and with TLS
	var before int64        // bytes that were sent on it
	left := false           // some of the request, in an earlier try
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { // another one
			switch {
			case !r.connected.Load():
			case conn != nil && conn.sent.Load() == before && !left:
				r.nothingLeft()
			default:
				left = true
			}
		},
		GotConn: func(got httptrace.GotConnInfo) {
			r.kept.Store(got.Reused)
			if conn, _ = got.Conn.(*timeoutConn); conn != nil {
				before = conn.sent.Load()
			}
		},
		WroteHeaders: func() {
			r.connect()
			if giveUp != nil {
				stalled = time.AfterFunc(timeout, func() { giveUp(errStalled) })
			}
		},
		WroteRequest: func(httptrace.WroteRequestInfo) {
			if stalled != nil {
				stalled.Stop()
			}
			r.done()
		},
	})
}
