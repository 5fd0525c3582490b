package peer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// A tap is a Conn that records the messages sent.
type tap struct {
	*jsonrpc.PipeConn

	mu   sync.Mutex
	sent []*jsonrpc.Message
}

func (c *tap) Send(m *jsonrpc.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.PipeConn.Send(m)
	if err == nil {
		c.sent = append(c.sent, m)
	}
	return err
}

// SendNow implements [jsonrpc.Prompt].
func (c *tap) SendNow(m jsonrpc.Queued) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	leaves := &leaving{Queued: m}
	now := c.PutNow(jsonrpc.Queued{Message: m.Message, Of: leaves})
	if leaves.left {
		c.sent = append(c.sent, m.Message)
	}
	return now
}

// A directTap is a tap that implements [jsonrpc.Direct].
type directTap struct{ *tap }

func (c directTap) OnSend(handle func(*jsonrpc.Message) bool) { c.HandleWith(handle) }

// A leaving message notes whether it has left.
type leaving struct {
	jsonrpc.Queued
	left bool
}

func (l *leaving) Leave() bool {
	l.left = l.Queued.Leave()
	return l.left
}

// A side is a Peer, its Conn, and the outcome of everything on it.
type side struct {
	*peer.Peer
	name string
	conn *tap
	done chan error // of Run

	mu       sync.Mutex
	open     []*peer.Request       // that the test has not settled
	settled  map[*peer.Request]int // how often each request was settled
	calls    []*peer.Call          // that were made, and
	ended    map[*peer.Call]int    // how often each was
	notes    []string              // notifications that came
	progress map[*peer.Call]int    // that came for a call
	trace    map[*peer.Call]bool   // calls that must not leave a trace on the wire
}

func newSide(name string, o peer.Options) *side {
	s := &side{name: name, done: make(chan error, 1),
		settled: make(map[*peer.Request]int), ended: make(map[*peer.Call]int),
		progress: make(map[*peer.Call]int), trace: make(map[*peer.Call]bool)}
	o.Notified = func(m *jsonrpc.Message, _ *peer.Call) { s.locked(func() { s.notes = append(s.notes, m.Method) }) }
	if o.Request == nil {
		o.Request = s.keep
	}
	s.Peer = peer.New(o)
	return s
}

func (s *side) locked(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
}

// keep is the handler of a side at the end of the chain, where the test settles requests.
func (s *side) keep(r *peer.Request) {
	s.locked(func() { // in one step: it may be answered as soon as it is open
		if r.OnCancel(func(*jsonrpc.Message, jsonrpc.Span) { s.settles(r) }) {
			s.open = append(s.open, r)
		} else {
			s.settled[r]++
		}
	})
}

func (s *side) settles(r *peer.Request) {
	s.locked(func() {
		s.settled[r]++
		s.open = slices.DeleteFunc(s.open, func(o *peer.Request) bool { return o == r })
	})
}

func (s *side) run(t *testing.T, c *jsonrpc.PipeConn, direct bool) {
	s.conn = &tap{PipeConn: c}
	var conn jsonrpc.Conn = s.conn
	if direct {
		conn = directTap{s.conn}
	}
	go func() {
		err := s.Run(t.Context(), conn)
		s.End(err)
		s.done <- err
	}()
}

// call makes a call.
func (s *side) call(params string) *peer.Call {
	c := s.NewCall("work")
	c.Works = true
	c.Done = func(*jsonrpc.Message, *peer.Lost) { s.locked(func() { s.ended[c]++ }) }
	c.Progress = func(*jsonrpc.Message, jsonrpc.Span) { s.locked(func() { s.progress[c]++ }) }
	s.locked(func() { s.calls = append(s.calls, c) })
	if err := c.Send(&jsonrpc.Message{Params: json.RawMessage(params)}); err != nil {
		s.locked(func() { s.ended[c]++; s.trace[c] = true })
	}
	return c
}

// cancel cancels a call. A call that was not sent must leave no trace.
func (s *side) cancel(c *peer.Call) {
	if c.Cancel("enough") {
		sent := c.Sent()
		s.locked(func() { s.ended[c]++; s.trace[c] = !sent })
	}
}

// A chain is a client, a proxy, and a server.
//
//	client ── near: Forward :far ── server
type chain struct {
	client, near, far, server *side
}

// newChain returns one. If direct is set, senders handle all messages to near, and the answers to far's
// calls, in their own goroutines.
func newChain(t *testing.T, direct bool) *chain {
	w := &chain{client: newSide("client", peer.Options{}), server: newSide("server", peer.Options{})}
	w.near = newSide("near", peer.Options{
		Request: func(r *peer.Request) { w.forward(r, w.near, w.far) },
		Ready:   func(bool) bool { return true },
	})
	w.far = newSide("far", peer.Options{
		Name: "files", Request: func(r *peer.Request) { w.forward(r, w.far, w.near) },
		Full: func(*jsonrpc.Message) {}, Room: jsonrpc.Room{Messages: 4},
	})
	a, b := jsonrpc.Pipe()
	c, d := jsonrpc.Pipe()
	w.client.run(t, a, direct)
	w.near.run(t, b, direct)
	w.far.run(t, c, direct)
	w.server.run(t, d, direct)
	return w
}

// forward forwards a request of one side to the other, with the token of its call.
func (w *chain) forward(r *peer.Request, from, to *side) {
	if r.Method == "ping" {
		r.Respond(&jsonrpc.Message{Result: json.RawMessage(`{}`)})
		return
	}
	c := to.NewCall(r.Method)
	c.Passes = true
	c.Progress = func(m *jsonrpc.Message, at jsonrpc.Span) {
		from.Send(&jsonrpc.Message{Method: m.Method,
			Params: jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: r.ID.Raw()})})
	}
	if err := r.Forward(c, &jsonrpc.Message{Params: r.Message.Params}); err != nil {
		r.Fail(jsonrpc.Overloaded("files"))
	}
}

func (w *chain) sides() []*side { return []*side{w.client, w.near, w.far, w.server} }

// end ends the rest, and checks the six sentences.
func (w *chain) end(t *testing.T) {
	t.Helper()
	for _, s := range w.sides() {
		s.conn.Close()
	}
	for _, s := range w.sides() {
		if err := <-s.done; !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("%s ends with %v", s.name, err)
		}
	}
	synctest.Wait()
	for _, s := range w.sides() {
		s.check(t)
	}
}

// check checks the sentences that one side shows.
func (s *side) check(t *testing.T) {
	t.Helper()
	if calls, requests := s.Open(); calls+requests > 0 {
		t.Errorf("%s: %d calls and %d requests are open after the end (3)", s.name, calls, requests)
	}
	if err := s.NewCall("late").Send(&jsonrpc.Message{}); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("%s: a call after the end: %v (3)", s.name, err)
	}
	for _, c := range s.calls {
		if s.ended[c] != 1 {
			t.Errorf("%s: call %s was settled %d times (1, 2)", s.name, c.ID, s.ended[c])
		}
	}
	for r, n := range s.settled {
		if n != 1 {
			t.Errorf("%s: request %s was settled %d times (1, 2)", s.name, r.ID, n)
		}
	}
	if len(s.open) > 0 {
		t.Errorf("%s: %d requests were not settled (2, 3)", s.name, len(s.open))
	}
	requests, answered, cancelled := make(map[string]int), make(map[string]int), make(map[string]int)
	for _, m := range s.conn.sent {
		switch {
		case m.IsRequest():
			requests[m.ID.String()]++
		case m.Method == "notifications/cancelled":
			text, _ := jsonrpc.Member(m.Params, "requestId")
			if requests[string(text)] != 1 {
				t.Errorf("%s cancels %s, which it did not send (4)", s.name, text)
			}
			cancelled[string(text)]++
		case m.IsResponse():
			answered[m.ID.String()]++
		}
	}
	for _, count := range []map[string]int{requests, answered, cancelled} {
		for id, n := range count {
			if n != 1 {
				t.Errorf("%s: %s was sent %d times (1)", s.name, id, n)
			}
		}
	}
	for c, none := range s.trace {
		if none && requests[c.ID.String()] > 0 {
			t.Errorf("%s: %s was cancelled before it was sent, and sent (4)", s.name, c.ID)
		}
	}
}

// late checks that nothing was answered after its cancellation had been handled: whoever took the
// request at near has decided (5).
func (w *chain) late(t *testing.T) {
	t.Helper()
	for _, s := range []*side{w.client, w.server} {
		to := w.near
		if s == w.server {
			to = w.far
		}
		cancelled := make(map[string]bool)
		for _, m := range s.conn.sent {
			if m.Method == "notifications/cancelled" {
				text, _ := jsonrpc.Member(m.Params, "requestId")
				cancelled[string(text)] = true
			}
		}
		for _, m := range to.conn.sent {
			if m.IsResponse() && cancelled[m.ID.String()] {
				t.Errorf("%s answers %s, which was cancelled before (5)", to.name, m.ID)
			}
		}
	}
}

func progress(id jsonrpc.ID) *jsonrpc.Message {
	return jsonrpc.NewNotification("notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":1}`, id))
}
