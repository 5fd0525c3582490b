package remote

import (
	"bytes"
	"context"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerResume  = "Last-Event-Id"
	headerMethod  = "Mcp-Method"
	headerName    = "Mcp-Name"
	headerParam   = "Mcp-Param-" // and a name that the server gave

	typeJSON = "application/json"
	typeSSE  = "text/event-stream"

	// maxRefusal bounds the bytes of a response with an error status, and of
	// what is read of one that nobody wants so that its connection can be reused.
	maxRefusal = 64 << 10
)

// A peer is the session as the server knows it. A session that the server has
// forgotten goes on with another peer. In the modern era it is the server itself,
// which knows of no session.
type peer struct {
	// Static once a request other than initialize may use it.
	url     string // where messages are posted
	modern  bool   // each request is alone: streams are not resumed
	legacy  bool   // HTTP+SSE: answers come on the session's stream
	id      string // the session's; "" if the server gave none
	version string // negotiated; "" if unknown

	ctx    context.Context // done: the peer is lost, or the session ends
	cancel context.CancelFunc
}

// A reach notes how far a request came.
type reach struct {
	connected atomic.Bool   // something may have been sent from here on
	delivered *atomic.Bool  // the session's, set with it; nil for what does not count there
	written   chan struct{} // closed when the whole request was, or will not be
	once      sync.Once
}

func newReach(delivered *atomic.Bool) *reach {
	return &reach{delivered: delivered, written: make(chan struct{})}
}

func (r *reach) connect() {
	r.connected.Store(true)
	if r.delivered != nil {
		r.delivered.Store(true)
	}
}

func (r *reach) done() { r.once.Do(func() { close(r.written) }) }

func (r *reach) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn:      func(httptrace.GotConnInfo) { r.connect() },
		WroteRequest: func(httptrace.WroteRequestInfo) { r.done() },
	})
}

// post sends a message with headers of its own, nil for none but the transport's.
// The caller closes the response's body.
func (s *Server) post(ctx context.Context, p *peer, m *jsonrpc.Message, own http.Header, r *reach) (*http.Response, *failure) {
	ctx, giveUp := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(r.trace(ctx), http.MethodPost, p.url, nil)
	if err != nil {
		giveUp(nil)
		return nil, broken(ctx, err, false)
	}
	text, timeout := m.Append(nil), s.writeTimeout()
	req.ContentLength = int64(len(text))
	req.GetBody = func() (io.ReadCloser, error) {
		stalled := time.AfterFunc(timeout, func() { giveUp(errStalled) })
		stalled.Stop() // until the first Read
		return &body{r: bytes.NewReader(text), stalled: stalled, timeout: timeout}, nil
	}
	req.Body, _ = req.GetBody()
	header := http.Header{"Content-Type": {typeJSON}, "Accept": {typeJSON + ", " + typeSSE}}
	maps.Copy(header, own)
	return s.do(req, p, header, r)
}

// deliver posts a message that has no answer.
func (s *Server) deliver(ctx context.Context, p *peer, m *jsonrpc.Message, own http.Header) *failure {
	resp, f := s.post(ctx, p, m, own, newReach(nil))
	if f != nil {
		return f
	}
	defer discard(resp)
	if !succeeded(resp) {
		return refusedBy(resp)
	}
	return nil
}

// A body is that of a request. It gives the request up when no more of it is
// wanted for so long: on HTTP/2 a server can refuse to read one request while its
// connection is fine, which conn cannot see.
type body struct {
	r       *bytes.Reader
	stalled *time.Timer
	timeout time.Duration
	closed  atomic.Bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.stalled.Reset(b.timeout)
	if b.closed.Load() { // Close may be called at the same time
		b.stalled.Stop()
	}
	return b.r.Read(p)
}

// Close implements io.Closer. net/http calls it when the request is written or
// given up.
func (b *body) Close() error {
	b.closed.Store(true)
	b.stalled.Stop()
	return nil
}

// get opens an event stream, behind the event lastID if that is not "". The
// caller closes the response's body.
func (s *Server) get(ctx context.Context, p *peer, lastID string) (*http.Response, *failure) {
	r := newReach(nil)
	req, err := http.NewRequestWithContext(r.trace(ctx), http.MethodGet, p.url, nil)
	if err != nil {
		return nil, broken(ctx, err, false)
	}
	own := http.Header{"Accept": {typeSSE}}
	if lastID != "" {
		own.Set(headerResume, lastID)
	}
	return s.do(req, p, own, r)
}

// do sends a request with the headers of the config and, winning over them,
// those of the protocol.
func (s *Server) do(req *http.Request, p *peer, own http.Header, r *reach) (*http.Response, *failure) {
	header, err := s.header()
	if err != nil {
		return nil, &failure{cause: "bad header file", phase: jsonrpc.NotSent, fixed: true, err: err}
	}
	req.Host = header.Get("Host")
	header.Del("Host")
	maps.DeleteFunc(header, func(name string, _ []string) bool { return isProtocols(name) })
	maps.Copy(header, own)
	if p.id != "" {
		header.Set(headerSession, p.id)
	}
	if p.version != "" {
		header.Set(headerVersion, p.version)
	}
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "mcp-proxy")
	}
	req.Header = header
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, broken(req.Context(), err, r.connected.Load())
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // nobody asked; no ctx ends a Read from it
		resp.Body.Close()
		return nil, refused(resp.StatusCode)
	}
	s.noteStatus(resp)
	return resp, nil
}

// noteStatus keeps what a response says about the credentials.
func (s *Server) noteStatus(resp *http.Response) {
	switch {
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		s.files.refused()
	case succeeded(resp):
		s.tally.accepted()
	}
}

// isProtocols reports whether a header, its name in canonical form, says something
// that only the one who sends the request can know: a configuration cannot set it.
func isProtocols(name string) bool {
	switch name {
	case headerSession, headerVersion, headerResume, headerMethod, headerName, "Accept-Encoding":
		return true
	}
	return strings.HasPrefix(name, headerParam)
}

// mediaType returns the type of a response's body, "" if it has none.
func mediaType(resp *http.Response) string {
	t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return t
}

// succeeded reports whether the status of a response says that all went well.
func succeeded(resp *http.Response) bool { return resp.StatusCode/100 == 2 }

// encoded reports whether a body is compressed, which nobody asked for.
func encoded(resp *http.Response) bool {
	encoding := resp.Header.Get("Content-Encoding")
	return encoding != "" && encoding != "identity"
}

// isStream reports whether a response is an event stream.
func isStream(resp *http.Response) bool {
	return resp.StatusCode == http.StatusOK && mediaType(resp) == typeSSE && !encoded(resp)
}

// discard reads a body that nobody wants to its end, if that is near, so that
// its connection can be used again, and closes it.
func discard(resp *http.Response) {
	if mediaType(resp) != typeSSE {
		_, _ = io.CopyN(io.Discard, resp.Body, maxRefusal)
	}
	resp.Body.Close()
}
