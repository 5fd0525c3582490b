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
	// stall is how long a client may take for one piece of a response. One that
	// takes longer is treated like one whose connection dropped.
	stall = 30 * time.Second
	piece = 64 << 10

	// smallBody is what net/http holds back, so that it finds the length itself.
	smallBody = 2 << 10

	// keepAlive is the pause after which an idle event stream carries a comment.
	// Most load balancers and the like close one that is idle for 60 s.
	keepAlive = 15 * time.Second

	// retryMillis is what a client waits before it resumes a dropped stream.
	retryMillis = "500"
)

// An event is one message of a response.
type event struct {
	data     []byte     // JSON text
	id       jsonrpc.ID // of a response, or of a question, which is a request to the client
	response bool
	refused  *identity.Refusal // beside an error that a policy has answered with
}

// appendEvent appends one server-sent event to b:
//
//	event: message\nid: 3-17\ndata: {"jsonrpc":"2.0",…}\n\n
//
// A field whose value is "" is left out, except data. Data of several lines
// becomes several data fields, so nothing in it can forge a field.
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

// cutLine cuts data at its first line end, which is \n, \r\n or \r.
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

// eventID names an event within its session: "3-17" is the 17th event of the
// third stream. "3-0" is before the first.
func eventID(stream, event int) string {
	return strconv.Itoa(stream) + "-" + strconv.Itoa(event)
}

// parseEventID is the reverse of eventID.
func parseEventID(id string) (stream, event int, ok bool) {
	s, e, _ := strings.Cut(id, "-")
	stream, err1 := strconv.Atoi(s)
	event, err2 := strconv.Atoi(e)
	return stream, event, err1 == nil && err2 == nil && eventID(stream, event) == id
}

// A responder writes a response to a client that may be slow: each piece gets
// stall to leave. The event stream is collected in buf until flush.
type responder struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	buf     []byte
	aborted atomic.Bool
}

func newResponder(w http.ResponseWriter) *responder {
	return &responder{w: w, rc: http.NewResponseController(w)}
}

// write writes b. net/http clears the deadline after the response.
func (r *responder) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), piece)
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

// abort makes write fail, also one that waits for the client. It may be called as long as
// the handler of the request has not returned.
func (r *responder) abort() {
	r.aborted.Store(true)
	r.rc.SetWriteDeadline(time.Unix(1, 0))
}

var errAborted = errors.New("the response was abandoned")

// extend gives the next write its time. A ResponseWriter that has no deadlines
// cannot block.
func (r *responder) extend() { r.rc.SetWriteDeadline(time.Now().Add(stall)) }

// begin sends the header of an event stream.
func (r *responder) begin() error {
	h := r.w.Header()
	h["Content-Type"] = []string{typeSSE}
	h["Cache-Control"] = []string{"no-cache, no-transform"}
	h["X-Accel-Buffering"] = []string{"no"} // or nginx holds events back
	r.w.WriteHeader(http.StatusOK)
	return r.flush()
}

// prime gives the client an event id before there is an event, with which it can
// resume (2025-11-25 basic/transports: "an SSE event consisting of an event ID
// and an empty data field"). Clients of older versions choke on empty data.
func (r *responder) prime(id string) error {
	r.buf = append(append(append(r.buf, "id: "...), id...), "\nretry: "+retryMillis+"\ndata:\n\n"...)
	return r.flush()
}

// comment sends what clients ignore.
func (r *responder) comment() error {
	r.buf = append(r.buf, ":\n\n"...)
	return r.flush()
}

// flush sends what is in buf.
func (r *responder) flush() error {
	err := r.write(r.buf)
	r.buf = r.buf[:0]
	if cap(r.buf) > piece {
		r.buf = nil // one large event is no reason to hold on to memory
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

// A feed is where the events of one HTTP response come from.
type feed interface {
	// next appends the events that are there to out, as server-sent events, and
	// reports whether more may come.
	next(out []byte) (longer []byte, more bool)

	written()             // what next returned went out
	woken() chan struct{} // receives when next may have something
}

// copyEvents writes what f has until that ends, the client is gone, or ctx is done.
// While there is nothing it keeps the connection alive.
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
			return
		}
	}
}

// notify puts a token into a channel of capacity 1, unless there is one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
