package frontend

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	typeJSON = "application/json"
	typeSSE  = "text/event-stream"
)

const (
	// stall bounds the time in which a client must take maxPiece bytes of a response. Otherwise it
	// counts as disconnected.
	stall    = 30 * time.Second
	maxPiece = 256 << 10

	// largeBody is the size from which bodies are bounded in number, and buffers not kept.
	largeBody = 64 << 10

	// smallBody is the size up to which net/http buffers a body and sets Content-Length itself.
	smallBody = 2 << 10

	// keepAlive is the idle time after which an event stream sends a comment. Most load balancers
	// close connections that are idle for 60 s.
	keepAlive = 15 * time.Second

	// retryMillis is the time that a client waits before it resumes a dropped stream.
	retryMillis = "500"
)

// An event is one message of a response.
type event struct {
	data     []byte     // JSON text
	id       jsonrpc.ID // of a response or a question; a question is a request to the client
	response bool
	refused  *identity.Refusal // of an error with which a policy answered
}

func eventOf(m *jsonrpc.Message) event {
	return event{data: m.Text(), id: m.ID, response: m.IsResponse(), refused: m.Refused}
}

// appendEvent appends one server-sent event to b:
//
//	event: message\nid: 3-17\ndata: {"jsonrpc":"2.0",…}\n\n
//
// Fields with the value "" are left out, except data. Data of several lines becomes several data
// fields, so that no data can forge a field.
func appendEvent(b []byte, name, id string, data []byte) []byte {
	if name != "" {
		b = append(append(append(b, "event: "...), name...), '\n')
	}
	if id != "" {
		b = append(append(append(b, "id: "...), id...), '\n')
	}
	for {
		line, rest, more := cutLine(data)
		b = append(append(append(b, "data: "...), line...), '\n')
		if !more {
			return append(b, '\n')
		}
		data = rest
	}
}

// cutLine cuts data at its first line end: \n, \r\n or \r.
func cutLine(data []byte) (line, rest []byte, more bool) {
	i := bytes.IndexAny(data, "\r\n")
	if i < 0 {
		return data, nil, false
	}
	rest = data[i+1:]
	if data[i] == '\r' && len(rest) > 0 && rest[0] == '\n' {
		rest = rest[1:]
	}
	return data[:i], rest, true
}

// eventID returns the id of an event in its session: "3-17" is the 17th event of the third stream,
// "3-0" is before its first.
func eventID(stream, event int) string {
	return strconv.Itoa(stream) + "-" + strconv.Itoa(event)
}

// parseEventID is the inverse of eventID.
func parseEventID(id string) (stream, event int, ok bool) {
	s, e, _ := strings.Cut(id, "-")
	stream, err1 := strconv.Atoi(s)
	event, err2 := strconv.Atoi(e)
	return stream, event, err1 == nil && err2 == nil && eventID(stream, event) == id
}

// A responder writes a response to a client that may be slow: each maxPiece may take stall. buf
// collects events until flush.
type responder struct {
	w       http.ResponseWriter
	rc      http.ResponseController
	buf     []byte
	aborted atomic.Bool
}

func newResponder(w http.ResponseWriter) *responder {
	return &responder{w: w, rc: *http.NewResponseController(w)}
}

// write writes b. net/http clears the deadline after the response.
func (r *responder) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), maxPiece)
		r.extend()
		if r.aborted.Load() {
			return errAborted
		}
		if _, err := r.w.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// abort makes write fail, even if it is blocked. It must not be called after the handler of the
// request has returned.
func (r *responder) abort() {
	r.aborted.Store(true)
	r.rc.SetWriteDeadline(time.Unix(1, 0))
}

var errAborted = errors.New("the response was abandoned")

// extend sets the deadline of the next write. A ResponseWriter without deadlines cannot block.
func (r *responder) extend() { r.rc.SetWriteDeadline(time.Now().Add(stall)) }

// begin sends the header of an event stream.
func (r *responder) begin() error {
	h := r.w.Header()
	h["Content-Type"] = []string{typeSSE}
	h["Cache-Control"] = []string{"no-cache, no-transform"}
	h["X-Accel-Buffering"] = []string{"no"} // nginx would hold events back
	r.w.WriteHeader(http.StatusOK)
	return r.flush()
}

// prime sends an event id before the first event, so that the client can resume (2025-11-25
// basic/transports: "an SSE event consisting of an event ID and an empty data field"). Clients of
// older versions fail on empty data.
func (r *responder) prime(id string) error {
	r.buf = append(append(append(r.buf, "id: "...), id...), "\nretry: "+retryMillis+"\ndata:\n\n"...)
	return r.flush()
}

// comment sends a comment, which clients ignore.
func (r *responder) comment() error {
	r.buf = append(r.buf, ":\n\n"...)
	return r.flush()
}

// flush sends buf.
func (r *responder) flush() error {
	err := r.write(r.buf)
	r.buf = r.buf[:0]
	if cap(r.buf) > largeBody {
		r.buf = nil // do not keep the memory of one large event
	}
	if err != nil {
		return err
	}
	r.extend()
	if r.aborted.Load() {
		return errAborted
	}
	return r.rc.Flush()
}

// A feed is the source of the events of one HTTP response.
type feed interface {
	// next appends the available events to out, as server-sent events, and reports whether more may
	// come.
	next(out []byte) (longer []byte, more bool)

	written()             // the result of next was sent
	woken() chan struct{} // receives when next may have events
}

// copyEvents sends the events of f until f ends, the client leaves, or ctx ends. It sends comments
// while there are no events. If ctx ends because the client has left or closed its half, the response must not
// look complete.
func copyEvents(ctx context.Context, out *responder, f feed) {
	idle := time.NewTicker(keepAlive)
	defer idle.Stop()
	for {
		var more bool
		if out.buf, more = f.next(out.buf); len(out.buf) > 0 {
			if out.flush() != nil {
				return
			}
			f.written()
		}
		if !more {
			return
		}
		select {
		case <-f.woken():
		case <-idle.C:
			if out.comment() != nil {
				return
			}
		case <-ctx.Done():
			if proofEnd(ctx) == nil {
				hangUp()
			}
			return
		}
	}
}

// notify puts a token into a channel of capacity 1, unless it has one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
