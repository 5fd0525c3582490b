package replay

import (
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// An exchange is a recorded request, and all messages of the server that belong to it.
type exchange struct {
	line     int // of the request
	question question
	request  *jsonrpc.Message
	answer   *jsonrpc.Message // nil if there was none
	steps    []step

	cancelled bool // before there was an answer
}

// A step of an exchange is a message of the server, or the wait for one of the client.
type step struct {
	send *jsonrpc.Message

	reply       jsonrpc.ID // wait for the client's answer to the server's request with this id
	initialized bool       // wait for notifications/initialized
}

// A recordedConn is the state of a recorded connection while it is read.
type recordedConn struct {
	open   map[jsonrpc.ID]*exchange // requests of the client, by id; answered ones stay until the id is reused
	tokens map[string]*exchange     // requests of the client, by the text of their progress token
	asked  map[jsonrpc.ID]*exchange // requests of the server that the client has not answered
	newest []*exchange              // unanswered, in order
	last   *exchange                // began or was answered last
}

// newRecording divides messages into exchanges.
func newRecording(messages []recordedMessage) *Recording {
	r := &Recording{equal: make(map[string][]*exchange)}
	talks := make(map[string]*recordedConn)
	for _, m := range messages {
		t := talks[m.session]
		if t == nil || !m.fromServer && m.Method == mcp.MethodInitialize {
			t = &recordedConn{open: make(map[jsonrpc.ID]*exchange), tokens: make(map[string]*exchange), asked: make(map[jsonrpc.ID]*exchange)}
			talks[m.session] = t
		}
		if m.fromServer {
			t.server(m)
		} else if x := t.client(m); x != nil {
			r.exchanges = append(r.exchanges, x)
			r.equal[x.question.key()] = append(r.equal[x.question.key()], x)
		}
	}
	for _, x := range r.exchanges {
		x.finish()
	}
	return r
}

// client records a message to the server. It returns the exchange that begins with it, if any.
func (t *recordedConn) client(m recordedMessage) *exchange {
	switch {
	case m.IsRequest():
		x := &exchange{line: m.line, question: questionOf(m.Message), request: m.Message}
		t.open[m.ID], t.last = x, x
		t.newest = append(t.newest, x)
		if token := mcp.Read(m.Message).Raw(mcp.Token); token != nil {
			t.tokens[string(token)] = x
		}
		return x
	case m.IsResponse():
		if x := t.asked[m.ID]; x != nil {
			delete(t.asked, m.ID)
			x.steps = append(x.steps, step{reply: m.ID})
		}
	case m.Method == mcp.MethodInitialized:
		if x := t.last; x != nil && x.question.method == mcp.MethodInitialize {
			x.steps = append(x.steps, step{initialized: true})
		}
	case m.Method == mcp.MethodCancelled:
		id, _ := mcp.Read(m.Message).ID(mcp.Key)
		if x := t.open[id]; x != nil && x.answer == nil {
			x.cancelled = true
			t.settle(x)
		}
	}
	return nil
}

// server records a message of the server.
func (t *recordedConn) server(m recordedMessage) {
	x := t.about(m)
	if x == nil {
		return // it belongs to a request before the recording
	}
	switch {
	case m.IsResponse():
		if x.answer != nil {
			return
		}
		x.answer = m.Message
		t.settle(x)
	case m.IsRequest():
		t.asked[m.ID] = x
	}
	x.steps = append(x.steps, step{send: m.Message})
}

// settle records that an exchange was answered or cancelled.
func (t *recordedConn) settle(x *exchange) {
	t.last = x
	t.newest = slices.DeleteFunc(t.newest, func(other *exchange) bool { return other == x })
}

// about returns the exchange that a message of the server belongs to, nil if it is not in the
// recording. A message that names no request belongs to the newest unanswered request, or
// else to the last one.
func (t *recordedConn) about(m recordedMessage) *exchange {
	if m.IsResponse() {
		return t.open[m.ID]
	}
	n := mcp.Read(m.Message)
	switch m.Method {
	case mcp.MethodProgress:
		return t.tokens[string(n.Raw(mcp.Key))]
	case mcp.MethodCancelled:
		id, _ := n.ID(mcp.Key)
		return t.asked[id]
	}
	if id, ok := n.ID(mcp.Subscription); ok {
		return t.open[id]
	}
	if x := t.open[m.of]; x != nil && x.answer == nil {
		return x
	}
	for i := len(t.newest) - 1; i >= 0; i-- {
		if t.newest[i].question.method != mcp.MethodListen {
			return t.newest[i]
		}
	}
	return t.last
}

// finish gives an exchange without an answer an error, unless it was cancelled or is a
// subscription.
func (x *exchange) finish() {
	if x.answer == nil && !x.cancelled && x.question.method != mcp.MethodListen {
		x.answer = jsonrpc.NewError(x.request.ID, unanswered(x.line))
		x.steps = append(x.steps, step{send: x.answer})
	}
}
