package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// resumeAfter is how long to wait before a stream is resumed, if the server sent no
	// retry field.
	resumeAfter = 500 * time.Millisecond

	// maxResumes is how often a stream is resumed without an event in between.
	maxResumes = 2

	// refusalTimeout bounds how long the body of an error may take.
	refusalTimeout = 5 * time.Second

	// lingering is how long the server may take to end a stream after the reply. If it
	// does, the connection can be reused.
	lingering = 250 * time.Millisecond
)

// An exchange is one request, and the messages on the response to it until the reply.
type exchange struct {
	t       *transport
	at      *endpoint
	header  http.Header                 // of this request alone; nil for none
	id      jsonrpc.ID                  // of the request
	related jsonrpc.ID                  // set on messages that are passed on; zero for requests of our own
	reach   *reach                      // how far the request came
	began   func(http.Header) *failure  // called with the header of a success; may be nil
	pass    func(*jsonrpc.Message) bool // called with each message before the reply; false ends the exchange

	resp  *http.Response // nil before it has come
	over  bool           // the response was read to its end, and closed
	vague bool           // the reply came with an error status and without an id
	place resumePoint    // in the stream
}

// run posts the request m and reads until its reply. The caller calls close or linger
// afterwards.
func (x *exchange) run(ctx context.Context, m *jsonrpc.Message) (*jsonrpc.Message, *failure) {
	resp, f := x.t.post(ctx, x.at, m, x.header, x.reach) //nolint:bodyclose // close and linger do
	if f != nil {
		return nil, f
	}
	x.resp = resp
	switch {
	case resp.StatusCode == http.StatusNotFound && x.at.id != "":
		reply, _ := x.refusal()
		named := reply != nil && !x.vague
		if named && isAboutRequest(reply.Error) {
			return reply, nil
		}
		x.vague = false
		f = refused(resp.StatusCode)
		f.lost = true
		if named {
			f.said = reply
		}
		return nil, f
	case !succeeded(resp):
		return x.refusal()
	case encoded(resp):
		return nil, invalid("compressed response")
	}
	if x.began != nil {
		if f := x.began(resp.Header); f != nil {
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

// isAboutRequest reports whether the error of a 404 says that the server does not know what was
// asked for, as servers of the modern era say it, and not the session.
func isAboutRequest(e json.RawMessage) bool {
	code := errorCode(e)
	return code == jsonrpc.CodeMethodNotFound || code == jsonrpc.CodeInvalidParams
}

// status returns the status of the response, zero without one.
func (x *exchange) status() int {
	if x.resp == nil {
		return 0
	}
	return x.resp.StatusCode
}

// refusal reads the response with an error status: the body may be an error of JSON-RPC,
// with or without an id.
func (x *exchange) refusal() (*jsonrpc.Message, *failure) {
	f := x.t.refusedBy(x.resp)
	if location := x.resp.Header.Get("Location"); location != "" && f.status < 400 {
		f.err = errors.New("the server redirects elsewhere, which is not followed")
	}
	mayBeLoss := x.at.id != "" && f.status == http.StatusBadRequest
	if mediaType(x.resp) != typeJSON && !mayBeLoss || encoded(x.resp) {
		return nil, f
	}
	t := time.AfterFunc(refusalTimeout, func() { x.resp.Body.Close() })
	defer t.Stop()
	text, err := io.ReadAll(io.LimitReader(x.resp.Body, maxRefusal))
	if err != nil {
		return nil, f
	}
	m, err := x.t.limits.Decode(unmarked(text))
	if err != nil || m.Error == nil {
		f.lost = mayBeLoss && mediaType(x.resp) != typeJSON && saysSession(string(text))
		return nil, f
	}
	reply, ok := x.mine(m)
	if mayBeLoss && tellsLoss(m.Error) { // with any id: the Python SDK has "server-error"
		f.lost, f.said = true, reply
		return nil, f
	}
	if !ok {
		return nil, f
	}
	x.vague = m.ID.IsZero()
	switch {
	case f.denied() && x.vague: // it is about the credentials, not about the request
		return nil, f
	case f.denied():
		x.t.failures.denied(f)
	}
	return reply, nil
}

// tellsLoss reports whether the error of a 400 means that the server does not know the
// session. The status should be 404, but servers modelled on the examples of the TypeScript
// SDK send 400. Servers on the Python SDK before 1.26 send 400 with plain text. Only the text
// tells which error it is. Without this, clients would have to be restarted together with such
// a server.
func tellsLoss(e json.RawMessage) bool {
	if code := errorCode(e); code != jsonrpc.CodeConnectionClosed && code != jsonrpc.CodeInvalidRequest {
		return false
	}
	message, _ := jsonrpc.Unquote(jsonrpc.Get(e, "message"))
	return saysSession(message)
}

func saysSession(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "session") || strings.Contains(text, "not initialized")
}

// readJSON reads a body that is the reply, or in 2025-03-26 an array that has it.
func (x *exchange) readJSON(ctx context.Context) (*jsonrpc.Message, *failure) {
	most := x.t.limits.MaxMessage()
	text, err := readBody(x.resp, most)
	switch {
	case err != nil:
		return nil, broken(ctx, err, true)
	case len(text) > most:
		return nil, invalid(x.t.limits.Oversize())
	}
	x.resp.Body.Close()
	x.over = true
	reply, f := x.take(ctx, unmarked(text))
	if reply == nil && f == nil {
		f = invalid("no response to the request")
	}
	return reply, f
}

// readBody reads the body of a response, up to one byte more than most. Its first buffer is as large
// as Content-Length says, within a bound, because memory must grow with what comes.
func readBody(resp *http.Response, most int) ([]byte, error) {
	size := min(max(resp.ContentLength, 0), maxRefusal) + bytes.MinRead
	text := bytes.NewBuffer(make([]byte, 0, size))
	_, err := text.ReadFrom(io.LimitReader(resp.Body, int64(most)+1))
	return text.Bytes(), err
}

// unmarked returns a body without the byte order mark that programs on .NET write before it (RFC 8259, 8.1).
func unmarked(text []byte) []byte { return bytes.TrimPrefix(text, []byte(byteOrderMark)) }

// take reads one message, or in 2025-03-26 an array of them. It returns the reply if it is
// one of them, and passes the others on.
func (x *exchange) take(ctx context.Context, text []byte) (reply *jsonrpc.Message, f *failure) {
	for e := range x.t.decode(text).Each {
		passed := true
		switch answer, mine := x.mine(e); {
		case mine:
			reply = answer
		case e.IsResponse():
			f = invalid("a response to another request")
		case e.Unusable == nil:
			e.Related = x.related
			passed = x.pass(e)
		case e.Unusable.Reply && (e.Unusable.ID.IsZero() || same(e.Unusable.ID, x.id)), mediaType(x.resp) == typeJSON:
			f = invalid(e.Unusable.Reason)
		default:
			passed = x.pass(e)
		}
		if !passed {
			return nil, broken(ctx, jsonrpc.ErrClosed, true)
		}
	}
	if reply != nil {
		return reply, nil
	}
	return nil, f
}

// decode returns what a server has sent; a message with only Unusable set if that is no message.
func (t *transport) decode(text []byte) *jsonrpc.Message {
	m, err := t.limits.Decode(text)
	if bad, ok := errors.AsType[*jsonrpc.InvalidError](err); ok {
		return &jsonrpc.Message{Unusable: bad}
	}
	return m
}

// mine reports whether m is the reply. An error without an id counts as the reply, since
// only one request was posted.
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

// same reports whether a reply's id is the request's. Some servers answer 5 with 5.0
// or "5".
func same(reply, request jsonrpc.ID) bool {
	if reply == request {
		return true
	}
	n, isInt := request.Int()
	got, ok := reply.Answered()
	return isInt && ok && got == n
}

// readStreams reads the event stream, and the streams that resume it, until the reply.
func (x *exchange) readStreams(ctx context.Context) (*jsonrpc.Message, *failure) {
	for resumes := 0; ; {
		if x.resp != nil {
			began := time.Now()
			reply, f, end := x.readStream(ctx)
			if end == nil {
				return reply, f
			}
			polls := errors.Is(end, io.EOF) && (x.place.asked || time.Since(began) > healthy)
			if x.place.moved || polls { // a server may let its client come back until there is a reply (2025-11-25)
				resumes = 0
			}
			if x.place.lastID == "" || x.at.modern || resumes == maxResumes {
				return nil, dropped(ctx, end)
			}
			x.close()
		} else if resumes == maxResumes {
			return nil, &failure{cause: jsonrpc.CauseConnectionLost, phase: jsonrpc.InFlight}
		}
		resumes++
		if f := x.resume(ctx); f != nil {
			return nil, f
		}
	}
}

// readStream reads one event stream until the reply, a failure, or the stream's end.
func (x *exchange) readStream(ctx context.Context) (reply *jsonrpc.Message, f *failure, end error) {
	x.place.moved, x.place.asked = false, false
	end = x.place.read(newEvents(x.resp.Body, x.t.limits.MaxMessage()), func(text string, tooLong error) bool {
		if tooLong != nil {
			f = invalid(x.t.limits.Oversize())
			return false
		}
		reply, f = x.take(ctx, []byte(text))
		return reply == nil && f == nil
	})
	return reply, f, end
}

// resume opens the rest of the stream, after the pause that the server asked for. If the
// attempt may be repeated, it returns nil and leaves x.resp nil.
func (x *exchange) resume(ctx context.Context) *failure {
	defer x.t.failures.try()()
	if err := sleep(ctx, x.place.wait(resumeAfter)); err != nil {
		return broken(ctx, err, true)
	}
	resp, f := x.t.get(ctx, x.at, x.place.lastID)
	switch {
	case f != nil && f.phase == jsonrpc.NotSent || ctx.Err() != nil: // unreachable
		if f != nil {
			f.phase = jsonrpc.InFlight // the request itself was sent
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
	return x.t.refusedBy(resp)
}

// close ends the exchange.
func (x *exchange) close() {
	if x.resp != nil {
		x.resp.Body.Close()
		x.resp = nil
	}
}

// linger ends the exchange of an answered request. It gives the server a moment to end
// the response by itself, then cancel aborts it.
func (x *exchange) linger(cancel context.CancelCauseFunc) {
	if x.resp == nil || x.over {
		return
	}
	t := time.AfterFunc(lingering, func() { cancel(nil) })
	defer t.Stop()
	_, _ = io.CopyN(io.Discard, x.resp.Body, maxRefusal)
	x.close()
}

// errorCode returns the code of an error of JSON-RPC, zero without one.
func errorCode(e json.RawMessage) int {
	code, _ := strconv.Atoi(string(jsonrpc.Get(e, "code")))
	return code
}

// ownID returns an id for a request of our own. It collides with no call of the session,
// since their ids are integers.
func ownID(name string) jsonrpc.ID {
	id, _ := jsonrpc.ParseID(jsonrpc.Quote("mcp-proxy:" + name))
	return id
}
