package remote

import (
	"net/http"
	"slices"
	"testing"
)

// Servers made with the TypeScript SDK put a question that names no request on the
// stream of the GET, and drop it if there is none.
func TestRequestsWaitUntilTheServerIsHeard(t *testing.T) {
	f := newFake(t)
	release := make(chan struct{})
	f.get = func(w http.ResponseWriter, r *http.Request) {
		<-release
		f.note("heard")
		stream(w, ":\n\n")
		block(r)
	}
	c := connect(t, f)
	c.request(1, "tools/call", "{}")
	f.await("GET", 1)
	close(release)
	wantResult(t, c.recv(), 1, `{}`)
	if seen := f.all(); slices.Index(seen, "heard") > slices.Index(seen, "tools/call") {
		t.Errorf("server has seen %q", seen)
	}
}

// Other servers answer to the GET when they have something to say.
func TestRequestsDoNotWaitForASilentServer(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.get = func(_ http.ResponseWriter, r *http.Request) { block(r) }
	c := connect(t, f)
	c.request(1, "tools/call", "{}")
	wantResult(t, c.recv(), 1, `{}`)
}
