package remote

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// newOldFake returns a server of 2024-11-05: what it answers goes to the stream.
// A test may write to out too.
func newOldFake(t *testing.T) (f *fake, out chan string) {
	f = newFake(t)
	out = make(chan string, 100)
	f.any = func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.Method == http.MethodGet:
			f.note("GET")
			stream(w, "event: endpoint\ndata: /message?session=1\n\n")
			for {
				select {
				case text := <-out:
					if text == "" {
						return true
					}
					stream(w, text)
				case <-r.Context().Done():
					f.note("left")
					return true
				}
			}
		case r.URL.Path != "/message":
			w.WriteHeader(http.StatusMethodNotAllowed)
		default:
			text, _ := io.ReadAll(r.Body)
			m, _ := jsonrpc.Decode(text)
			if f.note(m.Method); m.Method == "initialize" {
				out <- sseResult(m, initResult)
			} else if m.IsRequest() && m.Method == "ping" {
				out <- sseResult(m, `{}`)
			} else if status := map[string]int{"refused": 500, "lost": 404}[m.Method]; status != 0 {
				w.WriteHeader(status)
				return true
			}
			w.WriteHeader(http.StatusAccepted)
		}
		return true
	}
	return f, out
}

func TestLegacy(t *testing.T) {
	t.Parallel()
	for _, only := range []bool{false, true} {
		t.Run(fmt.Sprintf("SSE=%v", only), func(t *testing.T) {
			f, out := newOldFake(t)
			s, _ := server(t, f.URL)
			s.SSE = only
			c := shaken(t, s)
			c.request(1, "ping", "")
			wantResult(t, c.recv(), 1, `{}`)
			out <- "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"roots/list\"}\n\n"
			if m := c.recv(); m.Method != "roots/list" || !m.Related.IsZero() {
				t.Errorf("got %s", m.Append(nil))
			}
			c.request(2, "refused", "")
			wantError(t, c.recv(), 2, closed, "HTTP 500", jsonrpc.InFlight)
			c.request(3, "hangs", "")
			f.await("hangs", 1)
			c.cancel(3)
			f.await("notifications/cancelled", 1)
			c.request(4, "hangs", "")
			f.await("hangs", 2)
			out <- "data: {\"id\":4,\"result\":{}}\n\n"
			if m := c.recv(); !strings.Contains(string(m.Error), unusable) || m.ID != jsonrpc.IntID(4) {
				t.Errorf("got %s", m.Append(nil))
			}
			c.close()
			f.await("left", 1)
		})
	}
}

func TestLegacyStreamIsTheSession(t *testing.T) {
	f, out := newOldFake(t)
	s, _ := server(t, f.URL)
	c := shaken(t, s)
	f.await("notifications/initialized", 1)
	c.request(1, "hangs", "")
	f.await("hangs", 1)
	out <- "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/last\"}\n\n"
	out <- ""
	if m := c.recv(); m.Method != "notifications/last" {
		t.Errorf("got %s", m.Append(nil))
	}
	if end := c.end(); end.Cause.String() != "stream ended" || !end.Delivered {
		t.Errorf("the end is %+v", end)
	}
	c.close()
	if slices.Contains(f.all(), "DELETE ") {
		t.Error("there was a DELETE")
	}
}

// TestD34_LegacyForgotten has a server that does not know the session any more, and leaves its stream open.
func TestD34_LegacyForgotten(t *testing.T) {
	f, _ := newOldFake(t)
	s, _ := server(t, f.URL)
	c := shaken(t, s)
	c.request(1, "hangs", "")
	f.await("hangs", 1)
	c.request(2, "lost", "")
	if end := c.end(); end.Cause.String() != "HTTP 404" || !end.Delivered {
		t.Errorf("the end is %+v", end)
	}
	c.close()
	f.await("left", 1)
	again := shaken(t, s)
	again.request(1, "ping", "")
	wantResult(t, again.recv(), 1, `{}`)
}

func TestLegacyEndpointElsewhere(t *testing.T) {
	for _, text := range []string{"event: endpoint\ndata: http://other.invalid/\n\n", "event: endpoint\ndata: //other.invalid/\n\n", "data: /x\n\n", ""} {
		f := newFake(t)
		f.any = func(w http.ResponseWriter, _ *http.Request) bool { stream(w, text); return true }
		s, _ := server(t, f.URL)
		s.SSE = true
		c := dial(t, s)
		c.request(0, "initialize", initParams)
		if end := c.end(); end.Cause.String() != "invalid response" || end.Delivered {
			t.Errorf("the end is %+v", end)
		}
		c.close()
	}
}
