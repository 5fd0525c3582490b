package remote

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// healthy is how long a stream without events must live to count as no failure.
	healthy = 10 * time.Second

	// hearTime is how long initialized, and the messages behind it, wait for the server to
	// answer the GET. Some servers send the requests of a call on that stream, and drop
	// them without it, as they do with what they send in reaction to initialized. Others
	// answer the GET only when they have something to send.
	hearTime = 250 * time.Millisecond
)

// An eventListener reads the messages that the server sends outside calls, on the stream
// of a GET. A server need not offer that stream. If it did once, the listener opens it
// again whenever it ends. If it begins before initialized, which some servers refuse, it
// opens the stream again after initialized.
type eventListener struct {
	// Static after construction.
	t       *transport
	at      *endpoint
	message func(text string, tooLong error) bool    // called with each message; returns false at the session's end
	renew   func(ctx context.Context) (renewed bool) // called when the server has forgotten the session
	greeted <-chan struct{}                          // closed when messages may pass; nil: they may
	first   <-chan struct{}                          // closed when the first GET is answered, at the latest after hearTime
	again   chan func()                              // from accepted to run: the next heard

	refused atomic.Bool // the server refused the GET before initialized; run waits for again

	// Owned by run.
	early bool   // begun before initialized, and has no stream yet
	heard func() // called after each answer to a GET
	place resumePoint
}

func (s *serverSession) newListener(at *endpoint) *eventListener {
	l := &eventListener{t: s.t, at: at, message: s.outside(at)}
	l.heard, l.first = soon()
	l.renew = func(ctx context.Context) bool {
		_, f := s.renew(ctx, at)
		return f == nil
	}
	return l
}

// hear begins to listen before initialized. Messages pass when greeted is closed. It returns
// nil if the server gave no session, whose stream the GET could be.
func (s *serverSession) hear(at *endpoint, greeted <-chan struct{}) *eventListener {
	if at.id == "" {
		return nil
	}
	l := s.newListener(at)
	l.early, l.greeted, l.again = true, greeted, make(chan func(), 1)
	if !s.spawn(l.run) {
		l.heard()
	}
	return l
}

// listen begins to listen after initialized, and waits as long as wait.
func (s *serverSession) listen(at *endpoint) {
	l := s.newListener(at)
	if s.spawn(l.run) {
		l.wait(s.ended)
	}
}

// initialized runs when initialized has been posted. The messages behind it wait until the
// server has answered a GET.
func (s *serverSession) initialized() {
	defer s.handshake.isReady()
	at := s.endpoints.current()
	switch l := s.early.Load(); {
	case at.sse:
	case l != nil:
		l.accepted(s.ended)
	default:
		s.listen(at)
	}
}

// wait returns when the server has answered the first GET, at the latest hearTime after that
// was sent, or when over is closed.
func (l *eventListener) wait(over <-chan struct{}) {
	if l == nil {
		return
	}
	select {
	case <-l.first:
	case <-over:
	}
}

// accepted is called when the server has accepted initialized. If it refused the GET before,
// accepted waits for the answer to the next one as wait does. Nobody waits again for a server
// that has not answered.
func (l *eventListener) accepted(over <-chan struct{}) {
	if l == nil {
		return
	}
	heard, answered := soon()
	if !l.refused.Load() {
		heard()
	}
	select {
	case l.again <- heard:
	default: // it was called before
		heard()
	}
	select {
	case <-answered:
	case <-over:
	}
}

// run reads one stream after the other while the endpoint is in use.
func (l *eventListener) run() {
	defer func() { l.heard() }()
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
			worked, l.early = true, false
		case l.refused.Load():
			select {
			case l.heard = <-l.again:
				l.early = false
				continue
			case <-ctx.Done():
				return
			}
		case !worked && (status == 0 || !refused(status).passing()) || status == http.StatusMethodNotAllowed:
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
	ctx, cancel := context.WithCancel(ctx) // ends what get adds to it
	defer cancel()
	resp, f := l.t.get(ctx, l.at, l.place.lastID)
	l.refused.Store(l.early && (f != nil || tooEarly(resp.StatusCode)))
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
	if l.greeted != nil {
		select {
		case <-l.greeted:
		case <-ctx.Done():
		}
	}
	_ = l.place.read(newEvents(resp.Body, l.t.limits.MaxMessage()), l.message) // run opens it again after any error
	return http.StatusOK, nil
}

// tooEarly reports whether a server that answers a GET with this status before initialized may
// open the stream afterwards.
func tooEarly(status int) bool {
	return status != http.StatusOK && status != http.StatusMethodNotAllowed && !isRefusal(status)
}

// soon returns a function, and a channel that is closed when the function is called, at the
// latest after hearTime.
func soon() (heard func(), answered <-chan struct{}) {
	done := make(chan struct{})
	end := sync.OnceFunc(func() { close(done) })
	timer := time.AfterFunc(hearTime, end)
	return func() {
		timer.Stop()
		end()
	}, done
}
