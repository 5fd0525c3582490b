package frontend

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// A session that has moved twice is found although its first replica is still there.
func TestMovedTwiceWhileFirstDrains(t *testing.T) {
	f := newFleet(t, "a b c d", nil, nil)
	a, b, c, d := f["a"], f["b"], f["c"], f["d"]
	client, old := a.connectManual("2025-06-18")
	a.sees("c", Away)
	a.sees("d", Away)
	a.leaves(t)
	wantRecvEnds(t, old, errMoved)
	b.sees("a", Gone)
	b.sees("d", Away)
	b.leaves(t)
	a.sees("c", There)
	a.sees("d", There)
	for _, r := range []*replica{a, c, d} {
		r.sees("b", Gone) // a is still there: it waits for another session
	}
	b.cut()
	c.goesOn(t, client.through(d))
}

// goesOn has r answer the next call of a client whose session has moved there, as one that begins here.
func (r *replica) goesOn(t *testing.T, c *testClient) {
	t.Helper()
	resp := c.send(c.request("POST", fmt.Sprintf(call, 2)))
	select {
	case conn := <-r.conns:
		m := conntest.Recv(t, conn)
		conn.Send(initializeResult(m))
		conntest.Recv(t, conn)
		conn.Send(result(2))
		wantStatus(t, conntest.Await(t, "response", resp), 200)
	case other := <-resp:
		body, _ := io.ReadAll(other.Body)
		t.Fatalf("%d %s, want the answer of the replica that has the session", other.StatusCode, body)
	}
}

// A session comes to a replica and moves on, while that asks the others for it.
func TestMovedOnWhileAskedFor(t *testing.T) {
	answered := make(chan struct{}) // b has, when it did not have the session yet
	var f fleet
	f = newFleet(t, "a b c d", nil, func(name string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asks := r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, replicaPath+"/")
			if asks && name == "c" {
				conntest.Await(t, "answer of b", answered)
				f["c"].leaves(t)
				f["a"].leaves(t)
			}
			h.ServeHTTP(w, r)
			if asks && name == "b" {
				close(answered)
			}
		})
	})
	a, b, c, d := f["a"], f["b"], f["c"], f["d"]
	client, old := d.connectManual("2025-06-18")
	d.sees("a", Away)
	d.sees("b", Away)
	c.sees("b", Away)
	a.sees("c", There)
	d.leaves(t)
	wantRecvEnds(t, old, errMoved)
	for _, r := range []*replica{a, b, c} {
		r.sees("d", Gone)
	}
	b.ready, a.ready = "b", "b"
	b.goesOn(t, client.through(a))
}

// The other replica accepts connections and does not answer.
func TestMoveEndsInTime(t *testing.T) {
	over := make(chan struct{})
	f := newFleet(t, "a b", nil, func(name string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == replicaPath {
				select {
				case <-over:
				case <-r.Context().Done():
				}
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	defer close(over)
	a := f["a"]
	for range 100 {
		a.connectManual("2025-06-18")
	}
	a.Drain()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began := time.Now()
	a.Move(ctx)()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("Move with a deadline of 2 s took %v", took)
	}
}

// Subscriptions that the server refuses.
func TestMovedSubscriptionsAreBounded(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	a := f["a"]
	client, old := a.connectManual("2025-06-18")
	pad := strings.Repeat("x", 1<<20)
	for i := range 64 {
		p := client.send(client.request("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"resources/subscribe","params":{"uri":"x:%d","_meta":{"x":"%s"}}}`, 10+i, i, pad)))
		m := conntest.Recv(t, old)
		old.Send(jsonrpc.NewError(m.ID, jsonrpc.InvalidParams("no such resource")))
		wantStatus(t, conntest.Await(t, "response", p), 200)
	}
	s := a.only()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.said.Subscribed {
		n += len(p)
	}
	if n > 4<<20 {
		t.Errorf("a session holds %d bytes of subscriptions that were all refused; its record is larger than maxRecord", n)
	}
}

// A POST whose body comes after the session was frozen at the end of the drain.
func testMovedLateBody(t *testing.T, after time.Duration) {
	f := newFleet(t, "a b", nil, nil)
	a, b := f["a"], f["b"]
	client, old := a.connectManual("2025-06-18")
	go func() { // the server takes the call, and does not answer
		for {
			if _, err := old.Recv(); err != nil {
				return
			}
		}
	}()
	r, w := io.Pipe()
	req := client.request("POST", "x")
	req.Body, req.ContentLength = r, -1
	req.GetBody = nil
	resp := client.send(req)
	io.WriteString(w, "{")
	conntest.Eventually(t, "it is held", func() bool { return a.only().holds().open == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	a.Drain()
	wait := a.Move(ctx)
	cancel()
	time.Sleep(after)
	io.WriteString(w, fmt.Sprintf(call, 1)[1:])
	w.Close()
	n := wait()
	_ = b
	got := conntest.Await(t, "response", resp)
	body, _ := io.ReadAll(got.Body)
	if got.StatusCode != 200 || !strings.Contains(string(body), `"id":1`) {
		t.Errorf("%d sessions moved; the call got %d %q", n, got.StatusCode, body)
	}
}

func TestMovedLateBodyLost(t *testing.T) { testMovedLateBody(t, 100*time.Millisecond) }
func TestMovedLateBody404(t *testing.T)  { testMovedLateBody(t, 800*time.Millisecond) }

// What the client has read takes the place of what it has not.
func TestMovedReadBeforeUnread(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	a, b := f["a"], f["b"]
	client, old := a.connectManual("2025-11-25")
	post := newEvents(t, client.post(fmt.Sprintf(call, 1)))
	conntest.Recv(t, old)
	post.one()
	old.Send(jsonrpc.NewResult(jsonrpc.IntID(1), json.RawMessage(`"`+strings.Repeat("x", maxRecorded-100)+`"`)))
	post.one()
	post.end()
	conntest.Eventually(t, "the response was sent", func() bool { return a.only().holds().open == 0 })
	old.Send(jsonrpc.NewNotification("notifications/unread", json.RawMessage(`{"text":"`+strings.Repeat("y", 1000)+`"}`)))
	a.leaves(t)
	b.sees("a", Gone)
	client = client.through(b)
	stream := newEvents(t, client.get())
	b.resumes(t, false)
	stream.one() // priming
	s := b.only()
	s.mu.Lock()
	n := len(s.out.standalone.events)
	s.mu.Unlock()
	if n != 1 {
		t.Errorf("%d unread notifications moved, want 1", n)
	}
	stream.close()
}

// A large response that the client has not got.
func TestMovedLargeUnread(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	a, b := f["a"], f["b"]
	client, old := a.connectManual("2025-11-25")
	post := newEvents(t, client.post(fmt.Sprintf(call, 1)))
	conntest.Recv(t, old)
	last := post.one().LastEventID
	post.close()
	conntest.Eventually(t, "the drop is noticed", func() bool { return a.only().holds().open == 0 })
	old.Send(jsonrpc.NewResult(jsonrpc.IntID(1), json.RawMessage(`"`+strings.Repeat("x", maxRecorded)+`"`)))
	a.leaves(t)
	b.sees("a", Gone)
	client = client.through(b)
	r := client.send(client.request("GET", "", "Last-Event-ID", last))
	b.resumes(t, false)
	resp := conntest.Await(t, "response", r)
	body, _ := io.ReadAll(resp.Body)
	if !strings.Contains(string(body), `"id":1`) {
		t.Errorf("the stream of call 1 gave %d %.200q, want a response or an error", resp.StatusCode, body)
	}
}

// The link to the only other replica is down for a moment.
func TestMovedLinkBlip(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	a, b := f["a"], f["b"]
	a.connectManual("2025-06-18")
	a.sees("b", Away)
	time.AfterFunc(200*time.Millisecond, func() { a.sees("b", There) })
	if n := a.leaves(t); n != 1 {
		t.Errorf("%d sessions moved, want 1; 20 s were left", n)
	}
	_ = b
}

// A task begins while freeze looks.
func TestMovedBusyRace(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	a := f["a"]
	client, old := a.connectManual("2025-06-18")
	p := client.send(client.request("POST", fmt.Sprintf(call, 1)))
	conntest.Recv(t, old)
	s := a.only()
	task, first := false, true
	s.KeepWhile(func() bool {
		if first { // it looks, and then the call creates a task
			first = false
			task = true
			old.Send(result(1))
			conntest.Eventually(t, "the response is sent", func() bool { return s.holds().open == 0 })
			return false
		}
		return task
	})
	if s.freeze(false) {
		t.Error("a session whose client has an unfinished task is frozen")
		close(s.frozen)
		s.mu.Lock()
		s.frozen = nil
		s.mu.Unlock()
	}
	conntest.Await(t, "response", p)
}

// b takes the request, dies, and is declared dead 4 s later (up to 6 s). c is ready all the time.
func TestMovedTakerDies(t *testing.T) {
	var a *replica
	f := newFleet(t, "a b c", nil, func(name string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if name == "b" && r.URL.Path == replicaPath {
				a.sees("b", Away)
				a.sees("c", There)
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
		})
	})
	a = f["a"]
	a.connectManual("2025-06-18")
	a.sees("c", Away) // so that it begins with b
	time.AfterFunc(4*time.Second, func() { a.sees("b", Gone) })
	if n := a.leaves(t); n != 1 {
		t.Errorf("%d sessions moved, want 1: c is ready, and 20 s were left", n)
	}
}

// TestMovedMeanwhile: what a server says while its session is being moved moves along.
func TestMovedMeanwhile(t *testing.T) {
	var old jsonrpc.Conn
	var once sync.Once
	f := newFleet(t, "a b", nil, func(_ string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			if r.URL.Path == replicaPath && r.Method == http.MethodPost {
				once.Do(func() { old.Send(note("notifications/tools/list_changed")) })
			}
		})
	})
	a, b := f["a"], f["b"]
	client, conn := a.connectManual("2025-11-25")
	old = conn
	old.Send(note("notifications/one"))
	if n := a.leaves(t); n != 1 {
		t.Errorf("%d sessions moved, want 1", n)
	}
	wantRecvEnds(t, old, errMoved)
	b.sees("a", Gone)
	stream := newEvents(t, client.through(b).get())
	b.resumes(t, false)
	stream.one()
	for _, want := range []string{"notifications/one", "notifications/tools/list_changed"} {
		if m := stream.one().message(t); m.Method != want {
			t.Errorf("got %s, want %s", m.Append(nil), want)
		}
	}
	b.HTTP.Close()
	stream.end()
}

// TestMovedFirstRecordReadLate: a record whose connection has broken may be read when that which was sent in its place,
// and what the server has said since, was taken long ago.
func TestMovedFirstRecordReadLate(t *testing.T) {
	var old jsonrpc.Conn
	var late *http.Request
	records := 0
	f := newFleet(t, "a b", nil, func(_ string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			isRecord := r.URL.Path == replicaPath && r.Method == http.MethodPost
			if isRecord {
				records++
			}
			if isRecord && records == 1 {
				text, _ := io.ReadAll(r.Body)
				late = r.Clone(context.WithoutCancel(r.Context()))
				late.Body = io.NopCloser(bytes.NewReader(text))
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
			if isRecord {
				old.Send(note("notifications/tools/list_changed"))
			}
		})
	})
	a, b := f["a"], f["b"]
	client, conn := a.connectManual("2025-11-25")
	old = conn
	old.Send(note("notifications/one"))
	if n := a.leaves(t); n != 1 || records != 2 {
		t.Errorf("%d sessions moved with %d records, want 1 with 2", n, records)
	}
	wantRecvEnds(t, old, errMoved)
	b.sees("a", Gone)
	b.HTTP.ServeHTTP(httptest.NewRecorder(), late)
	stream := newEvents(t, client.through(b).get())
	b.resumes(t, false)
	stream.one()
	for _, want := range []string{"notifications/one", "notifications/tools/list_changed"} {
		if m := stream.one().message(t); m.Method != want {
			t.Errorf("got %s, want %s", m.Append(nil), want)
		}
	}
	b.HTTP.Close()
	stream.end()
}

// A session that another replica turns out to have continued as it begins here leaves nothing that waits for it to
// be idle.
func TestYieldedAsItBegins(t *testing.T) {
	var b *replica
	var s *httpSession
	f := newFleet(t, "a b", func(name string, h *HTTP) {
		h.Admit = func(*identity.Identity) (func(), *identity.Refusal) {
			if name == "b" {
				s = b.only()
				b.open.directory.yield(s.id, "c", s.moves+1)
			}
			return func() {}, nil
		}
	}, nil)
	a := f["a"]
	b = f["b"]
	client, _ := a.connectManual("2025-06-18")
	a.leaves(t)
	b.sees("a", Gone)
	resp := client.through(b).post(fmt.Sprintf(call, 1))
	resp.Body.Close()
	wantRecvEnds(t, conntest.Await(t, "the session", b.conns), errMoved)
	conntest.Eventually(t, "the session has ended", func() bool { open, sessions := b.connections(); return open+sessions == 0 })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle.expiry != nil && s.idle.expiry.Stop() {
		t.Error("its timer runs")
	}
}

// A replica that has taken a session, and could not say so, learns in the end what the client has said since.
func TestMovedAfterAllSaidMore(t *testing.T) {
	var a *replica
	taken := make(chan struct{})
	var once sync.Once
	f := newFleet(t, "a b c", nil, func(name string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			if name == "b" && r.URL.Path == replicaPath && r.Method == http.MethodPost {
				once.Do(func() {
					a.sees("b", Gone)
					close(taken)
					panic(http.ErrAbortHandler)
				})
			}
		})
	})
	a = f["a"]
	b := f["b"]
	a.ready = "b"
	client, old := a.connectManual("2025-06-18")
	a.Drain()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	wait := a.Move(ctx)
	conntest.Await(t, "the first record", taken)
	said := client.send(client.request("POST", `{"jsonrpc":"2.0","id":7,"method":"logging/setLevel","params":{"level":"error"}}`))
	old.Send(jsonrpc.NewResult(conntest.Recv(t, old).ID, json.RawMessage("{}")))
	wantStatus(t, conntest.Await(t, "response", said), http.StatusOK)
	a.sees("b", There)
	if n := wait(); n != 1 {
		t.Errorf("%d sessions moved, want 1", n)
	}
	client.through(b).send(client.request("POST", fmt.Sprintf(call, 8)))
	conn, _ := b.resumes(t, false)
	if m := conntest.Recv(t, conn); m.Method != "logging/setLevel" {
		t.Errorf("after initialize the servers get %s, and not the level", m.Append(nil))
	}
	b.HTTP.Close()
}

// TestEndedWhileMoved: what a server says while its session is being moved does not bring back a session that its client
// has ended meanwhile at the other replica.
func TestEndedWhileMoved(t *testing.T) {
	var old jsonrpc.Conn
	var client *testClient
	var once sync.Once
	var f fleet
	f = newFleet(t, "a b", nil, func(_ string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			if r.URL.Path == replicaPath && r.Method == http.MethodPost {
				once.Do(func() {
					wantStatus(t, client.through(f["b"]).delete(), 204)
					old.Send(note("notifications/tools/list_changed"))
				})
			}
		})
	})
	a, b := f["a"], f["b"]
	client, old = a.connectManual("2025-11-25")
	a.leaves(t)
	wantRecvEnds(t, old, errMoved)
	b.sees("a", Gone)
	if n, _ := b.open.directory.count(); n != 0 {
		t.Errorf("b has %d sessions", n)
	}
}
