package frontend

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// bodyTimeout is how long a client may take to send a body. It holds for
	// bodies that nobody reads, too: net/http waits for one before it answers.
	bodyTimeout = time.Minute

	// largeBodies is how many bodies over a piece are read at a time, from all
	// clients together: what they have sent so far is all in memory. The others
	// wait for as long as largeWait.
	largeBodies = 16
	largeWait   = 10 * time.Second
)

// boundBody limits the time that the body of r may take, if it has one. net/http
// clears the deadline when the body has been read.
func boundBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	}
}

// Bodies reads the bodies of POSTs.
type bodies struct {
	limits jsonrpc.Limits
	large  chan struct{} // holds an element for each large body that is being read
}

func newBodies(limits jsonrpc.Limits) *bodies {
	return &bodies{limits: limits, large: make(chan struct{}, largeBodies)}
}

// readMessage returns the message in the body of r, with its notes. If the body cannot be used, it
// refuses r and returns nil; badReply, unless it is nil, then gets an error for each
// question that the body failed to answer.
func (b *bodies) readMessage(w http.ResponseWriter, r *http.Request, badReply func(*jsonrpc.Message)) *jsonrpc.Message {
	body, status, reason := b.read(r)
	if status != 0 {
		w.Header().Set("Connection", "close") // the rest of the body is not wanted
		if status == http.StatusServiceUnavailable {
			unavailable(w, reason)
		} else {
			refuse(w, status, reason)
		}
		return nil
	}
	m, err := b.limits.Decode(body)
	if err == nil {
		m.Notes = mcp.Read(m)
		for _, one := range m.Batch {
			one.Notes = mcp.Read(one)
		}
		return m
	}
	bad, _ := errors.AsType[*jsonrpc.InvalidError](err) // it always is one
	if badReply != nil && bad.Reply && !bad.ID.IsZero() {
		badReply(jsonrpc.NewError(bad.ID, bad.Wire()))
	}
	id := jsonrpc.ID{}
	if modernHeader(r) && !bad.Reply {
		id = bad.ID
	}
	writeError(w, http.StatusBadRequest, id, bad.Wire())
	return nil
}

// read reads a body within the limit of a message. Memory grows with what really
// comes, not with what Content-Length says. A status other than 0 is why it failed;
// if the client went away, nobody reads that.
func (b *bodies) read(r *http.Request) (body []byte, status int, reason string) {
	limit, large := b.limits.MaxMessage(), false
	if r.ContentLength > int64(limit) {
		return nil, http.StatusRequestEntityTooLarge, tooLarge
	}
	size := 512
	if r.ContentLength >= 0 {
		size = int(min(r.ContentLength, piece)) + 1
	}
	body = make([]byte, 0, size)
	for {
		if len(body) > piece && !large {
			if large = b.enterLarge(); !large {
				return nil, http.StatusServiceUnavailable, "too many large messages"
			}
			defer func() { <-b.large }()
		}
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > limit:
			return nil, http.StatusRequestEntityTooLarge, tooLarge
		case err == io.EOF:
			return body, 0, ""
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, http.StatusRequestTimeout, "the message did not come in time"
		case err != nil:
			return nil, http.StatusBadRequest, "the message is incomplete"
		}
	}
}

const tooLarge = "the message is too large"

// enterLarge waits for a place among the large bodies, which a receive from large
// gives back. It reports whether there was one in time.
func (b *bodies) enterLarge() bool {
	timer := time.NewTimer(largeWait)
	defer timer.Stop()
	select {
	case b.large <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}
