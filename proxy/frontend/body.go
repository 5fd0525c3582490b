package frontend

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// boundBody limits the time for reading the body of r, if it has one. net/http clears the deadline
// when the body has been read.
func boundBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	}
}

// bodies reads the bodies of POSTs.
type bodies struct {
	limits jsonrpc.Limits
	traces bool // as in HTTP
	slots  *bodySlots
}

// readMessage returns the message in the body of r, with its notes and its trace context, and the
// body. If that is unusable, readMessage refuses r, calls unusable and returns nil.
func (b *bodies) readMessage(w http.ResponseWriter, r *http.Request, who identity.Principal, unusable func(*jsonrpc.InvalidError)) (m *jsonrpc.Message, body []byte) {
	body, ok := b.readBytes(w, r, who)
	if !ok {
		return nil, nil
	}
	m, err := b.limits.Decode(body)
	if err == nil {
		var trace *jsonrpc.TraceContext
		if b.traces {
			trace = traceOf(r.Header)
		}
		m.Notes, m.Trace = mcp.Read(m), trace
		for _, one := range m.Batch {
			one.Notes, one.Trace = mcp.Read(one), trace
		}
		return m, body
	}
	bad, _ := errors.AsType[*jsonrpc.InvalidError](err) // always ok
	unusable(bad)
	id := jsonrpc.ID{}
	if modernHeader(r) && !bad.Reply {
		id = bad.ID
	}
	writeError(w, http.StatusBadRequest, id, bad.Wire())
	return nil, nil
}

// readBytes returns the body of r. If it is unusable, readBytes refuses r and returns false.
func (b *bodies) readBytes(w http.ResponseWriter, r *http.Request, who identity.Principal) (body []byte, ok bool) {
	body, status, reason := b.read(r, who)
	if status == 0 {
		return body, true
	}
	w.Header().Set("Connection", "close") // do not read the rest of the body
	if status == http.StatusServiceUnavailable {
		unavailable(w, reason)
	} else {
		refuse(w, status, reason)
	}
	return nil, false
}

// read reads a body within the limit of a message. Its memory grows with the received bytes, not
// with Content-Length. A status other than 0 says why it failed; if the client left, nobody reads
// that.
func (b *bodies) read(r *http.Request, who identity.Principal) (body []byte, status int, reason string) {
	limit, large := b.limits.MaxMessage(), false
	if r.ContentLength > int64(limit) {
		return nil, http.StatusRequestEntityTooLarge, b.limits.Oversize()
	}
	size := 512
	if r.ContentLength >= 0 {
		size = int(min(r.ContentLength, largeBody)) + 1
	}
	body = make([]byte, 0, size)
	for {
		if len(body) > largeBody && !large {
			if large = b.slots.enter(who, r.Context().Done()); !large {
				return nil, http.StatusServiceUnavailable, tooManyLarge
			}
			defer b.slots.leave(who)
		}
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > limit:
			return nil, http.StatusRequestEntityTooLarge, b.limits.Oversize()
		case err == io.EOF:
			return body, 0, ""
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, http.StatusRequestTimeout, tooSlow
		case err != nil:
			return nil, http.StatusBadRequest, "the message is incomplete"
		}
	}
}

const (
	tooManyLarge = "too many large messages"
	tooSlow      = "the message did not arrive in time"
)
