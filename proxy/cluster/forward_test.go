package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An owner is the handler of all replicas of a test.
type owner struct {
	ended chan error // the cause of the end of /hang
}

func (o *owner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Context().Value(markKey{}) == nil {
		http.Error(w, "not from a replica", http.StatusForbidden)
		return
	}
	switch r.URL.Path {
	case "/hang":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		o.ended <- context.Cause(r.Context())
		panic(http.ErrAbortHandler) // a return would complete the response, if the connection still takes that
	case "/echo": // line by line, as events
		http.NewResponseController(w).EnableFullDuplex()
		w.(http.Flusher).Flush()
		for in := bufio.NewScanner(r.Body); in.Scan(); {
			fmt.Fprintf(w, "%s\n", in.Text())
			w.(http.Flusher).Flush()
		}
	default:
		fmt.Fprint(w, r.Host, " ", r.URL.RequestURI(), " ", r.Header.Get("Accept-Encoding"))
	}
}

// request begins a request to the owner of an id.
func (r *replica) request(ctx context.Context, t *testing.T, id, path string, body io.Reader) *http.Response {
	t.Helper()
	via, at := r.Owner(id)
	if at != There {
		t.Fatalf("the owner of %s is %v", id, at)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://public.example"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := via.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// ask sends a request to the owner of an id, and returns the answer's body.
func (r *replica) ask(t *testing.T, id string) string {
	t.Helper()
	body, err := r.try(t, id)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// try is ask for a request that may fail.
func (r *replica) try(t *testing.T, id string) (string, error) {
	t.Helper()
	via, at := r.Owner(id)
	if at != There {
		return "", fmt.Errorf("the owner of %s is %v", id, at)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://public.example/mcp?x=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := via.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestForward(t *testing.T) {
	t.Parallel()
	o := &owner{ended: make(chan error, 1)}
	a, b, c := three(t, keyFile(t, 1), o)
	id := b.NewID()
	if got := a.ask(t, id); got != "public.example /mcp?x=1 " {
		t.Errorf("got %q", got)
	}
	if got := c.ask(t, id); got != "public.example /mcp?x=1 " {
		t.Errorf("got %q", got)
	}

	// Each line comes back before the next is sent.
	out, in := io.Pipe()
	resp := a.request(t.Context(), t, id, "/echo", out)
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		fmt.Fprintf(in, "event %d\n", i)
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("event %d\n", i) {
			t.Fatal(line, err)
		}
	}
	in.Close()
	if _, err := lines.ReadByte(); err != io.EOF {
		t.Error(err)
	}

	// A client that leaves ends the request at the owner.
	ctx, cancel := context.WithCancel(t.Context())
	a.request(ctx, t, id, "/hang", http.NoBody)
	cancel()
	select {
	case <-o.ended:
	case <-time.After(patient):
		t.Error("the owner was not told that the client left")
	}

	// Many at a time, and the member that is ready.
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { a.ask(t, id) })
	}
	wg.Wait()
	if via, ok := a.Ready(); !ok || via == nil {
		t.Error("nobody is ready")
	}
}

// What is in flight at a member that dies fails when it is declared dead, and not when its link is found to be silent.
func TestDeadOwner(t *testing.T) {
	t.Parallel()
	o := &owner{ended: make(chan error, 8)}
	a, b, c := three(t, keyFile(t, 1), o)
	atB := a.request(t.Context(), t, b.NewID(), "/hang", http.NoBody)
	fromB := b.request(t.Context(), t, a.NewID(), "/hang", http.NoBody)
	atC := a.request(t.Context(), t, c.NewID(), "/hang", http.NoBody)
	id := b.NewID()
	b.kill()
	_, err := io.ReadAll(atB.Body)
	if err == nil {
		t.Error("a request outlived its owner")
	}
	if _, err := io.ReadAll(fromB.Body); err == nil {
		t.Error("a request outlived who passed it on")
	}
	await(t, "b died", func() bool { return a.saw(Died, b) })
	a.mu.Lock() // b lives on, and may have found a dead before, and hung up
	event := jsonrpc.EndOf(err, jsonrpc.Cause{}).Event
	if !slices.ContainsFunc(a.changes, func(c Change) bool { return c.Event == event && (c.What == Died || c.What == Lost) }) {
		t.Errorf("the request failed with event %q (%v), which is none of %v", event, err, a.changes)
	}
	a.mu.Unlock()
	if _, at := a.Owner(id); at != Gone {
		t.Error("its sessions are", at)
	}
	if got := a.ask(t, c.NewID()); !strings.HasPrefix(got, "public.example") {
		t.Error(got)
	}
	c.leave() // ends the rest
	if _, err := io.ReadAll(atC.Body); err == nil {
		t.Error("a request outlived its owner")
	}
}

// Keys are replaced while replicas run, one file at a time, and then a replica with the old one is a stranger.
func TestRotation(t *testing.T) {
	t.Parallel()
	fileA, fileB, old := keyFile(t, 1), keyFile(t, 1), keyFile(t, 1)
	o := &owner{ended: make(chan error, 8)}
	a := start(t, fileA, o)
	b := start(t, fileB, o, a.address())
	id := b.NewID()
	await(t, "they know each other", func() bool { return a.knows(b) && b.knows(a) })
	a.ask(t, id)
	has := func(r *replica, n int, first byte) func() bool {
		want := keySetOf(t, first).all[0]
		return func() bool {
			set, ring := r.keys.current.Load(), r.gossip.keyring
			return len(set.all) == n && string(set.all[0].mac) == string(want.mac) && len(ring.GetKeys()) == n &&
				string(ring.GetPrimaryKey()) == string(want.gossip)
		}
	}
	for _, step := range []struct {
		keys []byte
		ids  bool // of the first key
	}{{[]byte{1, 2}, true}, {[]byte{2, 1}, true}, {[]byte{2}, false}} {
		for _, file := range []string{fileA, fileB} {
			rewrite(t, file, step.keys...)
		}
		await(t, "keys", has(a, len(step.keys), step.keys[0]))
		await(t, "keys", has(b, len(step.keys), step.keys[0]))
		if _, at := a.Owner(id); (at != Nowhere) != step.ids {
			t.Errorf("with keys %v, an old id is %v", step.keys, at)
		}
		next := b.NewID()
		if step.ids {
			a.ask(t, next)
			continue
		}
		await(t, "the link is back", func() bool { // which ends when its certificates are withdrawn
			_, err := a.try(t, next)
			return err == nil
		})
	}
	stranger := start(t, old, o, a.address())
	if err := stranger.gossip.join(a.address()); err == nil || !a.knows(b) || !stranger.knows() {
		t.Error("joined with a key that was taken away")
	}
	if a.saw(Died, b) || b.saw(Died, a) {
		t.Error("a change of keys split the cluster")
	}
}

// A member that lives, and that cannot be reached, is away.
func TestUnreachableLink(t *testing.T) {
	t.Parallel()
	o := &owner{ended: make(chan error, 8)}
	file := keyFile(t, 1)
	a := start(t, file, o)
	b := start(t, file, o, a.address())
	await(t, "they know each other", func() bool { return a.knows(b) && b.knows(a) })
	b.ports.links.Close()
	id := b.NewID()
	via, at := a.Owner(id)
	if at != There {
		t.Fatal(at)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
	if resp, err := via.RoundTrip(req); err == nil {
		resp.Body.Close()
		t.Error("an answer from nowhere")
	}
	if _, at := a.Owner(id); at != Away {
		t.Error("the owner is", at)
	}
	if !a.knows(b) {
		t.Error("b was declared dead")
	}
	b.leave()
	await(t, "b left", func() bool { _, at := a.Owner(id); return at == Gone })
}
