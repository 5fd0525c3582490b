package remote

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// healthy is how long a stream without events must live to count as no failure.
	healthy = 10 * time.Second

	// hearTime is how long calls wait for the server to answer the GET. Some servers
	// send the requests of a call on that stream, and drop them without it. Others answer
	// the GET only when they have something to send.
	hearTime = 250 * time.Millisecond
)

// An eventListener reads the messages that the server sends outside calls, on the stream
// of a GET. A server need not offer that stream. If it did once, the listener opens it
// again whenever it ends.
type eventListener struct {
	t       *transport
	at      *endpoint
	heard   func()                                   // called after each answer to a GET
	message func(text string, tooLong error) bool    // called with each message; returns false at the session's end
	renew   func(ctx context.Context) (renewed bool) // called when the server has forgotten the session

	place resumePoint // in the stream
}

// run reads one stream after the other while the endpoint is in use.
func (l *eventListener) run() {
	defer l.heard()
	ctx := l.at.ctx
	pause := backoff.ExponentialBackOff{
		InitialInterval: 500 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 30 * time.Second,
	}
	for worked := false; ; {
		began := time.Now()
		status, f := l.read(ctx)
		if worked && f != nil && ctx.Err() == nil {
			l.t.failures.lose(f)
		}
		switch {
		case ctx.Err() != nil:
			l.at.listened.Store(true)
			return
		case status == http.StatusOK:
			worked = true
		case !worked || status == http.StatusMethodNotAllowed:
			l.t.failures.log.Debug("upstream offers no stream outside calls", "status", status)
			return
		case status == http.StatusNotFound && l.at.id != "": // calls would notice only when they are posted
			if l.renew(ctx) {
				return
			}
		case status != 0 && status < 500:
			l.place.lastID = "" // the server may have refused because of it
		}
		if l.place.came || time.Since(began) > healthy {
			pause.Reset()
		}
		next := pause.NextBackOff()
		if l.place.came {
			next = l.place.wait(next)
		}
		if sleep(ctx, max(next, l.place.retry)) != nil {
			return
		}
	}
}

// read reads one stream to its end. It returns the status of the response: 200 only if it
// was a stream, zero if there was none. The failure means that the server is unreachable.
func (l *eventListener) read(ctx context.Context) (status int, f *failure) {
	l.place.came = false
	resp, f := l.t.get(ctx, l.at, l.place.lastID)
	l.heard()
	if f != nil {
		return 0, f
	}
	switch {
	case resp.StatusCode >= 500:
		discard(resp)
		return resp.StatusCode, refused(resp.StatusCode)
	case resp.StatusCode != http.StatusOK:
		discard(resp)
		return resp.StatusCode, nil
	case !isStream(resp):
		discard(resp)
		return http.StatusNotAcceptable, nil
	}
	defer resp.Body.Close()
	_ = l.place.read(newEvents(resp.Body, l.t.limits.MaxMessage()), l.message) // run opens it again after any error
	return http.StatusOK, nil
}

// soon calls then once: when the returned function is called, or after hearTime.
func soon(then func()) func() {
	then = sync.OnceFunc(then)
	timer := time.AfterFunc(hearTime, then)
	return func() {
		timer.Stop()
		then()
	}
}
