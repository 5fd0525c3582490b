package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// resumeAfter is how long to wait before a stream is resumed whose server
	// did not say.
	resumeAfter = 500 * time.Millisecond

	// maxResumes without an event in between are made.
	maxResumes = 2

	// refusalTimeout bounds how long the body of an error may take.
	refusalTimeout = 5 * time.Second

	// lingering is how long the server may take to end a stream after the
	// response, which saves its connection.
	lingering = 250 * time.Millisecond
)

// An exchange is one request and what comes on the response to it, until its
// reply. What comes before that goes to its receiver.
type exchange struct {
	server  *Server
	to      receiver
	p       *peer
	header  http.Header // of this request alone; nil for none
	id      jsonrpc.ID  // of the request
	related jsonrpc.ID  // set on messages that are passed on; zero for requests of our own
	reach   *reach
	began   func()                     // called when the response begins; may be nil
	greeted func(http.Header) *failure // called with its header when it is a success; may be nil

	resp   *http.Response // nil before it has come
	vague  bool           // the reply came with an error status and without an id
	lastID string         // of the stream's last event that had one
	retry  time.Duration
}

// A receiver has what comes on a response before its reply. Both report whether
// anybody is still there for it.
type receiver interface {
	pass(m *jsonrpc.Message, from *peer) bool // what the server said
	put(r received) bool                      // what cannot be used
}

// run posts the request m and reads until its reply. The caller calls close or
// linger.
func (x *exchange) run(ctx context.Context, m *jsonrpc.Message) (*jsonrpc.Message, *failure) {
	resp, f := x.server.post(ctx, x.p, m, x.header, x.reach) //nolint:bodyclose // close and linger do
	if f != nil {
		return nil, f
	}
	x.resp = resp
	switch {
	case resp.StatusCode == http.StatusNotFound && x.p.id != "":
		f = refused(resp.StatusCode)
		f.lost = true
		return nil, f
	case !succeeded(resp):
		return x.refusal()
	case encoded(resp):
		return nil, invalid("compressed response")
	}
	if x.began != nil {
		x.began()
	}
	if x.greeted != nil {
		if f := x.greeted(resp.Header); f != nil {
			return nil, f
		}
	}
	switch mediaType(resp) {
	case typeJSON:
		return x.readJSON(ctx)
	case typeSSE:
		return x.readStreams(ctx)
	}
	if resp.ContentLength == 0 {
		return nil, invalid("empty response")
	}
	return nil, invalid("neither JSON nor an event stream")
}

// refusal returns what an error status says: an error of JSON-RPC if the body is
// one, which may have no id.
func (x *exchange) refusal() (*jsonrpc.Message, *failure) {
	f := refusedBy(x.resp)
	if location := x.resp.Header.Get("Location"); location != "" && f.status < 400 {
		f.err = errors.New("the server redirects to another place, which is not followed")
	}
	if mediaType(x.resp) != typeJSON || encoded(x.resp) {
		return nil, f
	}
	t := time.AfterFunc(refusalTimeout, func() { x.resp.Body.Close() })
	defer t.Stop()
	text, err := io.ReadAll(io.LimitReader(x.resp.Body, maxRefusal))
	if err != nil {
		return nil, f
	}
	m, err := x.server.Limits.Decode(text)
	if err != nil || m.Error == nil {
		return nil, f
	}
	reply, ok := x.mine(m)
	if !ok {
		return nil, f
	}
	if x.p.id != "" && f.status == http.StatusBadRequest && tellsLoss(m.Error) {
		f.lost, f.said = true, reply
		return nil, f
	}
	x.vague = m.ID.IsZero()
	switch {
	case f.denied() && x.vague: // it is about the credentials, and not about what was asked
		return nil, f
	case f.denied():
		x.server.tally.denied(f)
	}
	return reply, nil
}

// tellsLoss reports whether an error is how servers made after the TypeScript
// SDK's examples say with a 400 what ought to be a 404: that they do not know the
// session. It has no code of its own. After a restart of such a server its
// clients would have to be restarted, too.
func tellsLoss(e json.RawMessage) bool {
	if code, err := jsonrpc.Member(e, "code"); err != nil || string(code) != "-32000" {
		return false
	}
	raw, _ := jsonrpc.Member(e, "message")
	message, _ := jsonrpc.Unquote(raw)
	message = strings.ToLower(message)
	return strings.Contains(message, "session") || strings.Contains(message, "not initialized")
}

// readJSON reads a body that is the reply, or in 2025-03-26 an array with it.
func (x *exchange) readJSON(ctx context.Context) (*jsonrpc.Message, *failure) {
	limits := x.server.Limits
	text, err := io.ReadAll(io.LimitReader(x.resp.Body, int64(limits.MaxMessage())+1))
	switch {
	case err != nil:
		return nil, broken(ctx, err, true)
	case len(text) > limits.MaxMessage():
		return nil, invalid("message too long")
	}
	reply, f := x.take(ctx, text)
	if reply == nil && f == nil {
		f = invalid("no response to the request")
	}
	return reply, f
}

// take reads one message, or in 2025-03-26 several. It returns the reply if that
// is among them.
func (x *exchange) take(ctx context.Context, text []byte) (reply *jsonrpc.Message, f *failure) {
	m, err := x.server.Limits.Decode(text)
	if err != nil {
		bad, _ := errors.AsType[*jsonrpc.InvalidError](err)
		if bad.Reply && (bad.ID.IsZero() || same(bad.ID, x.id)) || mediaType(x.resp) == typeJSON {
			return nil, invalid(bad.Reason)
		}
		if !x.to.put(received{err: bad}) {
			return nil, broken(ctx, jsonrpc.ErrClosed, true)
		}
		return nil, nil
	}
	elements := m.Batch
	if elements == nil {
		elements = []*jsonrpc.Message{m}
	}
	for _, e := range elements {
		switch answer, mine := x.mine(e); {
		case mine:
			reply = answer
		case e.IsResponse():
			f = invalid("a response to another request")
		default:
			e.Related = x.related
			if !x.to.pass(e, x.p) {
				return nil, broken(ctx, jsonrpc.ErrClosed, true)
			}
		}
	}
	if reply != nil {
		return reply, nil
	}
	return nil, f
}

// mine reports whether m is the reply. An error without an id can be about
// nothing else.
func (x *exchange) mine(m *jsonrpc.Message) (*jsonrpc.Message, bool) {
	if !m.IsResponse() || !m.ID.IsZero() && !same(m.ID, x.id) {
		return nil, false
	}
	if m.ID.IsZero() {
		m = &jsonrpc.Message{ID: x.id, Error: m.Error}
	}
	m.Related = x.related
	return m, true
}

// same reports whether a reply's id is that of the request. A server that
// answers 5 with 5.0 or "5" means 5.
func same(reply, request jsonrpc.ID) bool {
	if reply == request {
		return true
	}
	n, isInt := request.Int()
	got, ok := reply.Answered()
	return isInt && ok && got == n
}

// readStreams reads the event stream, and what resumes it, until the reply.
func (x *exchange) readStreams(ctx context.Context) (*jsonrpc.Message, *failure) {
	for resumes := 0; ; {
		if x.resp != nil {
			reply, progress, f, end := x.readStream(ctx)
			if reply != nil || f != nil {
				return reply, f
			}
			if progress {
				resumes = 0
			}
			if x.lastID == "" || resumes == maxResumes {
				return nil, dropped(ctx, end)
			}
			x.close()
		} else if resumes == maxResumes {
			return nil, &failure{cause: "connection lost", phase: jsonrpc.InFlight}
		}
		resumes++
		if f := x.resume(ctx); f != nil {
			return nil, f
		}
	}
}

// readStream reads one event stream until the reply or its end. progress is
// whether something came.
func (x *exchange) readStream(ctx context.Context) (reply *jsonrpc.Message, progress bool, f *failure, end error) {
	events := newEvents(x.resp.Body, x.server.Limits.MaxMessage())
	for {
		ev, err := events.next()
		switch {
		case errors.Is(err, errEventTooLong):
			return nil, progress, invalid("message too long"), nil
		case err != nil:
			return nil, progress, nil, err
		}
		if ev.retry > 0 {
			x.retry = ev.retry
		}
		if ev.id != "" && ev.id != x.lastID && !x.p.modern {
			x.lastID, progress = ev.id, true
		}
		if ev.kind != "" || ev.data == "" { // the first event may have no data: it is there for its id
			continue
		}
		progress = true
		if reply, f = x.take(ctx, []byte(ev.data)); reply != nil || f != nil {
			return reply, progress, f, nil
		}
	}
}

// resume opens the rest of the stream after as long as the server wants. x.resp
// is nil when that has failed for now.
func (x *exchange) resume(ctx context.Context) *failure {
	if err := sleep(ctx, wait(x.retry, resumeAfter)); err != nil {
		return broken(ctx, err, true)
	}
	resp, f := x.server.get(ctx, x.p, x.lastID)
	switch {
	case f != nil && f.phase == jsonrpc.NotSent || ctx.Err() != nil: // nobody there
		if f != nil {
			f.phase = jsonrpc.InFlight // of the request
			return f
		}
		resp.Body.Close()
		return broken(ctx, ctx.Err(), true)
	case f != nil:
		return nil
	case isStream(resp):
		x.resp = resp
		return nil
	}
	resp.Body.Close()
	if resp.StatusCode >= 500 {
		return nil
	}
	return refusedBy(resp)
}

func wait(retry, otherwise time.Duration) time.Duration {
	if retry > 0 {
		return retry
	}
	return otherwise
}

// sleep waits, for as long as ctx lives.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// close ends the exchange.
func (x *exchange) close() {
	if x.resp != nil {
		x.resp.Body.Close()
		x.resp = nil
	}
}

// linger ends the exchange of a call that was answered. The server gets a moment
// to end the response by itself, then cancel has to abort it.
func (x *exchange) linger(cancel context.CancelCauseFunc) {
	if x.resp == nil {
		return
	}
	t := time.AfterFunc(lingering, func() { cancel(nil) })
	defer t.Stop()
	_, _ = io.CopyN(io.Discard, x.resp.Body, maxRefusal)
	x.close()
}
