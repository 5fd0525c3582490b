package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// A kind is a way to be a client.
type kind struct {
	name   string
	modern bool
	dial   func(w *world, tokens func() string, to receiver) (wire, error)
	leaves []string
}

var kinds = []kind{
	{"WebSocket", false, dialWebSocket, []string{"close", "hang up", "vanish"}},
	{"HTTP", false, dialHTTP, []string{"close", "hang up", "vanish"}},
	{"SSE", false, dialSSE, []string{"vanish"}},
	{"stdio", false, dialPipes, []string{"close", "vanish", "die"}},
	{"modern WebSocket", true, dialWebSocket, []string{"close", "hang up", "vanish"}},
	{"modern HTTP", true, dialModernHTTP, []string{"vanish"}},
	{"modern stdio", true, dialPipes, []string{"close", "vanish", "die"}},
}

func dialWebSocket(w *world, tokens func() string, to receiver) (wire, error) {
	return dialSocket("ws://"+w.address+"/ws", tokens(), to)
}

func dialHTTP(w *world, tokens func() string, to receiver) (wire, error) {
	return newPosts(w.url()+"/mcp", tokens, false, to), nil
}

func dialSSE(w *world, tokens func() string, to receiver) (wire, error) {
	return openEventStream(w.url(), tokens, to)
}

func dialModernHTTP(w *world, tokens func() string, to receiver) (wire, error) {
	return newPosts(w.url()+"/mcp", tokens, true, to), nil
}

// dialPipes is a client on stdio with a proxy of its own, which connects it to the proxy.
func dialPipes(w *world, tokens func() string, to receiver) (wire, error) {
	return runPipes([]string{w.binary, "connect", "ws://" + w.address + "/ws", "--header", "Authorization: Bearer " + tokens(),
		"--log-format", "json", "--log-level", "debug"}, filepath.Join(w.dir, "connect.log"), to)
}

// A client is one that joined, with a name that no other has. Its goroutines end in leave.
type client struct {
	name  string
	kind  *kind
	world *world
	wire  wire
	rec   *recorder
	plant *plant

	over context.Context // done when the connection has ended, or nothing is waited for any more
	end  context.CancelFunc

	sending sync.RWMutex // held while an operation is sent

	mu    sync.Mutex
	last  int                      // of the ids of requests
	asks  map[string]string        // requests of subscriptions: the server, by id
	open  map[string]*operation    // what an id asks for
	wait  map[string]chan struct{} // by nonce: closed when there is an outcome
	left  bool
	hello chan bool // whether initialize was answered with a result; takes one
}

// join connects a client. It is nil if that failed, which the history says.
func join(w *world, name string, k *kind, tokens func() string) *client {
	c := &client{name: name, kind: k, world: w, rec: w.rec, plant: w.plant, open: map[string]*operation{}, asks: map[string]string{},
		wait: map[string]chan struct{}{}, hello: make(chan bool, 1)}
	c.over, c.end = context.WithCancel(w.patience)
	c.rec.add(name, Join, "", k.name)
	if err := c.connect(w, tokens); err != nil {
		c.ended(err)
		if c.wire != nil {
			c.wire.leave("vanish")
		}
		c.rec.add(name, Gone, "", "")
		return nil
	}
	c.follow()
	return c
}

// connect dials, and in the legacy era initializes the session.
func (c *client) connect(w *world, tokens func() string) (err error) {
	if c.wire, err = c.kind.dial(w, tokens, c); err != nil || c.kind.modern {
		return err
	}
	c.wire.send(&message{ID: json.RawMessage(c.firstID()), Method: "initialize", Params: encode(object{"protocolVersion": legacyVersion,
		"capabilities": abilities, "clientInfo": object{"name": c.name, "version": "1"}})})
	select {
	case ok := <-c.hello:
		if !ok {
			return errInitialize
		}
		c.wire.send(&message{Method: "notifications/initialized"})
		return nil
	case <-c.over.Done():
		if w.patience.Err() != nil {
			c.rec.add(c.name, Hangs, "", "for the outcome of initialize")
		}
		return errors.New("the connection ended before initialize had an outcome")
	}
}

var errInitialize = errors.New("initialize failed")

// abilities are what clients can be asked.
var abilities = object{"elicitation": object{}, "sampling": object{}, "extensions": object{extensionTasks: object{}}}

// meta is what each request of a modern client has.
func (c *client) meta() object {
	return object{metaVersion: modernVersion, metaClient: object{"name": c.name, "version": "1"},
		metaCapabilities: abilities}
}

// do sends an operation and waits for its outcome, or the end of the client. A cancelled operation
// may have none: it is waited for as long as its answer may still come.
func (c *client) do(o *operation) {
	c.mu.Lock()
	c.wait[o.Nonce] = make(chan struct{})
	done := c.wait[o.Nonce]
	c.mu.Unlock()
	c.aim(o)
	c.sending.RLock()
	c.rec.add(c.name, Sent, o.Nonce, string(encode(o)))
	c.start(o)
	c.sending.RUnlock()
	switch {
	case o.CancelAfter > 0:
		if c.waits(done, o.CancelAfter) {
			c.cancel(o)
			c.waits(done, 200*time.Millisecond)
		}
		return
	case o.DropAfter > 0 && c.waits(done, o.DropAfter) && c.loses(o):
		return
	}
	select {
	case <-done:
	case <-c.over.Done():
	}
}

// waits waits for an outcome, and reports whether there is none after a time.
func (c *client) waits(outcome <-chan struct{}, d time.Duration) bool {
	select {
	case <-outcome:
	case <-c.over.Done():
	case <-time.After(d):
		return true
	}
	return false
}

// loses drops the response to an operation on legacy HTTP, and reports whether its outcome is lost.
func (c *client) loses(o *operation) bool {
	w, ok := c.wire.(*posts)
	if id := c.idOf(o); ok && !w.modern && id != "" && !w.lose(id, o.Resume) {
		c.rec.add(c.name, Lost, o.Nonce, "")
		return true
	}
	return false
}

// idOf returns the id of the last request of an operation.
func (c *client) idOf(o *operation) (id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := 0
	for i, open := range c.open {
		if n, _ := strconv.Atoi(i); open == o && n > last {
			id, last = i, n
		}
	}
	return id
}

// start sends the first request of an operation.
func (c *client) start(o *operation) {
	switch {
	case o.Server != "":
		c.call(o, object{})
	case o.Theirs != "":
		c.request(o, o.Method, object{"taskId": o.Theirs})
	default:
		c.request(o, cmp.Or(o.Method, "tools/list"), object{})
	}
}

func (c *client) call(o *operation, p object) {
	p["name"], p["arguments"] = c.world.named(o.Server), o.call
	if o.Task != "" && !c.kind.modern {
		p["task"] = object{"ttl": 60_000}
	}
	meta := object{}
	if o.Progress > 0 {
		meta["progressToken"] = o.Nonce
	}
	if o.Log > 0 && c.kind.modern {
		meta[metaLogLevel] = "info"
	}
	if len(meta) > 0 {
		p["_meta"] = meta
	}
	c.request(o, "tools/call", p)
}

// request sends a request of an operation.
func (c *client) request(o *operation, method string, p object) {
	c.mu.Lock()
	c.last++
	id := strconv.Itoa(c.last)
	c.open[id] = o
	c.mu.Unlock()
	if c.kind.modern {
		meta := c.meta()
		if given, ok := p["_meta"].(object); ok {
			maps.Copy(meta, given)
		}
		p["_meta"] = meta
	}
	c.wire.send(&message{ID: json.RawMessage(id), Method: method, Params: encode(p)})
}

func (c *client) cancel(o *operation) {
	if c.plant.server() == "lose a cancel" { // each, since only later calls on the same way show it
		c.rec.add(c.name, Cancel, o.Nonce, "")
		c.rec.add(c.name, Cancel, o.Nonce, "sent")
		return
	}
	if id := c.idOf(o); id != "" {
		c.rec.add(c.name, Cancel, o.Nonce, "")
		c.wire.cancel(id)
		c.rec.add(c.name, Cancel, o.Nonce, "sent")
	}
}

// receive takes a message, as the planted fault leaves it.
func (c *client) receive(m *message) {
	for _, m := range c.plant.change(c, m) {
		c.take(m)
	}
}

func (c *client) take(m *message) {
	switch {
	case m.isResponse() && string(m.ID) == c.firstID():
		c.hello <- m.Error == nil
	case m.isResponse() && c.subscribed(m):
	case m.isResponse():
		c.response(m)
	case m.Method == "notifications/resources/updated":
		p, _ := m.params()
		c.rec.add(c.name, Updated, p.Cause, serverOf(p.URI))
	case m.Method == "notifications/subscriptions/acknowledged":
		p, _ := m.params()
		if p.Notifications.ToolsListChanged {
			c.rec.add(c.name, Follows, "", "tools")
		}
		for _, uri := range p.Notifications.ResourceSubscriptions {
			c.rec.add(c.name, Follows, "", serverOf(uri))
		}
	case (m.Method == elicitation || m.Method == sampling) && m.isRequest():
		c.question(m)
	case m.Method == "notifications/progress":
		p, _ := m.params()
		c.rec.add(c.name, Progress, p.nonce(), fmt.Sprintf("%v %s", p.Progress, p.Message))
	case m.Method == "notifications/message":
		p, _ := m.params()
		c.rec.add(c.name, Logged, p.Data, "")
	case m.Method == "notifications/tools/list_changed":
		c.rec.add(c.name, Updated, "", "tools")
	case m.Method == "notifications/resources/list_changed":
	case m.Method == "notifications/cancelled": // of a question
	case m.Method == "ping":
		c.wire.send(&message{ID: m.ID, Result: json.RawMessage(`{}`)})
	case c.world.way != nil && m.isRequest():
		c.wire.send(&message{ID: m.ID, Error: json.RawMessage(`{"code":-32601,"message":"Method not found"}`)})
	default:
		c.rec.add(c.name, Odd, "", string(m.bytes()))
	}
}

// question answers what the client is asked with the nonce of the call that asks.
func (c *client) question(m *message) {
	p, _ := m.params()
	c.rec.add(c.name, Question, p.asker(), m.Method)
	c.wire.send(&message{ID: m.ID, Result: encode(answerTo(&p))})
}

func (c *client) response(m *message) {
	c.mu.Lock()
	o := c.open[string(m.ID)]
	c.mu.Unlock()
	if o == nil {
		c.rec.add(c.name, Odd, "", string(m.bytes()))
		return
	}
	if m.Error != nil {
		if c.lateCancel(o, m) {
			return
		}
		c.outcome(o, Failed, string(m.Error))
		return
	}
	var r struct {
		taskAnswer
		ResultType        string
		StructuredContent json.RawMessage
		RequestState      string
		InputRequests     map[string]message
		Tools             []toolName
		IsError           bool
	}
	if err := json.Unmarshal(m.Result, &r); err != nil {
		c.rec.add(c.name, Odd, o.Nonce, string(m.bytes()))
		return
	}
	switch {
	case r.IsError && c.world.way != nil: // the server has none of these
		c.outcome(o, Failed, string(m.Result))
	case r.ResultType == "input_required":
		replies := object{}
		for key, q := range r.InputRequests {
			p, _ := q.params()
			c.rec.add(c.name, Question, p.asker(), q.Method)
			replies[key] = answerTo(&p)
		}
		c.call(o, object{"inputResponses": replies, "requestState": r.RequestState})
	case o.Theirs != "" || o.Method != "":
		c.outcome(o, Result, string(m.Result))
	case o.Task != "" && r.StructuredContent == nil:
		c.follows(o, r.taskAnswer, string(m.Result))
	case o.Server == "":
		c.outcome(o, Result, string(encode(c.world.listed(r.Tools))))
		if !c.kind.modern {
			c.rec.add(c.name, Follows, "", "tools")
		}
	case r.StructuredContent == nil:
		c.outcome(o, Result, string(m.Result))
	default:
		c.outcome(o, Result, string(r.StructuredContent))
	}
}

func (c *client) outcome(o *operation, what What, text string) {
	c.rec.add(c.name, what, o.Nonce, text)
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.wait[o.Nonce]:
	default:
		close(c.wait[o.Nonce])
	}
}

func (c *client) refused(id, why string) {
	c.mu.Lock()
	o := c.open[id]
	c.mu.Unlock()
	switch {
	case id == c.firstID():
		c.hello <- false
	case o != nil:
		c.outcome(o, Failed, string(encode(object{"message": why})))
	}
}

func (c *client) ended(err error) {
	c.mu.Lock()
	left := c.left
	c.mu.Unlock()
	if !left {
		c.rec.add(c.name, Broken, "", err.Error())
	}
	c.end()
}

// leave ends the client, and returns when nothing more arrives.
func (c *client) leave(how string) {
	c.mu.Lock()
	c.left = true
	c.mu.Unlock()
	if how == "close" { // what was sent before it has an outcome
		c.sending.Lock()
		c.rec.add(c.name, Left, "", how)
		c.sending.Unlock()
	} else {
		c.rec.add(c.name, Left, "", how)
	}
	c.wire.leave(how)
	c.rec.add(c.name, Gone, "", "")
	c.end()
}
