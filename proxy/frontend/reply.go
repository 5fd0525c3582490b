package frontend

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Responses that are not event streams: refusals, and plain JSON.

var headerJSON = []string{typeJSON}

// refuse answers a request with an HTTP error status. The body is an error response without an id,
// which the specification allows for all of them.
func refuse(w http.ResponseWriter, status int, reason string) {
	writeError(w, status, jsonrpc.ID{}, invalidRequest(reason))
}

// refuseMessage answers the POST of m with an error, under the id of m if that is a request.
func refuseMessage(w http.ResponseWriter, m *jsonrpc.Message, err *jsonrpc.Error) {
	id := m.ID
	if !m.IsRequest() {
		id = jsonrpc.ID{}
	}
	writeError(w, http.StatusBadRequest, id, err)
}

func writeError(w http.ResponseWriter, status int, id jsonrpc.ID, err *jsonrpc.Error) {
	w.Header()["Content-Type"] = headerJSON
	writeStatus(w, status)
	w.Write(jsonrpc.NewError(id, err).Text()) // an error means that the client has left
}

// writeStatus writes the head of a response that has at most a small body.
func writeStatus(w http.ResponseWriter, status int) {
	bound(w)
	w.WriteHeader(status)
}

// bound bounds the time in which a client must take a small response. net/http writes that when the handler has
// returned, and what is left of the body of the request has been read. ResponseWriters of tests have no deadlines.
func bound(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(bodyTimeout + stall))
}

func invalidRequest(reason string) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: " + reason}
}

// unavailable refuses a request that may succeed later.
func unavailable(w http.ResponseWriter, reason string) {
	w.Header().Set("Retry-After", retryAfter)
	writeError(w, http.StatusServiceUnavailable, jsonrpc.ID{}, overloaded("Service unavailable: "+reason))
}

const retryAfter = "5" // seconds

func overloaded(text string) *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInternalError,
		Message: text,
		Data:    jsonrpc.ErrorData{Reason: jsonrpc.ReasonOverloaded, Phase: jsonrpc.NotSent, Retryable: true},
	}
}

func notAllowed(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	refuse(w, http.StatusMethodNotAllowed, "method not allowed")
}

// noSession refuses a request for an unknown session. 404 makes the client begin a new one.
func noSession(w http.ResponseWriter) { refuse(w, http.StatusNotFound, "no such session") }

// writeJSON writes a complete response.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	newResponder(w).writeJSON(status, body)
}

func (r *responder) writeJSON(status int, body []byte) {
	h := r.w.Header()
	h["Content-Type"] = headerJSON
	if len(body) > smallBody {
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	r.w.WriteHeader(status)
	r.write(body) // an error means that the client has left
}

// hangUp ends the connection of a request that cannot be answered any more. net/http says that a client has left
// when it has closed its half of the connection, too, and would answer 200 without a body.
func hangUp() { panic(http.ErrAbortHandler) }

// An alarm wakes the handler of a POST that waits for a plain response. A pool keeps alarms, because a new one
// for each POST would be garbage at once. Mostly the response is there long before, so the timer goes on when its POST
// is over, if the next one is likely to come before it fires: to set and stop it for each would cost more.
type alarm struct {
	mu    sync.Mutex    // guards the fields below
	wake  chan struct{} // of the handler that waits; nil for none
	due   time.Time     // when to wake it
	often bool          // the last wait began less than the time of one before this one
	timer *time.Timer
	fires time.Time // when timer does, not later than due; zero if it does not
}

// wakes makes the alarm notify wake after d.
func (a *alarm) wakes(wake chan struct{}, d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	due := time.Now().Add(d)
	a.wake, a.due, a.often = wake, due, due.Sub(a.due) < d
	if a.fires.IsZero() || a.due.Before(a.fires) {
		a.setLocked(d)
	}
}

// rest makes the alarm notify nobody.
func (a *alarm) rest() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wake = nil; !a.often && a.timer.Stop() {
		a.fires = time.Time{}
	}
}

func (a *alarm) setLocked(d time.Duration) {
	a.fires = a.due
	if a.timer == nil {
		a.timer = time.AfterFunc(d, a.fired)
	} else {
		a.timer.Reset(d)
	}
}

func (a *alarm) fired() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fires = time.Time{}
	switch left := time.Until(a.due); {
	case a.wake == nil:
	case left > 0:
		a.setLocked(left)
	default:
		notify(a.wake)
	}
}

// waitPlain lets a POST wait for a plain response: until wake receives, gone is closed, or d has passed. If gone is
// nil, a client that has gone is noticed afterwards.
func waitPlain(alarms *sync.Pool, wake chan struct{}, gone <-chan struct{}, d time.Duration) {
	a, ok := alarms.Get().(*alarm)
	if !ok {
		a = &alarm{}
	}
	a.wakes(wake, d)
	if gone == nil { // the usual case, in which a select would cost more
		<-wake
	} else {
		select {
		case <-wake:
		case <-gone:
		}
	}
	a.rest()
	alarms.Put(a)
}
