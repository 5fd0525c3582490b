package session

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// inLimits runs a world in each era whose clients have limits, and whose upstream no longer
// answers.
func inLimits(t *testing.T, up Upstream, l policy.Limits, test func(w *world)) {
	inEras(t, &Router{Upstreams: []Upstream{up}}, nil, func(w *world) {
		w.configure(func(p *Router) { p.Policies = policiesOf(t, policy.Rule{Who: policy.Who{Any: true}, Limits: l}) })
		w.initialize()
		w.list()
		w.upstream("files").mute()
		w.upstream("files").take()
		test(w)
	})
}

func (w *world) callEcho(id int) {
	w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo"}}`, id))
}

func (w *world) cancelCall(id int) {
	w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
}

// abandon makes calls and cancels each as soon as the upstream has it.
func (w *world) abandon(from, to int) {
	for id := from; id <= to; id++ {
		w.callEcho(id)
		synctest.Wait()
		w.cancelCall(id)
		synctest.Wait()
	}
}

// begun returns the new calls at the upstream.
func (w *world) begun() (calls []*jsonrpc.Message) {
	for _, got := range w.upstream("files").take() {
		if m := decode(w.t, got); m.Method == mcp.MethodToolsCall {
			calls = append(calls, m)
		}
	}
	return calls
}

// wantFull checks whether one more call is refused.
func (w *world) wantFull(when string, id int, full bool) {
	w.t.Helper()
	w.callEcho(id)
	got := strings.Join(w.client.take(), "\n")
	if strings.Contains(got, `"overloaded"`) != full || len(w.begun()) == 1 == full {
		w.t.Errorf("%s: full must be %v: %s", when, full, got)
	}
}

// A server may work on cancelled calls, too: of one principal it has at most four times
// limits.inFlight.
func TestCancelledCallsCount(t *testing.T) {
	inLimits(t, Upstream{Name: "files"}, policy.Limits{InFlight: 2}, func(w *world) {
		w.abandon(1, 100)
		calls := w.begun()
		if len(calls) != 8 {
			t.Fatalf("the server works on %d calls, want 4 × 2", len(calls))
		}
		if got := strings.Join(w.client.take(), "\n"); strings.Count(got, "Too many cancelled requests that may still be running: try again in 30 s") != 92 || !strings.Contains(got, "refused: 429") {
			t.Error("what is beyond:", got)
		}
		w.upstream("files").conn.Send(jsonrpc.NewResult(calls[3].ID, []byte(`{}`)))
		w.upstream("files").conn.Send(jsonrpc.NewResult(calls[3].ID, []byte(`{}`))) // which releases nothing more
		w.wantFull("after a late answer", 101, false)
		w.wantFull("but only one", 102, true)
		w.cancelCall(101)
		time.Sleep(29 * time.Second)
		w.wantFull("after 29 s", 103, true)
		time.Sleep(time.Second)
		w.wantFull("after 30 s", 104, false)
		w.wantFull("there are two open", 105, false)
		w.wantFull("at the limit of open ones", 106, true)
	})
}

// However a call ends that the client has not cancelled, it keeps counting if a server may work on
// it.
func TestAbandonedCallsCount(t *testing.T) {
	t.Run("timeout", func(t *testing.T) {
		inLimits(t, Upstream{Name: "files", RequestTimeout: time.Second}, policy.Limits{InFlight: 2}, func(w *world) {
			for id := range 8 {
				w.callEcho(id)
				time.Sleep(2 * time.Second)
			}
			w.client.take()
			w.begun()
			w.wantFull("after 8 timeouts", 9, true)
			time.Sleep(15 * time.Second) // 30 s after the first
			w.wantFull("later", 10, false)
		})
	})
	t.Run("end of the session", func(t *testing.T) {
		inLimits(t, Upstream{Name: "files"}, policy.Limits{InFlight: 2}, func(w *world) {
			w.hands = map[string]func(*party, *jsonrpc.Message){"files": func(p *party, m *jsonrpc.Message) {
				if m.Method != mcp.MethodToolsCall {
					echo("files")(p, m)
				}
			}}
			for i := range 4 {
				w.callEcho(1)
				w.callEcho(2)
				synctest.Wait()
				if i%2 == 0 {
					w.cancel() // as the end of an HTTP session
					synctest.Wait()
				}
				w.client.conn.Close()
				<-w.ended
				w.connect()
				w.initialize()
			}
			w.client.say(`{"jsonrpc":"2.0","id":3,"method":"prompts/list"}`)
			if got := strings.Join(w.client.take(), ""); !strings.Contains(got, "Too many cancelled requests") {
				t.Error("one who comes again and again:", got)
			}
			time.Sleep(30 * time.Second)
			w.initialize()
			w.callEcho(4)
			if got := strings.Join(w.client.take(), ""); strings.Contains(got, "overloaded") {
				t.Error("30 s later:", got)
			}
		})
	})
	t.Run("end of the server", func(t *testing.T) {
		inLimits(t, Upstream{Name: "files"}, policy.Limits{InFlight: 2}, func(w *world) {
			w.abandon(1, 8)
			w.callEcho(9)
			w.upstream("files").conn.Close()
			w.client.take()
			w.callEcho(10)
			w.callEcho(11)
			if got := strings.Join(w.client.take(), ""); strings.Contains(got, "overloaded") {
				t.Error(got)
			}
		})
	})
	t.Run("not sent", func(t *testing.T) {
		inLimits(t, Upstream{Name: "files"}, policy.Limits{InFlight: 2}, func(w *world) {
			w.upstream("files").conn.Close()
			synctest.Wait()
			gate := make(chan struct{})
			w.proxy.Dial = gated(w, gate)
			w.abandon(1, 100)
			w.callEcho(101)
			if got := w.client.take(); len(got) != 0 {
				t.Errorf("calls that no server has seen count: %q", got)
			}
			close(gate)
			synctest.Wait()
		})
	})
}

// Answered calls leave nothing behind, however many there are.
func TestAnsweredCallsDoNotCount(t *testing.T) {
	inLimits(t, Upstream{Name: "files"}, policy.Limits{InFlight: 1}, func(w *world) {
		w.upstream("files").handle(echo("files"))
		for id := range 50 {
			w.callEcho(id)
			if got := strings.Join(w.client.take(), ""); !strings.Contains(got, `"result"`) {
				t.Fatal(got)
			}
		}
	})
}

// The abandoned calls that an upstream connection remembers are bounded by those that count.
func TestAbandonedIsBounded(t *testing.T) {
	inLimits(t, Upstream{Name: "files"}, policy.Limits{InFlight: 16}, func(w *world) {
		for round := range 20 {
			w.abandon(1000*round, 1000*round+63)
			time.Sleep(30 * time.Second)
		}
		if n := len(w.begun()); n != 20*64 {
			t.Error(n, "calls")
		}
		for s := range w.proxy.sessions {
			s.mu.Lock()
			for _, u := range s.upstreams.conns() {
				if n := len(u.abandoned.uses); n > 128 {
					t.Error(n, "are remembered")
				}
			}
			s.mu.Unlock()
		}
	})
}

// Notifications count for the rate. Those beyond it reach no server, and the status counts them.
func TestRateOfNotifications(t *testing.T) {
	refused := 0
	inEras(t, &Router{Upstreams: []Upstream{{Name: "files"}}}, nil, func(w *world) {
		refused = 0
		w.configure(func(p *Router) {
			p.Policies = policiesOf(t, policy.Rule{Who: policy.Who{Any: true}, Limits: policy.Limits{Rate: 0.5}})
			p.Hooks.Refused = func(string) { refused++ }
		})
		w.initialize()
		w.list() // which are two requests of the ten
		up := w.upstream("files")
		up.take()
		x := `{"jsonrpc":"2.0","method":"notifications/x"}`
		if w.era == mcp.Modern {
			x = `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
		}
		for range 1000 {
			w.client.say(x)
			w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":77}}`)
		}
		if n := strings.Count(strings.Join(up.take(), "\n"), "notifications/x"); n != 8 {
			t.Errorf("the server got %d notifications, want 8", n)
		}
		if all := w.proxy.Sessions(); all[0].Dropped != 992 || refused != 992 {
			t.Errorf("%d are counted in the status, %d told, want 992", all[0].Dropped, refused)
		}
		if got := w.client.take(); len(got) != 0 {
			t.Errorf("a notification is answered: %q", got)
		}
		time.Sleep(2 * time.Second)
		w.client.say(x)
		if got := up.take(); len(got) != 1 {
			t.Errorf("after 2 s: %q", got)
		}
	})
}

// Messages that are bounded otherwise pass beyond the rate: initialized, answers, and cancellations
// of open calls.
func TestRateLetsPass(t *testing.T) {
	inWorld(t, &Router{Policies: policiesOf(t, policy.Rule{Who: policy.Who{Any: true}, Limits: policy.Limits{Rate: 0.01}})}, []string{"files"}, func(w *world) {
		w.initialize()
		up := w.upstream("files")
		up.mute()
		w.callEcho(1)
		for range 20 {
			w.client.say(`{"jsonrpc":"2.0","method":"notifications/x"}`)
		}
		up.take()
		up.say(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}`)
		w.cancelCall(1)
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		up.want(`{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	})
}

// Progress of a client on server requests counts like any notification.
func TestRateOfProgress(t *testing.T) {
	inWorld(t, &Router{Policies: policiesOf(t, policy.Rule{Who: policy.Who{Any: true}, Limits: policy.Limits{Rate: 0.01}})}, []string{"files"}, func(w *world) {
		w.initialize()
		up := w.upstream("files")
		up.mute()
		up.say(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"_meta":{"progressToken":"p"}}}`)
		w.client.take()
		up.take()
		for range 100 {
			w.client.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
		}
		if got := up.take(); len(got) != 9 { // initialize was the first of ten
			t.Errorf("%d reports of progress, want 9: %q", len(got), got)
		}
	})
}

// A change of the client's roots is reported at once, and so is the last one, but not each one
// between.
func TestRootsChangesAreCoalesced(t *testing.T) {
	const changed = `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`
	for _, leaves := range []bool{false, true} {
		inWorld(t, &Router{}, []string{"files", "docs"}, func(w *world) {
			w.initialize()
			w.list()
			files, docs := w.upstream("files"), w.upstream("docs")
			files.take()
			docs.take()
			for range 1000 {
				w.client.say(changed)
			}
			files.want(changed)
			docs.want(changed)
			if leaves {
				w.client.conn.Close()
				<-w.ended
			} else {
				time.Sleep(rootsPause)
			}
			files.want(changed)
			docs.want(changed)
			time.Sleep(time.Minute)
			files.want()
			if leaves {
				return
			}
			w.client.say(changed)
			files.want(changed)
		})
	}
}
