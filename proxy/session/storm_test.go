package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// TestStorm lets clients and upstreams do everything at once, in both eras, and checks that every
// call is answered once, unless it was cancelled. The bubble keeps a slow machine from running into
// timeouts.
func TestStorm(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) { storm(t, seed) })
	}
}

func storm(t *testing.T, seed uint64) {
	p := &Router{
		Upstreams: []Upstream{{Name: "a", RequestTimeout: 20 * time.Millisecond}, {Name: "b"}, {Name: "c"}},
		Dial:      DialFunc(stormyUpstream),
		Limits:    Limits{ListTimeout: 50 * time.Millisecond, Drain: 50 * time.Millisecond},
	}
	var clients, links sync.WaitGroup
	for i := range uint64(20) {
		clients.Go(func() { newStormyClient(t, p, 100*seed+i).run() })
	}
	calm := make(chan struct{})
	if seed%2 == 1 {
		links.Go(func() { stormyLinks(p, calm) })
	}
	clients.Wait()
	close(calm)
	links.Wait()
	if len(p.sessions) > 0 {
		t.Error("sessions left:", len(p.sessions))
	}
}

// stormyLinks makes upstreams come, go, change and return until it is calm.
func stormyLinks(p *Router, calm <-chan struct{}) {
	for {
		select {
		case <-calm:
			return
		case <-time.After(rand.N(10 * time.Millisecond)):
		}
		set := []Upstream{{Name: "a", RequestTimeout: 20 * time.Millisecond}, {Name: "b", Deny: []string{"x"}}, {Name: "c"}}
		rand.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
		p.Update(set[:rand.N(len(set)+1)], map[bool][]Unknown{false: farAway}[rand.N(2) == 0])
		p.Returned("a", "c")
	}
}

// stormyUpstream answers late, never, twice, or dies; it also asks, changes its lists and sends
// progress.
func stormyUpstream(_ context.Context, name, _ string, _ mcp.Era) (jsonrpc.Conn, error) {
	if rand.N(10) == 0 {
		return nil, &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
	}
	ours, theirs := jsonrpc.Pipe()
	go func() {
		defer ours.Close()
		for {
			m, err := ours.Recv()
			if err != nil {
				return
			}
			if !m.IsRequest() {
				continue
			}
			switch n := rand.N(40); {
			case n == 0:
				ours.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Delivered: true})
				return
			case n < 4 && m.Method == "tools/call": // never
				continue
			case n < 8:
				ours.Send(jsonrpc.NewRequest(m.ID, "roots/list", nil))
			case n < 12:
				(&party{conn: ours}).tell(m.ID, "notifications/tools/list_changed", "")
			case n < 14 && m.Method == "subscriptions/listen":
				ours.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"resultType":"complete"}`)))
				continue
			case n < 16:
				ours.Send(jsonrpc.NewNotification("notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":1}`, m.ID)))
			}
			stormyEcho(ours, name, m)
		}
	}()
	return theirs, nil
}

func stormyEcho(c *jsonrpc.PipeConn, name string, m *jsonrpc.Message) {
	p := &party{conn: c}
	echo(name)(p, m)
	if rand.N(10) == 0 {
		echo(name)(p, m)
	}
}

// A stormyClient calls, cancels, answers, and leaves in one of three ways.
type stormyClient struct {
	t     *testing.T
	proxy *Router
	conn  *jsonrpc.PipeConn
	rng   *rand.Rand

	mu   sync.Mutex
	open map[string]bool // calls without answer; true if cancelled

	synced chan struct{} // closed when the proxy has read all calls
}

func newStormyClient(t *testing.T, p *Router, seed uint64) *stormyClient {
	return &stormyClient{t: t, proxy: p, rng: rand.New(rand.NewPCG(seed, 1)), open: map[string]bool{}, synced: make(chan struct{})}
}

func (c *stormyClient) run() {
	ctx, force := context.WithCancel(context.Background())
	defer force()
	conn, theirs := jsonrpc.Pipe()
	c.conn = conn
	ended := make(chan error, 1)
	go func() { ended <- c.proxy.Serve(ctx, identity.Nobody, "", theirs) }()
	var reading sync.WaitGroup
	reading.Go(c.read)
	c.talk()
	gone := false
	switch c.rng.IntN(3) {
	case 0:
		c.call(`"sync"`, "ping", `{}`)
		<-c.synced
		force()
	case 1:
		conn.CloseWrite()
	case 2:
		gone = true
		conn.Close()
	}
	select {
	case err := <-ended:
		if !errors.Is(err, jsonrpc.ErrClosed) {
			c.t.Error("ended with", err)
		}
	case <-time.After(30 * time.Second):
		c.t.Error("Serve hangs")
	}
	conn.Close()
	reading.Wait()
	for id, cancelled := range c.open {
		if !cancelled && !gone {
			c.t.Error("no answer to", id)
		}
	}
}

func (c *stormyClient) talk() {
	c.call("0", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`)
	calls := []struct{ method, params string }{
		{"tools/call", `{"name":"a__echo","_meta":{"progressToken":"t"}}`},
		{"tools/call", `{"name":"b__echo","task":{}}`},
		{"tools/call", `{"name":"c__other"}`},
		{"prompts/get", `{"name":"ask"}`},
		{"tools/list", `{}`},
		{"resources/list", `{}`},
		{"resources/read", `{"uri":"test://b/t/1"}`},
		{"resources/subscribe", `{"uri":"test://nobody"}`},
		{"logging/setLevel", `{"level":"info"}`},
		{"tasks/list", `{}`},
		{"vendor/own", `{}`},
		{"server/discover", `{}`},
		{"subscriptions/listen", `{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["test://b/a","test://nobody"]}}`},
		{"tasks/get", `{"taskId":"t"}`},
		{"ping", `{}`},
	}
	for id := 1; id < 60; id++ {
		one := calls[c.rng.IntN(len(calls))]
		c.call(fmt.Sprint(id), one.method, one.params)
		if c.rng.IntN(4) == 0 {
			c.cancel(fmt.Sprint(1 + c.rng.IntN(id)))
		}
		if c.rng.IntN(10) == 0 {
			time.Sleep(time.Duration(c.rng.IntN(5)) * time.Millisecond)
		}
	}
}

func (c *stormyClient) call(id, method, params string) {
	c.mu.Lock()
	c.open[id] = false
	c.mu.Unlock()
	parsed, _ := jsonrpc.ParseID([]byte(id))
	m := jsonrpc.NewRequest(parsed, method, json.RawMessage(params))
	if method != "initialize" && method != "ping" && c.rng.IntN(2) == 0 {
		m.Params = mcp.SetMeta(m.Params, claim...)
	}
	c.conn.Send(m)
}

func (c *stormyClient) cancel(id string) {
	c.mu.Lock()
	if _, open := c.open[id]; open {
		c.open[id] = true
	}
	c.mu.Unlock()
	c.conn.Send(jsonrpc.NewNotification("notifications/cancelled", json.RawMessage(`{"requestId":`+id+`}`)))
}

func (c *stormyClient) read() {
	for {
		m, err := c.conn.Recv()
		switch {
		case err != nil:
			return
		case m.IsRequest():
			c.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"roots":[]}`)))
		case m.IsResponse():
			c.mu.Lock()
			if _, open := c.open[m.ID.String()]; !open {
				c.t.Error("second answer, or one to nothing:", string(m.Append(nil)))
			}
			delete(c.open, m.ID.String())
			c.mu.Unlock()
			if m.ID.String() == `"sync"` {
				close(c.synced)
			}
		}
	}
}
