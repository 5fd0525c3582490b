package frontend

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A relay passes requests on to other replicas. A nil relay has none.
type relay struct {
	replicas  Replicas
	open      *openSessions
	directory *directory
	bodies    *bodies
	buffers   buffers
	found     lookups

	mu    sync.Mutex // guards the fields below
	posts int        // that are passed on
	some  bool       // some were
}

func newRelay(replicas Replicas, open *openSessions, bodies *bodies) *relay {
	return &relay{replicas: replicas, open: open, directory: open.directory, bodies: bodies}
}

// quiet is how long nothing was passed on when linger returns: who was told that sessions are elsewhere
// may not have read it yet.
const quiet = 300 * time.Millisecond

// linger waits until no POST is being passed on, and none was for a moment, or ctx ends.
func (l *relay) linger(ctx context.Context) {
	if l == nil || !l.passed() && len(l.replicas.Others()) == 0 {
		return
	}
	look := time.NewTicker(quiet / 10)
	defer look.Stop()
	for since := time.Now(); time.Since(since) < quiet; {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		if l.passed() {
			since = time.Now()
		}
	}
}

// passed reports whether a POST is being passed on, or was since the last call.
func (l *relay) passed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	some := l.posts > 0 || l.some
	l.some = false
	return some
}

func (l *relay) count(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.posts += n
	l.some = true
}

// passAlone is for how long a request that has no stream is passed on without its client.
const passAlone = time.Second

// ownerLook is for how long a stream that is passed on outlasts the proof of its client, which this replica
// no longer accepts. Mostly the owner does not either by then, and has ended the stream itself: a client that
// seems to have left would lose its session sooner.
const ownerLook = 5 * time.Second

const (
	ownerAway = "the replica that has the session cannot be reached"
	ownerLost = "the replica did not get the request"
)

// toOwner answers a request for a session that this replica does not have. It passes the request on
// to the owner, unless a replica has done so before. It has not answered if there is no other owner. here
// means that the session is here now: its owner has died.
func (l *relay) toOwner(w http.ResponseWriter, r *http.Request, who *identity.Identity, id string) (answered, here bool) {
	if l == nil {
		return false, false
	}
	via, at := l.place(r.Context(), id)
	switch at {
	case There:
		l.pass(w, r, who, via, id)
	case Away:
		l.replicas.Passed(r.Method, 0, errAway)
		unavailable(w, ownerAway)
	case Here, Gone, Nowhere:
		return false, at == Here
	}
	return true, false
}

// place returns where the session with an id is, which is not here: at its owner, or where that has
// moved it, or at the replica that keeps its record, if the owner has died. That may be this one. What a
// replica passed on is passed on only to where this one has moved it, or if this one keeps the record.
func (l *relay) place(ctx context.Context, id string) (via http.RoundTripper, at Where) {
	hops := hopsOf(ctx)
	known, here := l.directory.whereabouts(id)
	switch {
	case here: // another request has begun it meanwhile
		return nil, Here
	case known.At != "" && hops < maxHops:
		if via, at := l.at(known.At); at != Gone {
			return via, at
		} // it has moved on
	case hops > 0:
		if hops >= maxHops || known.Kept == nil {
			return nil, Nowhere
		}
	default:
		if via, at := l.replicas.Owner(id); at != Gone {
			return via, at
		}
	}
	return l.found.find(ctx, id, l)
}

// at returns where another replica is.
func (l *relay) at(instance string) (via http.RoundTripper, at Where) {
	for _, o := range l.replicas.Others() {
		switch {
		case o.Instance != instance:
		case o.Via == nil:
			return nil, Away
		default:
			return o.Via, There
		}
	}
	return nil, Gone
}

// toReady passes on a request that would begin something here, while this replica drains, or of the
// modern era. Another replica may have passed it on to here because it names something of this one. It
// returns false, and has not answered, if no other replica may serve it.
func (l *relay) toReady(w http.ResponseWriter, r *http.Request, who *identity.Identity) bool {
	if l == nil || hopsOf(r.Context()) >= maxHops {
		return false
	}
	via, ok := l.replicas.Ready()
	if ok {
		l.pass(w, r, who, via, "")
	}
	return ok
}

// pass sends a request through via and answers it with the response. It ends with the client, and
// when this replica stops. A stream that has no other end also ends when the client's proof is withdrawn here: the owner may
// have a configuration that still accepts it. A DELETE, and a POST that asks for nothing, such as a cancellation, go on for a moment without
// the client, which may have left right after sending them. Not so what has a stream: what is written to that counts as
// read. The body is read first, within the bounds of all bodies, so that its
// requests can be answered if the other replica fails.
func (l *relay) pass(w http.ResponseWriter, r *http.Request, who *identity.Identity, via http.RoundTripper, id string) {
	p := &passing{
		relay: l, w: timedWriter{w, newResponder(w)}, r: r, id: id,
		origin: originOf(r, who, hopsOf(r.Context())+1),
	}
	p.held = streamBacklog{of: l.open.backlog.join(who.Principal), cut: p.cut}
	defer l.open.backlog.leave(who.Principal)
	defer p.end()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer cancel(nil)
	defer context.AfterFunc(l.open.ctx, func() { cancel(errStopped) })()
	in := r.WithContext(ctx)
	in.Body, in.ContentLength, in.TransferEncoding = http.NoBody, 0, nil
	if r.Method == http.MethodPost {
		if field(r.Header, headerMethod) != mcp.MethodListen { // which has no end of its own
			l.count(1)
			defer l.count(-1)
		}
		body, ok := l.bodies.readBytes(w, r, who.Principal)
		if !ok {
			return
		}
		p.body, p.out.rest = body, body
		in.Body, in.ContentLength = &p.out, int64(len(body))
		if len(body) > largeBody || id != "" { // do not keep a large one until the response ends
			p.decode()
		}
	}
	alone := id != "" && (r.Method == http.MethodDelete || r.Method == http.MethodPost && len(p.requests) == 0)
	defer context.AfterFunc(r.Context(), func() {
		if !alone {
			cancel(context.Canceled)
			return
		}
		time.AfterFunc(passAlone, func() { cancel(context.Canceled) })
	})()
	if r.Method == http.MethodGet || field(r.Header, headerMethod) == mcp.MethodListen {
		defer l.open.guard.onWithdrawal(who, func() {
			time.AfterFunc(ownerLook, func() { cancel(errWithdrawn) })
		})()
	}
	r.Header.Del("Expect")  // the body is here
	r.Header.Del("Upgrade") // ReverseProxy would pass it on, and no session needs it
	(&httputil.ReverseProxy{
		Rewrite: p.rewrite, Transport: &reporting{via, l.replicas.Passed}, FlushInterval: -1, BufferPool: &l.buffers,
		ModifyResponse: p.check, ErrorHandler: p.fail, ErrorLog: noLog,
	}).ServeHTTP(p.w, in)
}

var noLog = log.New(io.Discard, "", 0)

// A passing is one request that is passed on.
type passing struct {
	// Static after construction.
	relay  *relay
	w      timedWriter
	r      *http.Request
	id     string // of its session; "" for a request that begins something
	origin string

	out  outBody
	held streamBacklog // what the client has not read of its response

	mu   sync.Mutex
	over bool // the handler returns; guarded by mu

	// Owned by the goroutine of the request. A small body is only decoded if its requests must be
	// answered here.
	body     []byte
	requests []jsonrpc.ID // in the body, once it is decoded
	batch    bool
	answered []jsonrpc.ID // responses that the client gets as events
}

// rewrite makes the request that is sent from that of the client. ReverseProxy has removed the
// headers of proxies, which an upstream may get.
func (p *passing) rewrite(pr *httputil.ProxyRequest) {
	pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.URL.RawQuery = "http", "replica", pr.In.URL.RawQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values, ok := pr.In.Header[name]; ok {
			pr.Out.Header[name] = values
		}
	}
	pr.Out.Header[headerReplica] = []string{p.origin}
}

// check makes a response that may break off one that does not. It returns an error if it has broken
// off before the client got anything.
func (p *passing) check(resp *http.Response) error {
	if mediaType(resp.Header.Get("Content-Type")) == typeSSE {
		// Twice a message, because each line of its data has a prefix.
		resp.Body = &wholeEvents{ReadCloser: resp.Body, p: p, max: 2*p.relay.bodies.limits.MaxMessage() + largeBody}
	} else if err := p.hold(resp); err != nil {
		return err
	}
	for name := range resp.Header { // CORS, which the Guards of both have added
		delete(p.w.Header(), name)
	}
	return nil
}

// hold waits for the whole body of a response, and makes room for it.
func (p *passing) hold(resp *http.Response) error {
	limit := p.relay.open.backlog.limit // that of the owner is the same
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return err
	case int64(len(body)) > limit:
		return errOversize
	case len(body) > smallBody && !p.held.room(len(body)):
		return unreadable()
	}
	p.held.add(len(body))
	if resp.ContentLength < 0 {
		resp.ContentLength = int64(len(body))
		resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

var errOversize = &jsonrpc.ClosedError{Cause: jsonrpc.CauseTooLarge, Delivered: true}

// cut ends the response to a client that does not read it.
func (p *passing) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.w.out.abort()
	}
}

// end is called before the handler returns.
func (p *passing) end() {
	p.held.add(-p.held.size())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
}

// fail answers a request whose response did not come, or broke off. It is called before anything was
// written. What the connection did not get as a whole was not sent, and may be repeated, unless the session has ended
// with its replica: then, and if they were sent, requests in the body get the connection-closed error.
func (p *passing) fail(_ http.ResponseWriter, _ *http.Request, err error) {
	if p.r.Context().Err() != nil { // the client has left
		hangUp()
	}
	phase := jsonrpc.NotSent
	if p.out.taken.Load() {
		phase = jsonrpc.InFlight
	}
	p.decode()
	why, ok := errors.AsType[*jsonrpc.Error](err) // of hold
	if !ok {
		why = p.ending(err).Wire(jsonrpc.CodeInternalError, "", phase)
	}
	gone := p.gone()
	switch {
	case phase == jsonrpc.NotSent && !gone:
		unavailable(p.w, ownerLost)
	case len(p.requests) > 0:
		responses := make([]event, len(p.requests))
		for i, id := range p.requests {
			responses[i].data = jsonrpc.NewError(id, why).Text()
		}
		writeJSON(p.w, http.StatusOK, joined(responses, p.batch))
	case gone:
		noSession(p.w)
	default:
		writeError(p.w, http.StatusBadGateway, jsonrpc.ID{}, why)
	}
}

// gone reports whether the session of the request has ended with the replica that had it.
func (p *passing) gone() bool {
	if p.id == "" {
		return false
	}
	_, at := p.relay.place(p.r.Context(), p.id)
	return at == Gone || at == Nowhere
}

// ending returns the end of the connection to the other replica.
func (p *passing) ending(err error) *jsonrpc.ClosedError {
	end := jsonrpc.EndOf(err, jsonrpc.CauseLinkLost)
	switch {
	case p.relay.open.ctx.Err() != nil: // that one lives
		end = &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true, Says: "this replica was stopped while another one had the request"}
	case end.Cause == jsonrpc.CauseLinkLost:
		end.Says = "the replica that had the request was lost (link lost)"
	}
	p.relay.open.log.Debug("request of another replica failed", "cause", jsonrpc.CauseOf(end), "event", end.Event)
	return end
}

// decode finds the requests in the body that the response answers.
func (p *passing) decode() {
	body := p.body
	p.body = nil
	if body == nil || p.r.URL.Path == "/message" { // the stream of the session answers
		return
	}
	m, err := p.relay.bodies.limits.Decode(body)
	if err != nil {
		return
	}
	p.batch = m.Batch != nil
	messages := []*jsonrpc.Message{m}
	if p.batch {
		messages = m.Batch
	}
	for _, m := range messages {
		if m.IsRequest() {
			p.requests = append(p.requests, m.ID)
		}
	}
}

// An outBody is the body of a request that is sent.
type outBody struct {
	rest  []byte
	taken atomic.Bool // the connection has got all of it, and may have sent it
}

// Read implements [io.Reader].
func (b *outBody) Read(p []byte) (int, error) {
	n := copy(p, b.rest)
	if b.rest = b.rest[n:]; len(b.rest) > 0 {
		return n, nil
	}
	b.rest = nil // do not keep the memory
	b.taken.Store(true)
	return n, io.EOF
}

// Close implements [io.Closer].
func (b *outBody) Close() error { return nil }

// A timedWriter bounds the time in which the client must take a part of the response.
type timedWriter struct {
	http.ResponseWriter
	out *responder
}

// Write implements [io.Writer].
func (w timedWriter) Write(b []byte) (int, error) {
	if err := w.out.write(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// FlushError is for [http.ResponseController].
func (w timedWriter) FlushError() error { return w.out.flush() }

// buffers implements [httputil.BufferPool].
type buffers struct{ pool sync.Pool }

func (b *buffers) Get() []byte {
	if buf, ok := b.pool.Get().(*[32 << 10]byte); ok {
		return buf[:]
	}
	return new([32 << 10]byte)[:]
}

func (b *buffers) Put(buf []byte) { b.pool.Put((*[32 << 10]byte)(buf)) }
