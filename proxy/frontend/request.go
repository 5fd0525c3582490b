package frontend

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// The headers of Streamable HTTP, in the form in which net/http keeps them.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
	headerLastID  = "Last-Event-Id"
)

const (
	typeJSON = "application/json"
	typeSSE  = "text/event-stream"
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

// boundBody gives the body of r, if it has one, its time. net/http clears the
// deadline when the body has been read.
func boundBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	}
}

// A refusal is why a request is not served.
type refusal struct {
	status int
	reason string
}

// checkPost looks at the headers that every POST must have.
func checkPost(r *http.Request) *refusal {
	if mediaType(r.Header.Get("Content-Type")) != typeJSON {
		return &refusal{http.StatusUnsupportedMediaType, "Content-Type must be application/json"}
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return &refusal{http.StatusUnsupportedMediaType, "Content-Encoding is not supported"}
	}
	return nil
}

// mediaType returns a media type without its parameters.
func mediaType(value string) string {
	t, _, _ := strings.Cut(value, ";")
	if t == typeJSON {
		return t
	}
	return strings.ToLower(strings.TrimSpace(t))
}

// accepts reports whether the client takes want, "type/subtype". One that does
// not say what it takes takes all; so does curl, which says so.
func accepts(r *http.Request, want string) bool {
	values := r.Header["Accept"]
	if len(values) == 0 {
		return true
	}
	class, _, _ := strings.Cut(want, "/")
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			switch mediaType(part) {
			case want, "*/*", class + "/*":
				return true
			}
		}
	}
	return false
}

// readBody reads a body within the limit of a message. Memory grows with what
// really comes, not with what Content-Length says. If the client went away the
// refusal is written to nobody.
func (h *HTTP) readBody(r *http.Request) ([]byte, *refusal) {
	limit, large := h.Limits.MaxMessage(), false
	tooLarge := &refusal{http.StatusRequestEntityTooLarge, "the message is too large"}
	if r.ContentLength > int64(limit) {
		return nil, tooLarge
	}
	size := 512
	if r.ContentLength >= 0 {
		size = int(min(r.ContentLength, piece)) + 1
	}
	body := make([]byte, 0, size)
	for {
		if len(body) > piece && !large {
			if large = h.enterLarge(); !large {
				return nil, &refusal{http.StatusServiceUnavailable, "too many large messages"}
			}
			defer func() { <-h.large }()
		}
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > limit:
			return nil, tooLarge
		case err == io.EOF:
			return body, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, &refusal{http.StatusRequestTimeout, "the message did not come in time"}
		case err != nil:
			return nil, &refusal{http.StatusBadRequest, "the message is incomplete"}
		}
	}
}

// enterLarge waits for a place among the large bodies, which a receive from
// h.large gives back. It reports whether there was one in time.
func (h *HTTP) enterLarge() bool {
	timer := time.NewTimer(largeWait)
	defer timer.Stop()
	select {
	case h.large <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}
