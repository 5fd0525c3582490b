package remote

import (
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"

	"context"
	"errors"
	"net/http"
	"net/url"
)

// maxEndpoint bounds the bytes of the URL that a server of 2024-11-05 gives.
const maxEndpoint = 4096

// openLegacy begins a session that is HTTP+SSE from the start.
func (s *session) openLegacy() {
	if f := s.attach(s.work); f != nil {
		s.failed(f)
		return
	}
	s.open()
}

// becomeLegacy reports whether the server speaks HTTP+SSE, which then is how the
// session goes on.
func (s *session) becomeLegacy(ctx context.Context) bool { return s.attach(ctx) == nil }

// attach opens the stream that is the session in HTTP+SSE. Its first event says
// where messages are posted.
func (s *session) attach(ctx context.Context) *failure {
	// The stream outlives ctx, which bounds how long it takes to begin.
	streamCtx, cancel := context.WithCancel(s.work)
	unhook := context.AfterFunc(ctx, cancel)
	defer unhook()
	resp, f := s.server.get(streamCtx, s.current(), "")
	if f == nil {
		f = s.attachTo(resp)
	}
	if f != nil {
		cancel()
	}
	return f
}

func (s *session) attachTo(resp *http.Response) *failure {
	switch {
	case resp.StatusCode != http.StatusOK:
		discard(resp)
		return refusedBy(resp)
	case !isStream(resp):
		discard(resp)
		return invalid("not an event stream")
	}
	events := newEvents(resp.Body, s.server.Limits.MaxMessage())
	ev, err := events.next()
	endpoint, ok := s.endpoint(ev)
	if err != nil || !ok {
		resp.Body.Close()
		return invalid("no endpoint event")
	}
	p := s.newPeer(endpoint)
	p.legacy = true
	s.mu.Lock()
	s.peer = p
	s.mu.Unlock()
	if !s.spawn(func() { s.readLegacy(resp, events, p) }) {
		resp.Body.Close()
	}
	return nil
}

// endpoint returns the URL of an endpoint event. It must be of the server that
// was configured: credentials go there.
func (s *session) endpoint(ev event) (string, bool) {
	base, err := url.Parse(s.server.URL)
	if err != nil || ev.kind != "endpoint" || len(ev.data) > maxEndpoint {
		return "", false
	}
	u, err := base.Parse(ev.data)
	if err != nil || u.Scheme != base.Scheme || u.Host != base.Host {
		return "", false
	}
	u.User = base.User
	return u.String(), true
}

// readLegacy reads the stream that is the session. Its end is the session's.
func (s *session) readLegacy(resp *http.Response, events *events, p *peer) {
	defer resp.Body.Close()
	for {
		ev, err := events.next()
		if err != nil && !errors.Is(err, errEventTooLong) {
			s.failed(dropped(s.work, err))
			return
		}
		if err == nil && (ev.kind != "" || ev.data == "") {
			continue
		}
		if !s.unrelated(ev.data, err, p) {
			return
		}
	}
}

// runLegacy posts a call. Its reply comes on the session's stream.
func (s *session) runLegacy(c *call) {
	f := s.deliverCall(c)
	switch {
	case f == nil:
		select {
		case <-c.taken:
		case <-c.ctx.Done():
		}
	case c.m.Method == mcp.MethodInitialize:
		s.failed(f)
	default:
		s.failCall(c, f)
	}
}

func (s *session) deliverCall(c *call) *failure {
	resp, f := s.server.post(c.ctx, s.current(), c.m, nil, c.reach)
	if f != nil {
		return f
	}
	defer discard(resp)
	if !succeeded(resp) {
		return refusedBy(resp)
	}
	return nil
}
