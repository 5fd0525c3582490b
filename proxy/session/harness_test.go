package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// debounce is how long packages lists and listen hold back a list_changed.
const debounce = 50 * time.Millisecond

// A world is a proxy between a scripted client and scripted upstreams, all in one synctest bubble.
type world struct {
	t          *testing.T
	era        mcp.Era // of what the client says, see inEras
	translated bool    // the servers are of the legacy era, and the clients are not; see publish
	proxy      *Router
	path       string // of the client: one upstream, "" for all
	client     *party
	ended      chan error
	cancel     context.CancelFunc

	mu    sync.Mutex
	conns map[string][]*party                       // streams opened so far, by upstream
	dial  map[string]error                          // upstreams that cannot be reached
	hands map[string]func(*party, *jsonrpc.Message) // of upstreams that do more than echo
}

// A party is the test's end of a Conn, which collects what it receives.
type party struct {
	t    *testing.T
	conn *jsonrpc.PipeConn
	hand func(*party, *jsonrpc.Message) // nil: collect only
	era  mcp.Era                        // dresses what it says and undresses what it gets
	who  *identity.Identity             // of what it says; nil: as its session

	mu  sync.Mutex
	got []string
	err error // how Recv ended
}

// inWorld runs test in a bubble with the named upstreams, each an echo server
// unless the test changes its party.hand.
func inWorld(t *testing.T, p *Router, names []string, test func(w *world)) {
	inWorldOf(t, mcp.Legacy, p, names, test)
}

func inWorldOf(t *testing.T, era mcp.Era, p *Router, names []string, test func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, era: era, proxy: p, conns: map[string][]*party{}, dial: map[string]error{}}
		for _, n := range names {
			p.Upstreams = append(p.Upstreams, Upstream{Name: n})
		}
		if p.Dial == nil {
			p.Dial = DialFunc(w.open)
		}
		w.connect()
		defer func() {
			w.cancel()
			<-w.ended
			w.hangUp()
			synctest.Wait()
		}()
		test(w)
	})
}

func (w *world) connect() {
	ctx, cancel := context.WithCancel(context.Background())
	ours, theirs := jsonrpc.Pipe()
	w.cancel, w.ended = cancel, make(chan error, 1)
	ended := w.ended
	w.client = newPeer(w.t, ours, nil)
	w.client.era = w.era
	go func() { ended <- w.proxy.Serve(ctx, identity.Nobody, w.path, theirs); close(ended) }()
}

// configure changes the proxy, which nobody uses meanwhile.
func (w *world) configure(change func(p *Router)) {
	w.cancel()
	<-w.ended
	w.client.conn.Close()
	change(w.proxy)
	w.connect()
}

func (w *world) open(_ context.Context, upstream, _ string, era mcp.Era) (jsonrpc.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.dial[upstream]; err != nil {
		return nil, err
	}
	ours, theirs := jsonrpc.Pipe()
	hand := w.hands[upstream]
	if hand == nil {
		hand = echo(upstream)
	}
	p := newPeer(w.t, ours, hand)
	p.era = w.era
	w.conns[stream(upstream, era)] = append(w.conns[stream(upstream, era)], p)
	return theirs, nil
}

const modernStream = "@modern"

// stream returns the name of the streams of an era to an upstream in a world.
func stream(upstream string, era mcp.Era) string {
	if era == mcp.Modern {
		return upstream + modernStream
	}
	return upstream
}

// upstream returns the test's end of the newest stream to an upstream, once everything is idle;
// "@modern" after the name selects the modern era.
func (w *world) upstream(name string) *party {
	w.t.Helper()
	synctest.Wait()
	return w.newest(name)
}

func (w *world) newest(name string) *party {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	name = stream(name, w.era)
	if len(w.conns[name]) == 0 {
		w.t.Fatalf("no stream to %s", name)
	}
	return w.conns[name][len(w.conns[name])-1]
}

func (w *world) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, peers := range w.conns {
		for _, p := range peers {
			p.conn.Close()
		}
	}
	w.client.conn.Close()
}

// initialize does the handshake of a client.
func (w *world) initialize() {
	if w.era == mcp.Modern {
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"server/discover"}`)
		w.client.take()
		return
	}
	w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	synctest.Wait()
	w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	synctest.Wait()
	w.client.take()
}

// list makes the client list all tools, so that names are known.
func (w *world) list() {
	w.client.say(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
	w.client.take()
}

func newPeer(t *testing.T, conn *jsonrpc.PipeConn, hand func(*party, *jsonrpc.Message)) *party {
	p := &party{t: t, conn: conn, hand: hand}
	go func() {
		for {
			m, err := conn.Recv()
			p.mu.Lock()
			if err != nil {
				p.err = err
				p.mu.Unlock()
				return
			}
			hand := p.hand
			p.got = append(p.got, p.text(m)+refusalOf(m))
			p.mu.Unlock()
			if hand != nil {
				hand(p, m)
			}
		}
	}()
	return p
}

// say sends one message, given as JSON text.
func (p *party) say(text string) {
	p.t.Helper()
	m, err := jsonrpc.Decode([]byte(text))
	if err != nil {
		p.t.Fatalf("say %s: %v", text, err)
	}
	p.send(m)
}

func (p *party) send(m *jsonrpc.Message) {
	p.t.Helper()
	if p.era == mcp.Modern && m.IsRequest() {
		m.Params = mcp.SetMeta(m.Params, claim...)
	}
	m.From = p.who
	if err := p.conn.Send(m); err != nil && !errors.Is(err, jsonrpc.ErrClosed) {
		p.t.Fatal(err)
	}
}

// refusalOf returns the refusal of an answer for the front end, "" for none.
func refusalOf(m *jsonrpc.Message) string {
	if m.Refused == nil {
		return ""
	}
	return fmt.Sprintf(" refused: %d %s %v %v", m.Refused.Status, m.Refused.Code, m.Refused.Scopes, m.Refused.RetryAfter)
}

// mute makes the party collect messages without answering.
func (p *party) mute() { p.handle(nil) }

func (p *party) handle(hand func(*party, *jsonrpc.Message)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hand = hand
}

// take returns the messages since the last take, once everything is idle.
func (p *party) take() []string {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.got
	p.got = nil
	return got
}

// gone reports whether the other side closed.
func (p *party) gone() bool {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err != nil && p.err != io.EOF
}

// want checks the messages since the last take, in order.
func (p *party) want(want ...string) {
	p.t.Helper()
	got := p.take()
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		p.t.Errorf("got:\n%s\nwant:\n%s", g, w)
	}
}

// echo answers like a server with one tool "echo", whose result is its arguments.
func echo(name string) func(*party, *jsonrpc.Message) {
	return func(p *party, m *jsonrpc.Message) {
		if !m.IsRequest() {
			return
		}
		result := `{}`
		switch m.Method {
		case "initialize":
			result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"logging":{},"completions":{}},"serverInfo":{"name":"` + name + `","version":"1"}}`
		case "server/discover":
			result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"completions":{}},"ttlMs":0,"cacheScope":"private"}`
		case "subscriptions/listen": // no answer
			acknowledge(p, m)
			return
		case "tools/list":
			result = `{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`
		case "prompts/list":
			result = `{"prompts":[{"name":"ask"}]}`
		case "resources/list":
			result = `{"resources":[{"uri":"test://` + name + `/a","name":"a"}]}`
		case "resources/templates/list":
			result = `{"resourceTemplates":[{"uriTemplate":"test://` + name + `/t/{x}","name":"t"}]}`
		case "tools/call":
			args, _ := jsonrpc.Member(m.Params, "arguments")
			result = `{"content":[],"structuredContent":{"by":"` + name + `","args":` + string(orDefaultRaw(args)) + `}}`
		}
		p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(result)))
	}
}

// acknowledge accepts all of a subscription.
func acknowledge(p *party, m *jsonrpc.Message) {
	filter, _ := jsonrpc.Member(m.Params, "notifications")
	p.tell(m.ID, "notifications/subscriptions/acknowledged", `"notifications":`+string(filter))
}

// tell sends a notification of a subscription, whose id on this stream is given.
func (p *party) tell(listen jsonrpc.ID, method, members string) {
	params := mcp.SetMeta(json.RawMessage(`{`+members+`}`), jsonrpc.Value{Key: mcp.KeySubscription, Text: listen.Raw()})
	p.conn.Send(&jsonrpc.Message{Method: method, Params: params, Related: listen})
}

func orDefaultRaw(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return json.RawMessage(`{}`)
	}
	return raw
}

// cc is the text of the connection-closed error.
func cc(id any, code int, upstream, cause, phase string) string {
	return ccOf(id, code, upstream, jsonrpc.ClosedError{Cause: jsonrpc.ParseCause(cause)}, phase)
}

// ccOf is cc for an end with more details than its cause. The end of an upstream's stream is an
// event.
func ccOf(id any, code int, upstream string, end jsonrpc.ClosedError, phase string) string {
	if upstream != "" && end.Cause != (jsonrpc.Cause{}) && end.Cause != jsonrpc.CauseStartTimeout {
		end.Event = anEvent
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%v,"error":%s}`, id, end.Wire(code, upstream, jsonrpc.Phase(phase)).Raw())
}

// anEvent replaces every event in compared texts.
const anEvent = "anyevent"

var events = regexp.MustCompile(`"event":"[0-9a-hjkmnp-tv-z]{8}"`)

// sameEvent replaces the event of an error by anEvent, if it is valid.
func sameEvent(text string) string {
	return events.ReplaceAllLiteralString(text, `"event":"`+anEvent+`"`)
}

func decode(t *testing.T, text string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// gated is the world's DialFunc behind a gate.
func gated(w *world, gate <-chan struct{}) DialFunc {
	return DialFunc(func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error) {
		select {
		case <-gate:
			return w.open(ctx, upstream, key, era)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
}

// A stuckConn is a client that sends and never reads.
type stuckConn struct {
	in     chan *jsonrpc.Message
	closed chan struct{}
	once   sync.Once
}

func newStuckConn() *stuckConn {
	return &stuckConn{in: make(chan *jsonrpc.Message), closed: make(chan struct{})}
}

func (c *stuckConn) say(m *jsonrpc.Message) {
	select {
	case c.in <- m:
	case <-c.closed:
	}
}

func (c *stuckConn) Recv() (*jsonrpc.Message, error) {
	select {
	case m := <-c.in:
		return m, nil
	case <-c.closed:
		return nil, jsonrpc.ErrClosed
	}
}

func (c *stuckConn) Send(*jsonrpc.Message) error {
	<-c.closed
	return jsonrpc.ErrClosed
}

func (c *stuckConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// Values of package lists: how often names that nobody knows may make an upstream of the modern era
// list anew, and how long calls go unchecked once it did not list its tools in time.
const (
	relist  = time.Second
	relearn = time.Minute
)
