package remote

import (
	"context"
	"crypto/tls"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A reach records how far a request came.
type reach struct {
	connected atomic.Bool  // it has a connection, so some of it may have been sent
	delivered *atomic.Bool // set with connected; the session's, nil for requests that do not count there

	// Of this attempt, owned by the goroutine that sends: its connection.
	kept     bool         // it has served others
	http2    bool         // its bytes are of several requests
	conn     *timeoutConn // nil if there is none, or it is not ours
	before   int64        // bytes that were sent on it
	farewell int64        // bytes that may follow without any of the request: an alert of TLS

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
	r.kept, r.http2, r.conn = false, false, nil
	return true
}

// maxAlert bounds the bytes of the TLS alert with which we close a connection. A request has more.
const maxAlert = 96

// got records the connection of this attempt.
func (r *reach) got(c httptrace.GotConnInfo) {
	r.kept, r.http2, r.farewell = c.Reused, false, 0
	conn := c.Conn
	if secure, ok := conn.(*tls.Conn); ok {
		r.http2 = secure.ConnectionState().NegotiatedProtocol == "h2"
		conn, r.farewell = secure.NetConn(), maxAlert
	}
	if r.conn, _ = conn.(*timeoutConn); r.conn != nil {
		r.before = r.conn.sent.Load()
	}
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

// notTaken reports whether the server took nothing of the request in this attempt, which failed with err, so
// that it may be sent again after a pause. On a new connection the reason may last.
func (r *reach) notTaken(err error) (pause time.Duration, again bool) {
	switch {
	case !r.connected.Load():
		return 0, r.kept
	case r.http2:
		again = notProcessed(err)
		pause = againAfter
	default: // net/http says that it has written what is in its buffer
		again = r.kept && r.conn != nil && r.conn.sent.Load()-r.before <= r.farewell
	}
	if again {
		r.connected.Store(false)
	}
	return pause, again
}

// notProcessed reports whether err of net/http says that the server has not processed a request on HTTP/2: it refused
// the stream, or closed the connection before it (RFC 9113, 8.7). There are no types for that.
func notProcessed(err error) bool {
	text := err.Error()
	return strings.Contains(text, "cannot retry err [") &&
		(strings.Contains(text, "; REFUSED_STREAM") || strings.Contains(text, "graceful shutdown GOAWAY"))
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

// trace records how far a request without a body comes. net/http sends it again, on a new connection, as long as
// a server resets its stream on HTTP/2; after a few times trace calls giveUp, unless that is nil.
func (r *reach) trace(ctx context.Context, giveUp context.CancelCauseFunc) context.Context {
	dialled := 0
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		r.connect()
		if secure, ok := got.Conn.(*tls.Conn); !ok || got.Reused || secure.ConnectionState().NegotiatedProtocol != "h2" {
			return
		}
		if dialled++; dialled > maxAgain+1 && giveUp != nil {
			giveUp(errReset)
		}
	}})
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
// it is not written within the timeout. Small bodies are no [body], because net/http would then write the header and the
// body separately.
func (r *reach) traceWrite(ctx context.Context, timeout time.Duration, giveUp context.CancelCauseFunc) context.Context {
	var stalled *time.Timer // the hooks of one attempt are called one after the other
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: r.got,
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
