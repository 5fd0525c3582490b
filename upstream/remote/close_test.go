package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestD05_ErrorBeforeCancelBeforeDelete(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
			stream(w, "data: {\"jsonrpc\":\"2.0\",\"id\":77,\"method\":\"elicitation/create\",\"params\":{}}\n\n")
			block(r)
			f.note("given up")
		})
		f.handle("tasks/cancel", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
			select {
			case <-r.Context().Done():
			case <-time.After(150 * time.Millisecond):
				f.note("task cancelled")
				reply(w, m, `{}`)
			}
		})
		f.handle("notifications/cancelled", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			time.Sleep(50 * time.Millisecond)
			f.note("accepted")
			w.WriteHeader(http.StatusAccepted)
		})
		c := connect(t, f)
		c.request(1, "tools/call", `{}`)
		question := c.recv()
		c.send(jsonrpc.NewError(question.ID, jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.Cause{}, jsonrpc.InFlight)))
		c.cancel(1)
		c.request(2, "tasks/cancel", `{"taskId":"t"}`)
		c.close()
		f.await("given up", 1)
		seen := f.all()
		at := func(what string) int {
			i := slices.Index(seen, what)
			if i < 0 {
				t.Errorf("server has not seen %s but %q", what, seen)
			}
			return i
		}
		if at("response 77") > at("notifications/cancelled") || at("accepted") > at("given up") ||
			at("task cancelled") > at("DELETE session-1") {
			t.Errorf("server has seen %q", seen)
		}
	})
}

// D06, D35: the DELETE follows the responses of all requests, whether they were
// cancelled or end because of an error for their question. One that has none does not
// hold it up for long.
func TestD35_DeleteBehindTheResponses(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		told := make(chan struct{}, 2)
		f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
			if n, _ := m.ID.Int(); n == 3 {
				block(r)
				return
			}
			<-told
			select { // time for a DELETE that does not wait
			case <-r.Context().Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			f.note("answered")
			stream(w, fmt.Sprintf("data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", m.ID))
		})
		accepted := func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			w.WriteHeader(http.StatusAccepted)
			told <- struct{}{}
		}
		f.handle("notifications/cancelled", accepted)
		c := connect(t, f)
		for id := range int64(3) {
			c.request(id+1, "tools/call", `{}`)
		}
		f.await("tools/call", 3)
		c.cancel(1)
		c.cancel(2)
		c.close()
		f.await("DELETE session-1", 1)
		if seen := f.all(); slices.Index(seen, "DELETE session-1") < slices.Index(seen, "answered") || countOf(seen, "answered") != 2 {
			t.Errorf("server has seen %q", seen)
		}
	})
}

// The Python SDK (1.x) logs a traceback if the DELETE comes before it has noticed that the
// stream of the GET has ended. A busy one takes a while.
func TestD35_DeleteBehindTheEndOfTheGET(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.get = func(w http.ResponseWriter, r *http.Request) {
			stream(w, ":\n\n")
			block(r)
			time.Sleep(200 * time.Millisecond)
			f.note("GET ended")
		}
		c := connect(t, f)
		f.await("GET", 1)
		c.close()
		f.await("DELETE session-1", 1)
		if seen := f.all(); slices.Index(seen, "GET ended") < 0 || slices.Index(seen, "GET ended") > slices.Index(seen, "DELETE session-1") {
			t.Errorf("server has seen %q", seen)
		}
	})
}

func countOf(all []string, what string) (n int) {
	for _, s := range all {
		if s == what {
			n++
		}
	}
	return n
}

func TestCloseGivesUpBehindTheCancel(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
			block(r)
			f.note("given up")
		})
		f.handle("notifications/cancelled", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			time.Sleep(50 * time.Millisecond) // in which the call would be given up
			f.note("accepted")
			w.WriteHeader(http.StatusAccepted)
		})
		c := connect(t, f)
		c.request(1, "tools/call", `{}`)
		f.await("tools/call", 1)
		c.cancel(1)
		c.close()
		f.await("given up", 1)
		if seen := f.all(); slices.Index(seen, "given up") < slices.Index(seen, "accepted") {
			t.Errorf("server has seen %q", seen)
		}
	})
}

func TestCloseUnblocks(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.handle("notifications/n", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
		s, _ := server(t, f.URL)
		s.StopGrace = 200 * time.Millisecond
		c := shaken(t, f.reach(s))
		sent := make(chan error)
		go func() {
			for {
				if err := c.Send(jsonrpc.NewNotification("notifications/n", nil)); err != nil {
					sent <- err
					return
				}
			}
		}()
		received := make(chan error)
		go func() {
			_, err := c.Recv()
			received <- err
		}()
		f.await("notifications/n", 1)
		began := time.Now()
		c.close()
		if took := time.Since(began); took != s.StopGrace/2+s.StopGrace/8 { // as in takeLeave
			t.Errorf("Close took %v", took)
		}
		for _, err := range []error{<-sent, <-received} {
			if !errors.Is(err, jsonrpc.ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		}
		c.close()
		f.await("DELETE session-1", 1) // half of the grace is for it
	})
}

func TestDialContextEndsAll(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	s, _ := server(t, f.URL)
	s.StopGrace = time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	c := dialContext(t, ctx, s)
	c.shake()
	c.request(1, "tools/call", `{}`)
	f.await("tools/call", 1)
	cancel()
	if closed := c.end(); closed.Cause != jsonrpc.CauseHostStopped || !closed.Delivered {
		t.Errorf("the end is %+v", closed)
	}
	c.close()
	if strings.Contains(strings.Join(f.all(), " "), "DELETE") {
		t.Error("there was a DELETE")
	}
}

// A session that the server has begun, and that the client leaves before it is ready, is told that it is over.
func TestD21_DeleteOfAnUnfinishedSession(t *testing.T) {
	t.Run("the first", func(t *testing.T) {
		inBubble(t, func(t *testing.T, f *fake) {
			f.handle("initialize", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
				w.Header().Set("Mcp-Session-Id", f.bear())
				stream(w, ":\n\n")
				block(r)
			})
			s, _ := server(t, f.URL)
			c := dial(t, f.reach(s))
			c.request(1, "initialize", initParams)
			f.await("initialize", 1)
			synctest.Wait() // its session is known
			c.close()
			f.await("DELETE session-1", 1)
		})
	})
	t.Run("the next", func(t *testing.T) {
		inBubble(t, func(t *testing.T, f *fake) {
			c := connect(t, f)
			f.await("notifications/initialized", 1)
			f.handle("notifications/initialized", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
			f.forget()
			c.request(1, "tools/call", `{}`)
			f.await("notifications/initialized", 2)
			c.close()
			f.await("DELETE session-2", 1)
		})
	})
}
