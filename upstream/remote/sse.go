package remote

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxEndpoint bounds the URL in an endpoint event, in bytes.
const maxEndpoint = 4096

// An sseStream is a session on HTTP+SSE: it carries all messages from the server.
type sseStream struct {
	body   io.ReadCloser
	events *events
	url    string // where messages are posted
}

// openSSE opens the stream of a session. Its first event has the URL to post messages to.
func openSSE(ctx context.Context, t *transport, at *endpoint) (*sseStream, *failure) {
	resp, f := t.get(ctx, at, "")
	if f != nil {
		return nil, f
	}
	switch {
	case resp.StatusCode != http.StatusOK:
		discard(resp)
		return nil, t.refusedBy(resp)
	case !isStream(resp):
		discard(resp)
		return nil, invalid("not an event stream")
	}
	s := &sseStream{body: resp.Body, events: newEvents(resp.Body, t.limits.MaxMessage())}
	ev, err := s.events.next()
	if err == nil && ev.kind == "endpoint" && len(ev.data) <= maxEndpoint {
		s.url = endpointURL(t.url, ev.data)
	}
	if s.url == "" {
		s.body.Close()
		return nil, invalid("no endpoint event")
	}
	return s, nil
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

// read calls message with each message until message returns false, and then returns nil.
// It returns an error when the stream ends.
func (s *sseStream) read(message func(text string, tooLong error) bool) error {
	defer s.body.Close()
	return new(resumePoint).read(s.events, message)
}

// runSSE posts a call, and waits for its reply on the session's stream.
func (s *serverSession) runSSE(c *httpCall) {
	f := s.t.deliver(c.ctx, s.endpoints.current(), c.m, nil, c.reach)
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
