package frontend

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// stall is how long a client may take for one piece of a response. One that
	// takes longer is treated like one whose connection dropped.
	stall = 30 * time.Second
	piece = 64 << 10

	// keepAlive is the pause after which an idle event stream carries a comment,
	// so that no box on the way takes it for dead (most do after 60 s).
	keepAlive = 15 * time.Second

	// retryMillis is what a client waits before it resumes a dropped stream.
	retryMillis = "500"
)

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
// third stream. "3-0" stands before the first.
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
	w   http.ResponseWriter
	rc  *http.ResponseController
	buf []byte
}

func newResponder(w http.ResponseWriter) *responder {
	return &responder{w: w, rc: http.NewResponseController(w)}
}

// write writes b. net/http clears the deadline after the response.
func (r *responder) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), piece)
		r.extend()
		if _, err := r.w.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// extend gives the next write its time. A ResponseWriter that cannot do that is
// one that cannot block.
func (r *responder) extend() { r.rc.SetWriteDeadline(time.Now().Add(stall)) }

// begin sends the header of an event stream.
func (r *responder) begin() error {
	h := r.w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
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
	return r.rc.Flush()
}
