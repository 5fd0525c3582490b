package frontend

import (
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A waiter is one request on a trunk and what has come for it. It is the feed of
// the POST's response.
type waiter struct {
	// Static once the request is on the trunk.
	t      *trunk
	id     int64      // on the trunk
	client jsonrpc.ID // as the client wrote it
	method string
	wake   chan struct{} // capacity 1: there is something to take

	// Guarded by trunk.mu.
	received bool    // Recv has returned the request
	events   []event // that wait to be taken; a response is the last
	bytes    int     // of the events that have not been written
	taken    int     // of these, those that are being written
	status   int     // of the response, if nothing goes before it
}

// text returns a message of the trunk as the client gets it: under its own id,
// and with its own listen in what belongs to that.
func (p *waiter) text(m *jsonrpc.Message) []byte {
	out := *m
	if m.IsResponse() {
		out.ID = p.client
	}
	if p.method == mcp.MethodListen {
		listen := jsonrpc.Value{Key: mcp.KeySubscription, Text: p.client.Raw()}
		if m.Method != "" {
			out.Params = mcp.SetMeta(m.Params, listen)
		} else if m.Result != nil {
			out.Result = mcp.SetMeta(m.Result, listen)
		}
	}
	return out.Append(make([]byte, 0, out.Size()))
}

func (p *waiter) pushLocked(e event) {
	p.events = append(p.events, e)
	p.bytes += len(e.data)
	p.t.unread.add(len(e.data))
	notify(p.wake)
}

// endLocked takes the request off the trunk and answers it.
func (p *waiter) endLocked(e event, status int) {
	delete(p.t.waiting, p.id)
	p.status = status
	p.pushLocked(e)
}

func (p *waiter) settleLocked(err *jsonrpc.Error) {
	m := jsonrpc.NewError(p.client, err)
	p.endLocked(event{data: m.Append(nil), response: true}, statusOf(m))
}

// plain returns the response if it is there and nothing goes before it.
func (p *waiter) plain() (body []byte, status int, ok bool) {
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	if len(p.events) != 1 || !p.events[0].response {
		return nil, 0, false
	}
	return p.events[0].data, p.status, true
}

func (p *waiter) next(out []byte) ([]byte, bool) {
	p.t.mu.Lock()
	events := p.events
	p.events, p.taken = nil, p.bytes
	p.t.mu.Unlock()
	more := true
	for _, e := range events {
		out = appendEvent(out, "message", "", e.data)
		more = more && !e.response
	}
	return out, more
}

func (p *waiter) written() {
	p.t.mu.Lock()
	defer p.t.mu.Unlock()
	p.bytes -= p.taken
	p.t.unread.give(p.taken)
	p.taken = 0
}

func (p *waiter) woken() chan struct{} { return p.wake }

// statuses are the HTTP statuses that errors of the modern era have; all others
// go with 200 (2026-07-28 basic/transports/streamable-http).
var statuses = map[string]int{
	"-32601": http.StatusNotFound,
	"-32020": http.StatusBadRequest,
	"-32021": http.StatusBadRequest,
	"-32022": http.StatusBadRequest,
}

// statusOf returns the HTTP status of a response that goes as plain JSON.
func statusOf(m *jsonrpc.Message) int {
	if m.Error != nil {
		code, _ := jsonrpc.Member(m.Error, "code")
		if status := statuses[string(code)]; status != 0 {
			return status
		}
	}
	return http.StatusOK
}
