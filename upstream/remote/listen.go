package remote

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// healthy is how long a stream lives that is no failure though nothing came.
const healthy = 10 * time.Second

// hearTime is how long requests wait for the server to answer to the GET. Some
// servers ask what belongs to a call on that stream, and without it nobody; others
// answer to it when they have something to say.
const hearTime = 250 * time.Millisecond

// hear begins to listen, and calls then once when the server has answered to that,
// or within hearTime.
func (s *session) hear(p *peer, then func()) {
	then = sync.OnceFunc(then)
	timer := time.AfterFunc(hearTime, then)
	heard := func() {
		timer.Stop()
		then()
	}
	if !s.spawn(func() { s.listen(p, heard) }) {
		heard()
	}
}

// listen reads what the server says outside of calls, for as long as p lives. A
// server need not offer that; one that did and broke off is asked again. heard is
// called after each answer.
func (s *session) listen(p *peer, heard func()) {
	defer heard()
	pause := backoff.ExponentialBackOff{
		InitialInterval: 500 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 30 * time.Second,
	}
	l := listener{s: s, p: p, heard: heard}
	for worked := false; ; {
		began := time.Now()
		status, f := l.listen(p.ctx)
		if worked && f != nil && p.ctx.Err() == nil {
			s.server.tally.lose(f)
		}
		switch {
		case p.ctx.Err() != nil:
			return
		case status == http.StatusOK:
			worked = true
		case !worked || status == http.StatusMethodNotAllowed:
			s.log.Debug("upstream offers no stream outside of calls", "status", status)
			return
		case status == http.StatusNotFound && p.id != "": // no request may notice for long
			if _, f := s.renew(p.ctx, p); f == nil {
				return
			}
		case status != 0 && status < 500:
			l.lastID = "" // that may be what it does not like
		}
		if l.progress || time.Since(began) > healthy {
			pause.Reset()
		}
		next := pause.NextBackOff()
		if l.progress {
			next = wait(l.retry, next)
		}
		if sleep(p.ctx, max(next, l.retry)) != nil {
			return
		}
	}
}

// A listener reads one stream after the other.
type listener struct {
	s        *session
	p        *peer
	heard    func()
	lastID   string
	retry    time.Duration // as the server wants it; zero if it did not say
	progress bool          // something came on the last stream
}

// listen reads one stream to its end. It returns the status of the response, 200
// only with a stream; zero if there was no response. The failure tells that the server
// is out of reach.
func (l *listener) listen(ctx context.Context) (status int, f *failure) {
	l.progress = false
	resp, f := l.s.server.get(ctx, l.p, l.lastID)
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
	events := newEvents(resp.Body, l.s.server.Limits.MaxMessage())
	for {
		ev, err := events.next()
		if err != nil && !errors.Is(err, errEventTooLong) {
			return http.StatusOK, nil
		}
		if ev.retry > 0 {
			l.retry = ev.retry
		}
		if ev.id != "" {
			l.lastID, l.progress = ev.id, true
		}
		if err == nil && (ev.kind != "" || ev.data == "") {
			continue
		}
		l.progress = true
		if !l.s.unrelated(ev.data, err, l.p) {
			return http.StatusOK, nil
		}
	}
}

// unrelated brings on what came outside of a call's own response, which is how
// all comes on HTTP+SSE. It reports whether the session still lives.
func (s *session) unrelated(text string, err error, p *peer) bool {
	if err != nil {
		return s.put(received{err: &jsonrpc.InvalidError{Code: jsonrpc.CodeInvalidRequest, Reason: "message too long"}})
	}
	m, err := s.server.Limits.Decode([]byte(text))
	if err != nil {
		bad, _ := errors.AsType[*jsonrpc.InvalidError](err)
		if c := s.find(bad.ID); c != nil && bad.Reply {
			s.failCall(c, invalid(bad.Reason))
			return true
		}
		return s.put(received{err: bad})
	}
	elements := m.Batch
	if elements == nil {
		elements = []*jsonrpc.Message{m}
	}
	for _, e := range elements {
		if e.IsResponse() {
			if c := s.find(e.ID); c != nil {
				s.reply(c, e)
			} else {
				s.log.Debug("late response dropped", "id", e.ID.String())
			}
			continue
		}
		if !s.pass(e, p) {
			return false
		}
	}
	return true
}

// find returns the call that a response with that id answers, nil if there is
// none.
func (s *session) find(id jsonrpc.ID) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.calls[id]; c != nil {
		return c
	}
	n, ok := id.Answered()
	if !ok {
		return nil
	}
	return s.calls[jsonrpc.IntID(n)]
}
