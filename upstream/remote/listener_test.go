package remote

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
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

// Other servers answer to the GET when they have something to say. The answer to initialize
// does not wait for them, and the messages behind it wait once.
func TestRequestsDoNotWaitForASilentServer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.get = func(_ http.ResponseWriter, r *http.Request) { block(r) }
		s, _ := server(t, f.URL)
		c := dial(t, f.reach(s))
		began := time.Now()
		c.request(0, "initialize", initParams)
		wantResult(t, c.recv(), 0, initResult)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("initialize took %v", waited)
		}
		time.Sleep(hearTime / 2)
		c.notify("notifications/initialized", "")
		c.request(1, "tools/call", "{}")
		wantResult(t, c.recv(), 1, `{}`)
		if waited := time.Since(began); waited != hearTime {
			t.Errorf("the call was answered after %v", waited)
		}
	})
}

// reactive makes f send a notification for each one that it gets, on the stream of its last GET. Without
// one it is lost. early answers the GETs before initialized, false for none.
func (f *fake) reactive(early func(w http.ResponseWriter) bool) {
	open := make(chan string, 10)
	ready := make(chan struct{})
	f.get = func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-ready:
		default:
			if early(w) {
				return
			}
		}
		out := make(chan string, 10)
		f.mu.Lock()
		open = out
		f.mu.Unlock()
		stream(w, ":\n\n")
		for {
			select {
			case method := <-out:
				stream(w, `data: {"jsonrpc":"2.0","method":"`+method+`"}`+"\n\n")
			case <-r.Context().Done():
				return
			}
		}
	}
	for _, method := range []string{"initialized", "roots/list_changed"} {
		f.handle("notifications/"+method, func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			f.mu.Lock()
			open <- "notifications/after/" + method
			f.mu.Unlock()
			if method == "initialized" && f.births == 1 {
				close(ready)
			}
			w.WriteHeader(http.StatusAccepted)
		})
	}
}

// What a server sends in reaction to initialized, or to what follows in one burst, comes, though
// it keeps nothing for a stream that is not open.
func TestReactionToInitialized(t *testing.T) {
	refuse := func(status int) func(w http.ResponseWriter) bool {
		return func(w http.ResponseWriter) bool {
			w.WriteHeader(status)
			return true
		}
	}
	for _, row := range []struct {
		name  string
		early func(w http.ResponseWriter) bool
		want  []string // from the server
		gets  int
	}{
		{"open", func(http.ResponseWriter) bool { return false }, []string{"initialized", "roots/list_changed"}, 1},
		{"404 before initialized", refuse(404), []string{"roots/list_changed"}, 2},
		{"400 before initialized", refuse(400), []string{"roots/list_changed"}, 2},
		{"503 before initialized", refuse(503), []string{"roots/list_changed"}, 2},
		{"no stream", refuse(405), nil, 1},
		{"400 that comes late", func(w http.ResponseWriter) bool {
			time.Sleep(hearTime + time.Second)
			return refuse(400)(w)
		}, nil, 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fake) {
				f.reactive(row.early)
				s, l := server(t, f.URL)
				c := shaken(t, f.reach(s))
				c.notify("notifications/roots/list_changed", "")
				for _, want := range row.want {
					if m := c.recv(); m.Method != "notifications/after/"+want {
						t.Errorf("got %s, want that after %s", m.Append(nil), want)
					}
				}
				time.Sleep(time.Minute)
				c.request(1, "ping", "")
				wantResult(t, c.recv(), 1, `{}`)
				c.close()
				if seen := f.all(); countOf(seen, "GET") != row.gets || countOf(seen, "initialize") != 1 || l.String() != "" {
					t.Errorf("server has seen %q, the log is %s", seen, l)
				}
			})
		})
	}
}

// So does what a server sends in a session that replaces a lost one, behind what the client is
// told of that.
func TestReactionInARenewedSession(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.reactive(func(http.ResponseWriter) bool { return false })
		c := connect(t, f)
		c.recv()
		f.forget()
		c.request(1, "ping", "")
		var got []string
		for range 4 {
			got = append(got, strings.TrimPrefix(c.recv().Method, "notifications/"))
		}
		if i := slices.Index(got, "after/initialized"); i < slices.Index(got, "resources/list_changed") {
			t.Errorf("got %q", got)
		}
	})
}

// A server that opens the stream does not come before its answer to initialize.
func TestMessagesComeBehindTheAnswerToInitialize(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.get = func(w http.ResponseWriter, r *http.Request) {
			stream(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
			block(r)
		}
		s, _ := server(t, f.URL)
		c := dial(t, f.reach(s))
		session := c.Conn.(*serverSession)
		at := session.endpoints.current()
		at.id = "x"
		greeted := make(chan struct{})
		session.hear(at, greeted).wait(nil)
		synctest.Wait()
		if n := len(session.in); n != 0 {
			t.Errorf("%d messages came before the answer", n)
		}
		close(greeted)
		if m := c.recv(); m.Method != "notifications/x" {
			t.Errorf("got %s", m.Append(nil))
		}
	})
}

// What was sent before Close goes out, even if the server was not heard yet. Close does not wait for
// that.
func TestCloseBeforeTheServerIsHeard(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.get = func(_ http.ResponseWriter, r *http.Request) { block(r) }
		c := connect(t, f)
		c.notify("notifications/n", "")
		began := time.Now()
		c.close()
		if took := time.Since(began); took != leaveAfterGET {
			t.Errorf("Close took %v", took)
		}
		seen := slices.DeleteFunc(f.all(), func(s string) bool { return s == "GET" })
		if want := []string{"initialize", "notifications/initialized", "notifications/n", "DELETE session-1"}; !slices.Equal(seen, want) {
			t.Errorf("server has seen %q, want %q", seen, want)
		}
	})
}

// A server that is too busy for the first GET is asked again.
func TestListenAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		var gets atomic.Int64
		f.get = func(w http.ResponseWriter, r *http.Request) {
			if gets.Add(1) < 4 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			stream(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
			block(r)
		}
		c := connect(t, f)
		if m := c.recv(); m.Method != "notifications/x" {
			t.Errorf("got %s", m.Append(nil))
		}
		c.close()
	})
}
