package proxy_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A linkedFleet is three replicas that have no server, but a link that hosts dial.
type linkedFleet struct {
	t        *testing.T
	replicas []*replica
	token    string
	server   *naive
	finish   func() // ends calls that hang
}

func newLinkedFleet(t *testing.T) *linkedFleet {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &linkedFleet{t: t, token: secretFile(t, "token"), server: newNaive(t)}
	f.finish = sync.OnceFunc(func() { close(f.server.release) })
	t.Cleanup(f.finish)
	var join []string
	for range 3 {
		r := startReplicaOf(t, key, func(cfg *config.Config) {
			cfg.Links = []config.Link{{Name: "tools", Key: "links.tools", Accept: true, TokenFile: f.token, Required: true}}
		}, join...)
		f.replicas, join = append(f.replicas, r), []string{r.Snapshot().Replicas[0].Address}
	}
	for _, r := range f.replicas {
		r.knows(t, 3)
	}
	return f
}

// dial starts a host that dials a replica at its address, which may be that of a wire.
func (f *linkedFleet) dial(address string, upstreams ...string) *proxy.Host {
	f.t.Helper()
	var cfg config.Config
	for _, name := range upstreams {
		cfg.Upstreams = append(cfg.Upstreams, config.Upstream{Name: name, Remote: config.Remote{URL: f.server.URL}, Era: "legacy"})
	}
	h, err := proxy.NewHost(&cfg, config.HostLink{Dial: "ws://" + address + "/link", TokenFile: f.token}, proxy.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- h.Serve() }()
	f.t.Cleanup(func() {
		h.Close()
		<-served
	})
	return h
}

func (r *replica) address() string {
	return strings.TrimSuffix(strings.TrimPrefix(r.url, "http://"), "/mcp")
}

func (r *replica) instance() string { return r.Snapshot().Replicas[0].Instance }

// linked waits until the link of r is up through another replica, "" for none.
func (r *replica) linked(t *testing.T, through string) observe.Link {
	t.Helper()
	eventually(t, "link through "+through, func() bool {
		l := r.Snapshot().Links[0]
		return l.Up && l.Through == through
	})
	return r.Snapshot().Links[0]
}

// begin begins a session at r.
func (r *replica) begin(t *testing.T) (session string) {
	t.Helper()
	resp, text := r.say(t, "", firstMessage)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("initialize: %s %s", resp.Status, text)
	}
	session = resp.Header.Get("Mcp-Session-Id")
	r.say(t, session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return session
}

// tools are those that a session gets listed.
func (r *replica) tools(t *testing.T, session string) (names []string) {
	t.Helper()
	_, text := r.say(t, session, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	for _, part := range strings.Split(text, `"name":"`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		names = append(names, name)
	}
	return names
}

const (
	echoCall = `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a__echo","arguments":{"x":1}}}`
	hangCall = `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"a__hang","arguments":{"x":1}}}`
)

// calls makes a call that must be answered.
func (r *replica) calls(t *testing.T, session string) {
	t.Helper()
	if _, text := r.say(t, session, echoCall); !strings.Contains(text, `"result"`) {
		t.Errorf("a call: %s", text)
	}
}

// hangs begins a call that does not end, and returns what the client gets.
func (f *linkedFleet) hangs(r *replica, session string) <-chan string {
	f.t.Helper()
	before := f.server.saw(`"hang"`)
	got := make(chan string, 1)
	go func() {
		_, text := r.say(f.t, session, hangCall)
		got <- text
	}()
	f.server.awaits(before+1, `"hang"`)
	return got
}

// endedWithLink checks that a call got the one error of a lost link, and returns its event.
func endedWithLink(t *testing.T, text string) string {
	t.Helper()
	_, doc, _ := strings.Cut(text, "data: ")
	if strings.HasPrefix(text, "{") {
		doc = text
	}
	var answer struct {
		Error struct {
			Data struct {
				Cause, Phase, Event string
				Retryable           bool
			}
		}
	}
	if err := json.NewDecoder(strings.NewReader(doc)).Decode(&answer); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	if d := answer.Error.Data; d.Cause != "link lost" || d.Phase != "in_flight" || d.Retryable || strings.Count(text, `"jsonrpc"`) != 1 {
		t.Errorf("a call whose link was lost: %s", text)
	}
	return answer.Error.Data.Event
}

// explains checks that r knows the event of a lost link.
func (r *replica) explains(t *testing.T, event, through string) {
	t.Helper()
	eventually(t, "event "+event, func() bool { return slices.Contains(r.events.ids(proxy.LinkEnded), event) })
	var e proxy.Event
	if err := json.Unmarshal(operatorGets(t, r.socket, "/events/"+event), &e); err != nil {
		t.Fatal(err)
	}
	if e.What != "the link tools through replica "+through+" was lost" || !slices.Equal(e.Upstreams, []string{"a", "b"}) {
		t.Errorf("it is %+v", e)
	}
}

// A host that has dialled one replica is offered by all, at each as if it had dialled that.
func TestLinkThroughReplica(t *testing.T) {
	f := newLinkedFleet(t)
	a, b, c := f.replicas[0], f.replicas[1], f.replicas[2]
	first := f.dial(a.address(), "a", "b")
	if l := a.linked(t, ""); l.Lost != 0 {
		t.Errorf("its own: %+v", l)
	}
	sessions := make(map[*replica]string)
	for _, r := range f.replicas {
		if r != a {
			r.linked(t, a.instance())
			awaitReady(t, r.socket, isReady)
		}
		sessions[r] = r.begin(t)
		if got := r.tools(t, sessions[r]); !slices.Contains(got, "a__echo") || !slices.Contains(got, "b__echo") || len(got) != 8 {
			t.Errorf("tools: %q", got)
		}
		r.calls(t, sessions[r])
	}

	if resp, err := http.Get("http://" + a.address() + "/replica/links/tools"); err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		t.Errorf("a client that wants the link gets %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}

	// Another host dials c, which uses that from now on; b stays with the first one.
	atC, atB := f.hangs(c, sessions[c]), f.hangs(b, sessions[b])
	f.dial(c.address(), "a", "b")
	c.linked(t, "")
	c.explains(t, endedWithLink(t, <-atC), a.instance())
	c.calls(t, sessions[c])
	if l := b.linked(t, a.instance()); l.Lost != 0 {
		t.Errorf("b has lost its link: %+v", l)
	}

	// The replica with the first host is gone.
	was := a.instance()
	a.Close()
	b.explains(t, endedWithLink(t, <-atB), was)
	if l := b.linked(t, c.instance()); l.Lost != 1 {
		t.Errorf("b: %+v", l)
	}
	b.calls(t, sessions[b])
	if got := len(b.events.ids(proxy.LinkEnded)); got != 1 {
		t.Errorf("b has %d events of links", got)
	}
	first.Close()
}

// When the link of the host is lost, calls at all replicas get the one error, and work again when it is back. What the
// host announces reaches all.
func TestLinkThroughReplicaIsLost(t *testing.T) {
	f := newLinkedFleet(t)
	a, b := f.replicas[0], f.replicas[1]
	w := newWire(t, a.address())
	h := f.dial(w.Addr().String(), "a", "b")
	b.linked(t, a.instance())
	session := b.begin(t)
	b.calls(t, session)

	atB := f.hangs(b, session)
	w.cut()
	b.explains(t, endedWithLink(t, <-atB), a.instance())
	b.linked(t, a.instance())
	b.calls(t, session)

	if err := h.Reload(&config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: f.server.URL}, Era: "legacy"}}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "smaller list", func() bool {
		got := b.tools(t, session)
		return len(got) == 4
	})
	b.calls(t, session)
}

// A replica that is restarted waits for the calls of others at its host.
func TestLinkThroughReplicaThatLeaves(t *testing.T) {
	f := newLinkedFleet(t)
	a, b, c := f.replicas[0], f.replicas[1], f.replicas[2]
	f.dial(a.address(), "a", "b")
	b.linked(t, a.instance())
	session := b.begin(t)
	atB := f.hangs(b, session)
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		done <- a.Shutdown(ctx)
	}()
	f.dial(c.address(), "a", "b")
	c.linked(t, "")
	for i := 0; i < 300 && !t.Failed(); i++ { // in much more time than a replica needs that does not wait
		b.calls(t, session)
	}
	f.finish()
	if text := <-atB; !strings.Contains(text, `"result"`) {
		t.Errorf("a call at the host of a replica that leaves: %s", text)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	b.linked(t, c.instance())
	b.calls(t, session)
	if all := b.events.ids(proxy.LinkEnded); len(all) > 0 {
		t.Errorf("nothing was lost, and there are events %v", all)
	}
}

// A wire is a TCP connection that can be cut.
type wire struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func newWire(t *testing.T, to string) *wire {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				near.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			for from, to := range map[net.Conn]net.Conn{near: far, far: near} {
				wg.Go(func() {
					io.Copy(to, from)
					to.Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.cut()
		wg.Wait()
	})
	return w
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}
