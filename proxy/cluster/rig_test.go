package cluster

import (
	"context"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// patient is how long a test waits for what must happen: longer than anything should take on a busy machine, and less
// than healEvery.
const patient = 25 * time.Second

// A replica is a Cluster that runs, at free ports of 127.0.0.1.
type replica struct {
	*Cluster
	leave func() // ends Run, and waits for it
	kill  func() // ends its membership without a word. Its links live on, as those of a machine that has lost power

	mu      sync.Mutex
	changes []Change
}

// start runs a replica with the keys of a file. It joins those at addresses.
func start(t *testing.T, file string, handler http.Handler, join ...string) *replica {
	t.Helper()
	r := new(replica)
	o := Options{
		KeyFile: file, Join: join, Listen: "127.0.0.1:0", Handler: handler, Version: "1.2", Digest: "d", Happened: r.happened,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})), ConnContext: marked,
	}
	var err error
	if r.Cluster, err = New(o); err != nil {
		t.Fatal(err)
	}
	if err := r.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	r.leave = func() { cancel(); wg.Wait() }
	r.kill = func() {
		_ = r.gossip.net.Shutdown()
		r.gossip.stop()
	}
	t.Cleanup(r.leave)
	<-r.Introduced()
	return r
}

type markKey struct{}

// marked marks the contexts of requests from other replicas.
func marked(ctx context.Context) context.Context { return context.WithValue(ctx, markKey{}, true) }

func (r *replica) happened(c Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes = append(r.changes, c)
}

// saw reports whether something happened to another replica.
func (r *replica) saw(what What, other *replica) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.changes, func(c Change) bool {
		return c.What == what && c.Instance == other.Instance() && c.Address == other.address()
	})
}

// knows reports whether r has these other members and nobody else.
func (r *replica) knows(others ...*replica) bool {
	want := []string{r.Instance()}
	for _, other := range others {
		want = append(want, other.Instance())
	}
	var got []string
	for _, m := range r.Members() {
		got = append(got, m.Instance)
	}
	slices.Sort(want)
	slices.Sort(got)
	return slices.Equal(got, want)
}

// await waits until something is so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patient); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patient, what)
		}
	}
}

// keyFile writes a file with keys.
func keyFile(t *testing.T, secrets ...byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	rewrite(t, file, secrets...)
	return file
}

func rewrite(t *testing.T, file string, secrets ...byte) {
	t.Helper()
	var lines []string
	for _, b := range secrets {
		lines = append(lines, hexOf(b))
	}
	writeKeys(t, file, lines...)
}

// three starts replicas that know each other.
func three(t *testing.T, file string, handler http.Handler) (a, b, c *replica) {
	t.Helper()
	a = start(t, file, handler)
	b = start(t, file, handler, a.address())
	c = start(t, file, handler, a.address(), b.address())
	await(t, "all know each other", func() bool { return a.knows(b, c) && b.knows(a, c) && c.knows(a, b) })
	return a, b, c
}
