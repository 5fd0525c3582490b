package remote

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// healthy is how long a stream must live to be no failure though nothing came.
	healthy = 10 * time.Second

	// hearTime is how long requests wait for the server to answer to the GET. Some
	// servers ask what belongs to a call on that stream, and ask nobody without it.
	// Others answer only when they have something to say.
	hearTime = 250 * time.Millisecond
)

// An eventListener reads what the server says outside of calls, on the stream of a GET. A
// server need not offer one. One that did, and broke it off, is asked again.
type eventListener struct {
	t       *transport
	at      *endpoint
	heard   func()                                   // called after each answer to a GET
	message func(text string, tooLong error) bool    // called with what comes; false: nobody wants it any more
	renew   func(ctx context.Context) (renewed bool) // called when the server has forgotten the session

	place resumePoint // in the stream
}

// run reads one stream after the other, for as long as the endpoint is in use.
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
		case status == http.StatusNotFound && l.at.id != "": // no request may notice for long
			if l.renew(ctx) {
				return
			}
		case status != 0 && status < 500:
			l.place.lastID = "" // that may be what it does not like
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

// read reads one stream to its end. It returns the status of the response, 200 only
// with a stream, and zero without a response. The failure is that the server is out
// of reach.
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
	_ = l.place.read(newEvents(resp.Body, l.t.limits.MaxMessage()), l.message) // however it ends, the server is asked again
	return http.StatusOK, nil
}

// soon calls then once: when the function that it returns is called, or after hearTime.
func soon(then func()) func() {
	then = sync.OnceFunc(then)
	timer := time.AfterFunc(hearTime, then)
	return func() {
		timer.Stop()
		then()
	}
}
