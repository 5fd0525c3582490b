//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A backend is one of several proxies behind a balancer. It is restarted at a new address.
type backend struct {
	dir   string // of its socket for operators
	busy  atomic.Int32
	ready atomic.Bool

	mu      sync.Mutex // guards the fields below
	program *program
	addr    string
}

func (b *backend) address() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.addr
}

// A balancer passes requests to backends that are ready, and those of a session to the backend
// that has begun it, as long as that listens.
type balancer struct {
	proxy    httputil.ReverseProxy
	backends []*backend

	mu       sync.Mutex          // guards the fields below
	sessions map[string]*backend // by Mcp-Session-Id
	turn     int
}

type chosen struct{}

func newBalancer(backends ...*backend) *balancer {
	b := &balancer{backends: backends, sessions: make(map[string]*backend)}
	of := func(ctx context.Context) *backend { return ctx.Value(chosen{}).(*backend) }
	b.proxy = httputil.ReverseProxy{
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 100},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", of(r.In.Context()).address()
			r.Out.Host = r.Out.URL.Host
		},
		ModifyResponse: func(r *http.Response) error {
			if id := r.Header.Get("Mcp-Session-Id"); id != "" {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.sessions[id] = of(r.Request.Context())
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			// The backend has ended, and its sessions with it: there is no connection, or it closed an idle one at the
			// moment in which a request was written, which is then incomplete and cannot run.
			if op, ok := errors.AsType[*net.OpError](err); ok && op.Op != "read" {
				w.Header().Set("Retry-After", "1")
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	return b
}

// choose returns the backend for a request; nil if none is ready.
func (b *balancer) choose(r *http.Request) *backend {
	b.mu.Lock()
	defer b.mu.Unlock()
	if to := b.sessions[r.Header.Get("Mcp-Session-Id")]; to != nil {
		return to
	}
	for range b.backends {
		b.turn++
		if to := b.backends[b.turn%len(b.backends)]; to.ready.Load() {
			return to
		}
	}
	return nil
}

func (b *balancer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	to := b.choose(r)
	if err != nil || to == nil {
		http.Error(w, "no backend is ready", http.StatusBadGateway)
		return
	}
	to.busy.Add(1)
	defer to.busy.Add(-1)
	r = r.WithContext(context.WithValue(r.Context(), chosen{}, to))
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	b.proxy.ServeHTTP(w, r)
}

// watch asks backends whether they are ready, until ctx is done.
func (b *balancer) watch(ctx context.Context) {
	for ctx.Err() == nil {
		for _, to := range b.backends {
			to.ready.Store(to.address() != "" && isReady(ctx, filepath.Join(to.dir, "admin.sock")))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func isReady(ctx context.Context, socket string) bool {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/readyz", nil)
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// A callEnd is how one call of a client ended.
type callEnd struct {
	client  string
	began   time.Time
	refused string // "" if it was answered, else a refusal that a client can recognize
	broken  string // in any other way
}

// rollingClients call until their context is done.
type rollingClients struct {
	url     string
	stop    atomic.Bool
	running sync.WaitGroup

	mu   sync.Mutex
	ends []callEnd
}

func (c *rollingClients) ended(e callEnd) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, e)
}

// count returns how many calls were answered.
func (c *rollingClients) count(client string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.ends {
		if e.refused == "" && e.broken == "" && strings.HasPrefix(e.client, client) {
			n++
		}
	}
	return n
}

func napParams(meta string) string {
	naps := []int{1, 100, 900}
	return fmt.Sprintf(`{"name":"nap","arguments":{"ms":%d}%s}`, naps[rand.IntN(len(naps))], meta)
}

// modern calls without a session.
func (c *rollingClients) modern() {
	meta := fmt.Sprintf(`,"_meta":{%q:"2026-07-28",%q:{}}`, mcp.KeyVersion, mcp.KeyCapabilities)
	for !c.stop.Load() {
		e := callEnd{client: "modern HTTP", began: time.Now()}
		_, e.refused, e.broken = c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+napParams(meta)+`}`,
			map[string]string{"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "nap"})
		c.ended(e)
	}
}

// legacy calls in a session, and begins another one when that ends.
func (c *rollingClients) legacy() {
	for !c.stop.Load() {
		e := callEnd{client: "legacy HTTP, initialize", began: time.Now()}
		var header http.Header
		header, e.refused, e.broken = c.post(strings.Replace(initialize, `"id":0`, `"id":1`, 1), nil)
		c.ended(e)
		session := map[string]string{"Mcp-Session-Id": header.Get("Mcp-Session-Id"), "MCP-Protocol-Version": "2025-11-25"}
		for e.refused+e.broken == "" && !c.stop.Load() {
			e = callEnd{client: "legacy HTTP", began: time.Now()}
			_, e.refused, e.broken = c.post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`+napParams("")+`}`, session)
			c.ended(e)
		}
	}
}

// post posts a request with the id 1.
func (c *rollingClients) post(text string, header map[string]string) (_ http.Header, refused, broken string) {
	r, _ := http.NewRequest(http.MethodPost, c.url+"/mcp", strings.NewReader(text))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range header {
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, "", err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch status := resp.StatusCode; {
	case err != nil:
		broken = err.Error()
	case status == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "", status == http.StatusNotFound && header["Mcp-Session-Id"] != "":
		refused = resp.Status
	case status != http.StatusOK:
		broken = fmt.Sprintf("%s %s", resp.Status, body)
	default:
		for line := range strings.Lines(string(body)) {
			line = strings.TrimPrefix(line, "data: ")
			if strings.HasPrefix(line, "{") {
				refused, broken = verdict([]byte(line))
			}
		}
	}
	return resp.Header, refused, broken
}

// verdict reads an answer. The one error is a refusal.
func verdict(text []byte) (refused, broken string) {
	var m struct {
		ID    any
		Error *struct {
			Data struct{ Reason, Phase string }
		}
	}
	switch err := json.Unmarshal(text, &m); {
	case err != nil || m.ID == nil:
		return "", "it is no answer: " + string(text)
	case m.Error == nil:
		return "", ""
	case m.Error.Data.Reason == jsonrpc.ReasonClosed:
		return string(text), ""
	}
	return "", string(text)
}

// socket calls over a WebSocket, two calls at a time, and opens another one when that ends.
func (c *rollingClients) socket() {
	for !c.stop.Load() {
		e := callEnd{client: "WebSocket, open", began: time.Now()}
		conn, resp, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/ws", nil)
		switch {
		case err == nil:
			e.refused, e.broken = c.exchange(conn, initialize, 1)
		case resp != nil && resp.StatusCode == http.StatusServiceUnavailable:
			e.refused = resp.Status
		default:
			e.broken = err.Error()
		}
		c.ended(e)
		for e.refused+e.broken == "" && !c.stop.Load() {
			e = callEnd{client: "WebSocket", began: time.Now()}
			call := `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":` + napParams("") + `}`
			e.refused, e.broken = c.exchange(conn, fmt.Sprintf(call, 1)+"\n"+fmt.Sprintf(call, 2), 2)
			c.ended(e)
		}
		if conn != nil {
			conn.Close()
		}
	}
}

// exchange sends messages and reads a number of answers. A socket that is closed with "going
// away" is a refusal.
func (c *rollingClients) exchange(conn *websocket.Conn, messages string, answers int) (refused, broken string) {
	for text := range strings.Lines(messages) {
		if err := conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
			break // the end is read below
		}
	}
	for range answers {
		_, text, err := conn.ReadMessage()
		switch {
		case websocket.IsCloseError(err, websocket.CloseGoingAway):
			return err.Error(), broken
		case err != nil:
			return "", err.Error()
		}
		r, b := verdict(text)
		refused, broken = refused+r, broken+b
	}
	return refused, broken
}

// A restart is the restart of one backend. Until it drains there must be no refusals.
type restart struct{ begins, drains, over time.Time }

const (
	rollingDelay = time.Second

	// inTransit is more than a call needs to reach the proxy on a slow machine. A call that
	// begins less than this before the drain may be refused.
	inTransit = 700 * time.Millisecond
)

func (b *backend) start(t *testing.T) {
	t.Helper()
	p, s := servingConfig(t, []string{"XDG_RUNTIME_DIR=" + b.dir}, fmt.Sprintf("drainDelay: %s\nadmin: {listen: [\"unix://%s/admin.sock\"]}\n"+
		"upstreams: {a: {command: fakeserver, inheritEnv: [all], env: {FAKE_ERA: both}}}\n", rollingDelay, b.dir))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.program, b.addr = p, strings.TrimPrefix(s.url, "http://")
}

// roll restarts a backend, and returns when it is ready again.
func (b *backend) roll(t *testing.T) (r restart) {
	t.Helper()
	eventually(t, "calls in flight", func() bool { return b.busy.Load() > 3 })
	r.begins = time.Now()
	r.drains = r.begins.Add(rollingDelay)
	b.program.cmd.Process.Signal(syscall.SIGTERM)
	if err := b.program.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v\n%s", err, b.program.log)
	}
	if n := b.program.log.count("unexpected") + b.program.log.count(`"ERROR"`); n > 0 {
		t.Errorf("the end is no quiet one:\n%s", b.program.log)
	}
	b.start(t)
	eventually(t, "readiness", b.ready.Load)
	r.over = time.Now()
	return r
}

// Two proxies are restarted, one after another, behind a balancer that asks them whether they
// are ready, while clients call. No call that began before is lost. A call that comes too late
// is refused so that a client can recognize it, and goes to the other proxy.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	a, b := &backend{dir: shortDir(t)}, &backend{dir: shortDir(t)}
	a.start(t)
	b.start(t)
	balance := newBalancer(a, b)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { balance.watch(ctx) })
	defer watching.Wait()
	defer cancel()
	eventually(t, "both", func() bool { return a.ready.Load() && b.ready.Load() })
	server := httptest.NewServer(balance)
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()

	clients := &rollingClients{url: server.URL}
	for range 3 {
		clients.running.Go(clients.modern)
		clients.running.Go(clients.legacy)
		clients.running.Go(clients.socket)
	}
	var restarts []restart
	for _, to := range []*backend{a, b} {
		before := clients.count("")
		eventually(t, "calls", func() bool { return clients.count("") > before+40 })
		restarts = append(restarts, to.roll(t))
	}
	clients.stop.Store(true)
	clients.running.Wait()
	clients.check(t, restarts)
}

// check reports calls that did not end as they should.
func (c *rollingClients) check(t *testing.T, restarts []restart) {
	t.Helper()
	refused := 0
	for _, e := range c.ends {
		late := false
		for _, r := range restarts {
			late = late || e.began.After(r.drains.Add(-inTransit)) && e.began.Before(r.over)
		}
		switch {
		case e.broken != "":
			t.Errorf("%s, began %s: %s", e.client, e.began.Format(time.StampMilli), e.broken)
		case e.refused != "" && !late:
			t.Errorf("%s began in time, at %s, and was refused: %s", e.client, e.began.Format(time.StampMilli), e.refused)
		case e.refused != "":
			refused++
		}
	}
	for _, client := range []string{"modern HTTP", "legacy HTTP", "WebSocket"} {
		if c.count(client) < 20 {
			t.Errorf("%s: only %d calls", client, c.count(client))
		}
	}
	t.Logf("%d calls: %d refused", len(c.ends), refused)
	if t.Failed() {
		for _, r := range restarts {
			fmt.Fprintln(os.Stderr, "restart from", r.begins.Format(time.StampMilli), "to", r.over.Format(time.StampMilli))
		}
	}
}

// During the drain, requests in flight finish. New ones are refused, with the last response on
// their connection, so that a client that calls again may reach another proxy.
func TestDrainSendsAway(t *testing.T) {
	t.Parallel()
	p, s := serving(t, "XDG_RUNTIME_DIR="+shortDir(t))
	c := s.connect()
	c.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nap","arguments":{"ms":1500}}}`)
	c.get(2, "echo") // so that the call is in flight
	p.cmd.Process.Signal(syscall.SIGTERM)
	eventually(t, "the drain", func() bool { return p.log.count("shutting down") == 1 })
	eventually(t, "a refusal", func() bool {
		resp, err := http.Post(s.url+"/mcp", "application/json", strings.NewReader(initialize))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return false // the drain is about to begin
		}
		if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !resp.Close {
			t.Errorf("%s, %v, close: %v", resp.Status, resp.Header, resp.Close)
		}
		return true
	})
	if got := c.get(3, "echo"); !strings.Contains(got, `"phase":"not_sent"`) {
		t.Errorf("a call that comes too late: %s", got)
	}
	if got := c.await("1"); strings.HasPrefix(got, "!") {
		t.Errorf("the call in flight: %s", got)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
