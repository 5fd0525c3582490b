package listen

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A server is a scripted upstream.
type server struct {
	name   string
	idle   atomic.Bool
	slow   bool   // Listen returns a second after it was cancelled, with an answer that has come meanwhile
	logged func() // called for what is logged, as the end of a listen is; may be nil
	done   <-chan struct{}
	hangUp context.CancelFunc

	mu      sync.Mutex
	listens []*listening // all since the start
}

// A listening is one subscriptions/listen at a server.
type listening struct {
	server  *server
	params  string
	receive func(*jsonrpc.Message)
	answer  chan *jsonrpc.Message
	ended   atomic.Bool
}

func newServer(name string) *server {
	ctx, cancel := context.WithCancel(context.Background())
	return &server{name: name, done: ctx.Done(), hangUp: cancel}
}

func (s *server) Done() <-chan struct{} { return s.done }
func (s *server) IsIdle() bool          { return s.idle.Load() }

func (s *server) Log() *slog.Logger {
	if s.logged != nil {
		s.logged()
	}
	return slog.New(slog.DiscardHandler)
}

func (s *server) Listen(ctx context.Context, params json.RawMessage, receive func(*jsonrpc.Message)) (*jsonrpc.Message, error) {
	l := &listening{server: s, params: string(params), receive: receive, answer: make(chan *jsonrpc.Message, 1)}
	s.mu.Lock()
	s.listens = append(s.listens, l)
	s.mu.Unlock()
	defer l.ended.Store(true)
	select {
	case answer := <-l.answer:
		return answer, nil
	case <-ctx.Done():
		if s.slow {
			time.Sleep(time.Second)
		}
		select {
		case answer := <-l.answer:
			return answer, nil
		default:
			return nil, ctx.Err()
		}
	}
}

// listening returns the last listen of n, once everything is idle.
func (s *server) listening(t *testing.T, n int) *listening {
	t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.listens) != n {
		t.Fatalf("%s got %d listens, want %d", s.name, len(s.listens), n)
	}
	if n == 0 {
		return nil
	}
	return s.listens[n-1]
}

// say sends a notification of the listen.
func (l *listening) say(method, params string) {
	l.receive(jsonrpc.NewNotification(method, json.RawMessage(params)))
}

// acknowledge accepts a filter; "" is all of it.
func (l *listening) acknowledge(filter string) {
	if filter == "" {
		all, _ := jsonrpc.Member(json.RawMessage(l.params), "notifications")
		filter = string(all)
	}
	l.say(mcp.MethodAcknowledged, `{"notifications":`+filter+`}`)
}

// refuse answers the listen with an error.
func (l *listening) refuse(code int) {
	l.answer <- &jsonrpc.Message{Error: json.RawMessage(fmt.Sprintf(`{"code":%d,"message":"no"}`, code))}
}

// A client is a subscription's client that collects what it gets. Its methods take the lock of the
// subscriptions: none of them is called with that held, or the test hangs.
type client struct {
	subs *Subscriptions

	mu       sync.Mutex
	split    Split
	changed  bool          // since the last Split
	blind    bool          // to lists
	denied   bool          // updates of resources
	room     chan struct{} // Tell waits for it before it returns; nil: it does not wait
	got      []string
	dropped  []string
	verified []string
}

func (c *client) lock() {
	c.subs.Len()
	c.mu.Lock()
}

// follow sets the next split.
func (c *client) follow(s Split) {
	c.lock()
	defer c.mu.Unlock()
	c.split, c.changed = s, true
}

func (c *client) Split(context.Context) (Split, bool) {
	c.lock()
	defer c.mu.Unlock()
	changed := c.changed
	c.changed = false
	return c.split, changed
}

func (c *client) Note(_ Upstream, m *jsonrpc.Message) bool {
	c.lock()
	defer c.mu.Unlock()
	return m.Method != mcp.MethodResourceUpdated || !c.denied
}

func (c *client) Verify(at Upstream, lists [catalog.Kinds]bool) {
	c.lock()
	defer c.mu.Unlock()
	c.verified = append(c.verified, fmt.Sprint(at.(*server).name, lists))
}

func (c *client) TaskName(at Upstream, id string) string { return at.(*server).name + "__" + id }

func (c *client) Sees(Upstream, catalog.Kind) bool {
	c.lock()
	defer c.mu.Unlock()
	return !c.blind
}

func (c *client) Tell(m *jsonrpc.Message) {
	c.lock()
	c.got = append(c.got, strings.TrimPrefix(m.Method, "notifications/")+" "+string(m.Params))
	room := c.room
	c.mu.Unlock()
	if room != nil {
		<-room
	}
}

func (c *client) Drop(reason string, _ *jsonrpc.Message) {
	c.lock()
	defer c.mu.Unlock()
	c.dropped = append(c.dropped, reason)
}

func (c *client) End() {
	c.lock()
	defer c.mu.Unlock()
	c.got = append(c.got, "end")
}

// want checks what the client got since the last call, once everything is idle. The member of _meta
// that every notification has is left out.
func (c *client) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	c.lock()
	defer c.mu.Unlock()
	const meta = `"_meta":{"` + mcp.KeySubscription + `":"l"}}`
	var got []string
	for _, text := range c.got {
		bare, ok := strings.CutSuffix(text, meta)
		if !ok && text != "end" {
			t.Errorf("not of the subscription: %s", text)
		}
		if ok {
			bare = strings.TrimSuffix(bare, ",") + "}"
		}
		got = append(got, bare)
	}
	c.got = nil
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got:\n%s\nwant:\n%s", g, w)
	}
}

// A world is the subscriptions of a client with two upstreams, in a synctest bubble.
type world struct {
	*testing.T
	subs   *Subscriptions
	client *client // of the one subscription that begin begins
	a, b   *server
	cancel context.CancelFunc
	ended  chan struct{}
}

const acceptWithin = 8 * time.Second

const (
	lists     = `{"toolsListChanged":true}`
	resources = `{"toolsListChanged":true,"resourceSubscriptions":["x:1","x:2"]}`
)

// listenID is the id of the client's request.
var listenID, _ = jsonrpc.ParseID([]byte(`"l"`))

// filter reads a filter.
func filter(t *testing.T, text string) mcp.Filter {
	t.Helper()
	f, err := mcp.ReadFilter(mcp.ReadParams(mcp.MethodListen, json.RawMessage(`{"notifications":`+text+`}`)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func inWorld(t *testing.T, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		subs := &Subscriptions{Most: 2, EarlyBytes: 1 << 10, AcceptWithin: acceptWithin}
		w := &world{T: t, subs: subs, client: &client{subs: subs}, a: newServer("a"), b: newServer("b")}
		test(w)
		if w.cancel != nil {
			w.cancel()
			<-w.ended
		}
		if n := subs.Len(); n != 0 {
			t.Errorf("%d subscriptions keep their places", n)
		}
	})
}

// over makes servers the upstreams of the client, each with the same filter.
func (w *world) over(want string, servers ...*server) {
	w.Helper()
	parts := make(map[Upstream]mcp.Filter)
	f := filter(w.T, want)
	f.As = nil // several upstreams get a text of ours
	for _, s := range servers {
		parts[s] = f
	}
	w.client.follow(Split{Parts: parts, None: len(servers) == 0})
}

// begin begins a subscription to servers.
func (w *world) begin(want string, servers ...*server) {
	w.Helper()
	w.over(want, servers...)
	w.run(want)
}

func (w *world) run(want string) {
	w.Helper()
	sub := w.subs.Begin(listenID, filter(w.T, want), json.RawMessage(`{"k":1}`), w.client)
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.ended = cancel, make(chan struct{})
	go func() { defer close(w.ended); sub.Run(ctx) }()
}
