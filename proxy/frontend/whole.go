package frontend

import (
	"bytes"
	"io"
	"net/http"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// wholeEvents is the body of an event stream, up to the last whole event. If the stream breaks off,
// the errors for its requests follow. A stream without requests just ends: its client resumes it.
type wholeEvents struct {
	io.ReadCloser
	p   *passing
	max int // bytes of one event

	buf   []byte
	at    int // bytes that Read has returned
	whole int // bytes of whole events
	over  bool
}

var eventEnd = []byte("\n\n")

// Read implements [io.Reader].
func (e *wholeEvents) Read(b []byte) (int, error) {
	for e.at == e.whole {
		if e.over {
			return 0, io.EOF
		}
		e.fill()
	}
	n := copy(b, e.buf[e.at:e.whole])
	e.at += n
	e.p.held.add(-n)
	return n, nil
}

// fill reads more, after Read has returned all whole events.
func (e *wholeEvents) fill() {
	if e.at > 0 {
		e.buf = e.buf[:copy(e.buf, e.buf[e.at:])]
		e.at, e.whole = 0, 0
	}
	if len(e.buf) == 0 && cap(e.buf) > largeBody {
		e.buf = nil // do not keep the memory of one large event
	}
	e.buf = slices.Grow(e.buf, smallBody)
	seen := max(len(e.buf)-1, 0)
	n, err := e.ReadCloser.Read(e.buf[len(e.buf):cap(e.buf)])
	e.buf = e.buf[:len(e.buf)+n]
	e.p.held.grow(n)
	if i := bytes.LastIndex(e.buf[seen:], eventEnd); i >= 0 {
		e.whole = seen + i + len(eventEnd)
		e.p.passed(e.buf[:e.whole])
	}
	if err == nil && len(e.buf)-e.whole > e.max {
		err = errOversize
	}
	switch {
	case err == io.EOF:
		e.over, e.whole = true, len(e.buf)
	case err != nil:
		held := len(e.buf)
		e.buf = e.p.appendErrors(e.buf[:e.whole], err)
		e.over, e.whole = true, len(e.buf)
		e.p.held.add(e.whole - held)
	}
}

// eventData returns the data of an event.
func eventData(event []byte) (data []byte) {
	for line := range bytes.SplitSeq(event, []byte("\n")) {
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(rest, []byte(" "))...)
		}
	}
	return data
}

// passed notes the responses among events that the client gets.
func (p *passing) passed(events []byte) {
	if p.r.Method != http.MethodPost {
		return
	}
	for e := range bytes.SplitSeq(events, eventEnd) {
		data := eventData(e)
		if len(data) == 0 {
			continue
		}
		if m, err := jsonrpc.DecodeOwn(data); err == nil && m.IsResponse() {
			p.answered = append(p.answered, m.ID)
		}
	}
}

// appendErrors appends the connection-closed error for each request that events have not answered.
func (p *passing) appendErrors(b []byte, err error) []byte {
	if p.r.Context().Err() != nil { // the client has left
		return b
	}
	end := p.ending(err)
	p.decode()
	for _, id := range p.requests {
		if !slices.Contains(p.answered, id) {
			b = appendEvent(b, "message", "", jsonrpc.NewError(id, end.Wire(jsonrpc.CodeInternalError, "", jsonrpc.InFlight)).Text())
		}
	}
	return b
}
