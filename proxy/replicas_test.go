package proxy_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A replica is one of several proxies with one key.
type replica struct {
	*proxy.Proxy
	url    string
	socket string // for operators
	events events
	config config.Config
}

// startReplica starts a replica that joins others at their addresses, in front of a server at url.
func startReplica(t *testing.T, key, url string, join ...string) *replica {
	t.Helper()
	return startReplicaOf(t, key, func(cfg *config.Config) {
		cfg.Upstreams = []config.Upstream{{Name: "s", Key: "upstreams.s", Remote: config.Remote{URL: url}}}
	}, join...)
}

// startReplicaOf is startReplica for a configuration that change completes.
func startReplicaOf(t *testing.T, key string, change func(cfg *config.Config), join ...string) *replica {
	t.Helper()
	cfg := &config.Config{
		Frontend: config.Frontend{Listen: []string{"127.0.0.1:0"}},
		Cluster:  config.Cluster{KeyFile: key, Listen: "127.0.0.1:0", Join: join, Required: true},
	}
	change(cfg)
	socket := filepath.Join(t.TempDir(), "admin.sock")
	r := &replica{socket: socket}
	p, err := proxy.New(cfg, proxy.Options{AdminSocket: socket, Hooks: r.events.hooks()})
	if err != nil {
		t.Fatal(err)
	}
	at, err := p.Listen()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Serve()
	}()
	t.Cleanup(func() {
		p.Close()
		<-done
	})
	r.config, r.Proxy, r.url = *cfg, p, "http://"+at[0].(*net.TCPAddr).String()+"/mcp"
	return r
}

// knows waits until r lists n replicas, and returns the others.
func (r *replica) knows(t *testing.T, n int) (others []observe.Replica) {
	t.Helper()
	eventually(t, "the replicas know each other", func() bool { return len(r.Snapshot().Replicas) == n })
	return r.Snapshot().Replicas[1:]
}

// say posts a message with a session id, "" for none, and returns the response.
func (r *replica) say(t *testing.T, session, text string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, r.url, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

const firstMessage = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`

// A replica serves nobody before it has looked for the others, since it would tell their clients that there is no such
// session.
func TestReplicaFindsOthersBeforeItServes(t *testing.T) {
	server := httptest.NewServer(new(sessionless))
	t.Cleanup(server.Close)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startReplica(t, key, server.URL)
	answer, _ := a.say(t, "", firstMessage)
	far := slow(t, a.Snapshot().Replicas[0].Address)
	b := startReplicaOf(t, key, func(cfg *config.Config) {
		cfg.Upstreams = a.config.Upstreams
		cfg.Cluster.Required = false
	}, far)
	awaitReady(t, b.socket, "503 Service Unavailable: listeners: not all are up\nnot ready\n")
	resp, text := b.say(t, answer.Header.Get("Mcp-Session-Id"), `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	if resp.StatusCode != http.StatusOK {
		t.Errorf("a session of another replica got HTTP %d: %s", resp.StatusCode, text)
	}
	awaitReady(t, b.socket, "200 OK: ok\n")
}

// slow returns an address that leads to another one, after half a second.
func slow(t *testing.T, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				time.Sleep(500 * time.Millisecond)
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				go io.Copy(out, in)
				io.Copy(in, out)
			}()
		}
	}()
	return l.Addr().String()
}

// A session is served at each replica, and its end at its own is heard at all.
func TestReplicas(t *testing.T) {
	server := httptest.NewServer(new(sessionless))
	t.Cleanup(server.Close)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startReplica(t, key, server.URL)
	at := a.Snapshot().Replicas[0].Address
	b, c := startReplica(t, key, server.URL, at), startReplica(t, key, server.URL, at)
	for _, r := range []*replica{a, b, c} {
		for _, other := range r.knows(t, 3) {
			if other.State != "ready" || other.Differs {
				t.Errorf("another replica is %+v", other)
			}
		}
	}
	resp, text := a.say(t, "", firstMessage)
	session := resp.Header.Get("Mcp-Session-Id")
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(session, a.Snapshot().Replicas[0].Instance+".") {
		t.Fatalf("initialize: %s, session %q: %s", resp.Status, session, text)
	}
	for _, r := range []*replica{a, b, c} {
		if resp, text := r.say(t, session, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"fail"}}`); !strings.Contains(text, "boom") {
			t.Errorf("a call: %s %s", resp.Status, text)
		}
		if n := len(r.Snapshot().Sessions); (n == 1) != (r == a) {
			t.Errorf("%d sessions", n)
		}
	}
	a.Unready()
	eventually(t, "others know that it drains", func() bool {
		for _, m := range b.Snapshot().Replicas {
			if m.Address == at && m.State == "draining" {
				return true
			}
		}
		return false
	})
	if resp, text := b.say(t, session, `{"jsonrpc":"2.0","id":3,"method":"ping"}`); resp.StatusCode != http.StatusOK {
		t.Errorf("while its replica is about to drain: %s %s", resp.Status, text)
	}
	eventually(t, "others keep the session", func() bool {
		return b.Snapshot().Replicas[0].Moves.Kept+c.Snapshot().Replicas[0].Moves.Kept == 1
	})
	a.Close()
	if others := b.knows(t, 2); others[0].Address == at {
		t.Error("the wrong replica has left")
	}
	if resp, text := b.say(t, session, `{"jsonrpc":"2.0","id":4,"method":"ping"}`); resp.StatusCode != http.StatusOK {
		t.Errorf("after its replica had no time to leave: %s %s", resp.Status, text)
	}
	continued := slices.Concat(b.Snapshot().Sessions, c.Snapshot().Sessions)
	if len(continued) != 1 || continued[0].Resumed != "adopted" {
		t.Errorf("it continues as %+v", continued)
	}
	if n := len(b.events.ids(proxy.ReplicaJoined)); n != 2 {
		t.Errorf("%d events of replicas that joined", n)
	}
	eventually(t, "there is an event", func() bool { return len(b.events.ids(proxy.ReplicaLeft)) == 1 })
	id := b.events.ids(proxy.ReplicaLeft)[0]
	var left proxy.Event
	if err := json.Unmarshal(operatorGets(t, b.socket, "/events/"+id), &left); err != nil {
		t.Fatal(err)
	}
	if left.Replica == "" || !strings.HasSuffix(left.What, " ("+at+") left") || left.Began.IsZero() || len(left.Before) != 2 {
		t.Errorf("it is %+v", left)
	}
}

// A session moves when its replica is stopped, and from there when the next one is.
func TestReplicasMoveSessions(t *testing.T) {
	server := httptest.NewServer(new(sessionless))
	t.Cleanup(server.Close)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startReplica(t, key, server.URL)
	at := a.Snapshot().Replicas[0].Address
	b, c := startReplica(t, key, server.URL, at), startReplica(t, key, server.URL, at)
	for _, r := range []*replica{a, b, c} {
		r.knows(t, 3)
	}
	resp, _ := a.say(t, "", firstMessage)
	session := resp.Header.Get("Mcp-Session-Id")
	left := []*replica{a, b, c}
	for len(left) > 1 {
		stops := slices.IndexFunc(left, func(r *replica) bool { return len(r.Snapshot().Sessions) == 1 })
		if stops < 0 {
			t.Fatal("no replica has the session")
		}
		one := left[stops]
		left = slices.Delete(left, stops, stops+1)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		one.Unready()
		if err := one.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		cancel()
		for _, r := range left {
			if resp, text := r.say(t, session, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"fail"}}`); !strings.Contains(text, "boom") {
				t.Errorf("with %d left: %s %s", len(left), resp.Status, text)
			}
		}
	}
}

// A key file that is of no use, and a port in use, are mistakes with a name.
func TestReplicasCannotStart(t *testing.T) {
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("c2VjcmV0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &config.Config{File: "mcp-proxy.yaml", Frontend: config.Frontend{Listen: []string{"127.0.0.1:0"}}, Cluster: config.Cluster{KeyFile: short, Listen: "127.0.0.1:0"}}
	_, err := proxy.New(cfg, proxy.Options{})
	if err == nil || !strings.HasPrefix(err.Error(), "mcp-proxy.yaml: cluster.keyFile: ") || !strings.Contains(err.Error(), short) || strings.Contains(err.Error(), "c2Vj") {
		t.Errorf("a short key: %v", err)
	}
	if err := os.WriteFile(short, []byte(strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg.Cluster.Listen = taken.Addr().String()
	p, err := proxy.New(cfg, proxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err = p.Listen(); err == nil || !strings.Contains(err.Error(), "cluster.listen "+cfg.Cluster.Listen) {
		t.Errorf("a port in use: %v", err)
	}
}

// Readiness waits for another replica if it must.
func TestRequiredReplicas(t *testing.T) {
	server := httptest.NewServer(new(sessionless))
	t.Cleanup(server.Close)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	a := startReplica(t, key, server.URL)
	awaitReady(t, a.socket, "503 Service Unavailable: cluster: no other replica was found\nnot ready\n")
	b := startReplica(t, key, server.URL+"/other", a.Snapshot().Replicas[0].Address)
	awaitReady(t, a.socket, isReady)
	if others := b.knows(t, 2); !others[0].Differs {
		t.Error("two configurations do not differ")
	}
	b.config.Upstreams = a.config.Upstreams
	if err := b.Reload(&b.config); err != nil {
		t.Fatal(err)
	}
	if b.Snapshot().Replicas[1].Differs {
		t.Error("they differ after a reload")
	}
	eventually(t, "a knows the configuration of b", func() bool { return !a.Snapshot().Replicas[1].Differs })
}
