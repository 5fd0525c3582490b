package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	typeJSON = "application/json"
	typeSSE  = "text/event-stream"

	// maxRefusal bounds the bytes that are read of a response with an error status, and
	// of an unwanted one, which is read so that its connection can be reused.
	maxRefusal = 64 << 10

	// maxAgain is how often a request is sent once more because the server did not take it: it had closed
	// the kept connection, or refused the stream. againAfter is the pause before that on HTTP/2.
	maxAgain   = 3
	againAfter = 100 * time.Millisecond
)

// A transport sends HTTP requests to one server. All sessions share it.
type transport struct {
	// Static after construction.
	name, url    string // of the server
	sse          bool   // only HTTP+SSE is spoken
	tls          *tls.Config
	client       *http.Client
	headers      headers
	forward      []string    // names of headers of clients
	credentials  Credentials // nil: none
	limits       jsonrpc.Limits
	writeTimeout time.Duration
	startTimeout time.Duration
	stopGrace    time.Duration
	slots        *semaphore.Weighted // of requests in flight, of all sessions; nil: no bound

	failures failureLog
	sessions atomic.Int64 // open ones
	waiting  atomic.Int64 // requests of clients that wait for a slot
	old      atomic.Bool  // the server turned out to have only HTTP+SSE
	doubted  atomic.Int64 // when doubt last returned true, in Unix nanoseconds; zero: never
	mute     atomic.Int64 // probes that were refused without an answer since the server answered last
}

// join counts a session in.
func (t *transport) join() { t.sessions.Add(1) }

// leave counts a session out. After the last one it logs what is left to be logged, and
// closes the idle connections.
func (t *transport) leave() {
	if t.sessions.Add(-1) == 0 {
		t.failures.flush()
		t.client.CloseIdleConnections()
	}
}

// takesSlot reports whether a request counts for MaxConcurrent. The cancellation of a task
// must not wait for calls, and calls must not wait for a subscription, which lives as
// long as its client.
func takesSlot(method string) bool {
	return method != mcp.MethodTasksCancel && method != mcp.MethodListen
}

// acquire waits until a request may be sent, in the order of the calls to it. It returns
// false if ctx is done first. release frees the slot, and may be called repeatedly.
func (t *transport) acquire(ctx context.Context, method string) (release func(), ok bool) {
	if t.slots == nil || !takesSlot(method) {
		return func() {}, true
	}
	if !t.slots.TryAcquire(1) {
		if !strings.HasSuffix(method, "/list") { // which is no request of a client, but of its session
			t.waiting.Add(1)
			defer t.waiting.Add(-1)
		}
		if t.slots.Acquire(ctx, 1) != nil {
			return nil, false
		}
	}
	return sync.OnceFunc(func() { t.slots.Release(1) }), true
}

// An endpoint is the URL that messages are posted to, and the server's session there. In
// the modern era there are no sessions.
type endpoint struct {
	// Static once a request other than initialize may use it.
	url     string
	modern  bool   // streams are not resumed
	sse     bool   // of HTTP+SSE: replies come on the stream that is the session
	id      string // the session's; "" if the server gave none
	version string // negotiated; "" if unknown

	ctx    context.Context // done: the server has forgotten the session, or ours ends
	cancel context.CancelFunc

	listened atomic.Bool // ctx has ended the stream of a GET
}

// post sends a message, with additional headers or nil. The caller closes the response's
// body.
func (t *transport) post(ctx context.Context, at *endpoint, m *jsonrpc.Message, own http.Header, r *reach) (*http.Response, *failure) {
	ctx, giveUp := abortable(ctx, at.url)
	text := m.Text()
	small := len(text) <= writeChunk
	if small {
		ctx = r.traceWrite(ctx, t.writeTimeout, giveUp)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.url, bytes.NewReader(text))
	if err != nil {
		return nil, broken(ctx, err, false)
	}
	if !small {
		req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: r.got}))
		req.GetBody = func() (io.ReadCloser, error) {
			return &body{r: bytes.NewReader(text), of: r, giveUp: giveUp, timeout: t.writeTimeout}, nil
		}
		req.Body, _ = req.GetBody()
	}
	header := http.Header{"Content-Type": contentJSON, "Accept": acceptBoth}
	maps.Copy(header, own)
	return t.do(req, at, header, r)
}

// deliver posts a message that has no answer.
func (t *transport) deliver(ctx context.Context, at *endpoint, m *jsonrpc.Message, own http.Header, r *reach) *failure {
	ctx, cancel := context.WithCancel(ctx) // ends what post adds to it
	defer cancel()
	resp, f := t.post(ctx, at, m, own, r)
	if f != nil {
		return f
	}
	defer discard(resp)
	if !succeeded(resp) {
		return t.refusedBy(resp)
	}
	return nil
}

// Values of headers that every POST has. They are not changed.
var contentJSON, acceptBoth = []string{typeJSON}, []string{typeJSON + ", " + typeSSE}

// A body is the body of a request if it is large. It records how far the request came: net/http reads from it once there
// is a connection. If nothing is read for the timeout it calls giveUp, unless that is nil: on HTTP/2 a server can stop
// reading one request while the connection is fine, which timeoutConn cannot see.
type body struct {
	r       *bytes.Reader
	of      *reach
	giveUp  context.CancelCauseFunc
	timeout time.Duration

	mu      sync.Mutex // Close may run while Read does; guards the fields below
	stalled *time.Timer
	closed  bool
}

// errClosed fails a Read after Close. On HTTP/2 net/http reads a body that it has closed, if the connection was lost
// before the first try began.
var errClosed = errors.New("the body is closed")

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if !b.watch() {
		return 0, errClosed
	}
	return b.r.Read(p)
}

// watch gives the rest of the body its time, from the first Read on. It returns false after Close.
func (b *body) watch() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return false
	case b.giveUp == nil:
		b.of.connect()
	case b.stalled == nil:
		b.of.connect()
		b.stalled = time.AfterFunc(b.timeout, func() { b.giveUp(errStalled) })
	default:
		b.stalled.Reset(b.timeout)
	}
	return true
}

// Close implements io.Closer. net/http calls it when the request was written or given up.
func (b *body) Close() error {
	b.of.done()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.stalled != nil {
		b.stalled.Stop()
	}
	return nil
}

// get opens an event stream, after the event lastID unless that is "". The caller closes
// the response's body.
func (t *transport) get(ctx context.Context, at *endpoint, lastID string) (*http.Response, *failure) {
	own := http.Header{"Accept": {typeSSE}}
	if lastID != "" {
		own.Set(headerResume, lastID)
	}
	return t.bare(ctx, http.MethodGet, at, own)
}

// bare sends a request without a body.
func (t *transport) bare(ctx context.Context, method string, at *endpoint, own http.Header) (*http.Response, *failure) {
	r := newReach(nil)
	ctx, giveUp := abortable(ctx, at.url)
	req, err := http.NewRequestWithContext(r.trace(ctx, giveUp), method, at.url, nil)
	if err != nil {
		return nil, broken(ctx, err, false)
	}
	return t.do(req, at, own, r)
}

// do sends a request, again while it is refused and there are better credentials.
func (t *transport) do(req *http.Request, at *endpoint, own http.Header, r *reach) (*http.Response, *failure) {
	for round := 0; ; round++ {
		resp, f := t.send(req, at, own, r)
		if f != nil {
			return nil, f
		}
		if isRefusal(resp.StatusCode) && t.credentials != nil {
			r.refused()
		}
		again, f := t.proveAnew(req.Context(), resp, req.Header, round)
		switch {
		case f != nil:
			discardSoon(resp)
			return nil, f
		case !again:
			return resp, nil
		}
		discardSoon(resp)
		if req.GetBody != nil {
			req = rewound(req)
		}
	}
}

// send sends a request once. Credentials and the headers of the protocol override the
// headers of the configuration.
func (t *transport) send(req *http.Request, at *endpoint, own http.Header, r *reach) (*http.Response, *failure) {
	header, f := t.header(req.Context(), r.connected.Load())
	if f != nil {
		return nil, f
	}
	req.Host = header.Get("Host")
	header.Del("Host")
	header.Set("Accept-Encoding", "identity") // without it any coding would do (RFC 9110, 12.5.3)
	maps.Copy(header, own)
	if at.id != "" {
		header.Set(headerSession, at.id)
	}
	if at.version != "" {
		header.Set(headerVersion, at.version)
	}
	req.Header = header
	resp, err := t.attempt(req, r)
	for n := 1; err != nil; n++ {
		pause, again := r.notTaken(err)
		if !again || n > maxAgain || req.GetBody == nil || sleep(req.Context(), pause) != nil {
			return nil, broken(req.Context(), err, r.connected.Load())
		}
		req = rewound(req)
		resp, err = t.attempt(req, r)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols { // unasked, and ctx does not end a Read of its body
		resp.Body.Close()
		return nil, refused(resp.StatusCode)
	}
	if succeeded(resp) {
		t.failures.accepted()
	}
	return resp, nil
}

// attempt sends a request, unless that was taken back.
func (t *transport) attempt(req *http.Request, r *reach) (*http.Response, error) {
	if !r.begin() {
		return nil, errCancelled
	}
	return t.client.Do(req)
}

// rewound returns a request to be sent once more.
func rewound(req *http.Request) *http.Request {
	req = req.Clone(req.Context())
	req.Body, _ = req.GetBody()
	return req
}

// mediaType returns the type of a response's body, "" if it has none.
func mediaType(resp *http.Response) string {
	if value := resp.Header.Get("Content-Type"); value == typeJSON || value == typeSSE { // the usual ones
		return value
	}
	t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return t
}

// succeeded reports whether the status of a response is a success.
func succeeded(resp *http.Response) bool { return resp.StatusCode/100 == 2 }

// encoded reports whether a body is compressed, though we do not accept that.
func encoded(resp *http.Response) bool {
	encoding := resp.Header.Get("Content-Encoding")
	return encoding != "" && encoding != "identity"
}

// isStream reports whether a response is an event stream.
func isStream(resp *http.Response) bool {
	return resp.StatusCode == http.StatusOK && mediaType(resp) == typeSSE && !encoded(resp)
}

// discardSoon is discard with a time limit.
func discardSoon(resp *http.Response) {
	t := time.AfterFunc(lingering, func() { resp.Body.Close() })
	defer t.Stop()
	discard(resp)
}

// discard closes a body. It first reads it to the end, if that is near, so that the
// connection can be reused.
func discard(resp *http.Response) {
	if mediaType(resp) != typeSSE {
		_, _ = io.CopyN(io.Discard, resp.Body, maxRefusal)
	}
	resp.Body.Close()
}
