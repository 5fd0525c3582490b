package remote

import (
	"context"
	"net/http"
	"net/url"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxEndpoint bounds the URL in an endpoint event, in bytes.
const maxEndpoint = 4096

// attach makes the session one of HTTP+SSE, where one stream carries all messages from the
// server. ctx bounds only how long that takes.
func (s *serverSession) attach(ctx context.Context) *failure {
	streamCtx, cancel := context.WithCancel(s.work) // the stream outlives ctx
	defer context.AfterFunc(ctx, cancel)()
	resp, f := s.t.get(streamCtx, s.endpoints.current(), "")
	if f != nil {
		cancel()
		return f
	}
	stream := newEvents(resp.Body, s.t.limits.MaxMessage())
	at, f := s.sseEndpoint(resp, stream)
	if f != nil {
		discard(resp)
		cancel()
		return f
	}
	s.endpoints.move(at)
	read := func() {
		defer resp.Body.Close()
		if end := new(resumePoint).read(stream, s.outside(at)); end != nil { // the stream's end is the session's
			s.failed(dropped(s.work, end))
		}
	}
	if !s.spawn(read) {
		resp.Body.Close()
	}
	return nil
}

// sseEndpoint returns the endpoint that the first event of a stream names.
func (s *serverSession) sseEndpoint(resp *http.Response, stream *events) (*endpoint, *failure) {
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, s.t.refusedBy(resp)
	case !isStream(resp):
		return nil, invalid("not an event stream")
	}
	ev, err := stream.next()
	if err != nil || ev.kind != "endpoint" || len(ev.data) > maxEndpoint {
		return nil, invalid("no endpoint event")
	}
	url := endpointURL(s.t.url, ev.data)
	if url == "" {
		return nil, invalid("no endpoint event")
	}
	at := s.newEndpoint(url)
	at.sse = true
	return at, nil
}

// endpointURL returns the URL of an endpoint event, "" if it is not on the configured
// origin: credentials are sent there.
func endpointURL(server, endpoint string) string {
	base, err := url.Parse(server)
	if err != nil {
		return ""
	}
	u, err := base.Parse(endpoint)
	if err != nil || u.Scheme != base.Scheme || u.Host != base.Host {
		return ""
	}
	u.User = base.User
	return u.String()
}

// runSSE posts a call, and waits for its reply on the session's stream. A server that does not know the endpoint any
// more has forgotten the session, which then ends, though its stream is open: the next call begins another one.
func (s *serverSession) runSSE(c *httpCall) {
	f := s.t.deliver(c.ctx, s.endpoints.current(), c.m, nil, c.reach)
	switch {
	case f == nil:
		s.calls.accept(c)
		select {
		case <-c.taken:
		case <-c.ctx.Done():
		}
	case c.m.Method == mcp.MethodInitialize:
		s.failed(f)
	case f.status == http.StatusNotFound:
		s.failed(&failure{cause: f.cause, err: errSessionLost})
	default:
		s.failCall(c, f)
	}
}
