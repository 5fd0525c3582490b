package peer_test

import (
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// TestRaces races everything that can settle a call against everything else, 200 times each, on one
// processor, two and more. It checks the six sentences after each.
func TestRaces(t *testing.T) {
	racers := map[string]func(*chain){
		"answer":        func(w *chain) { w.server.answerNth(0) },
		"cancel":        func(w *chain) { w.client.cancelNth(0) },
		"cancel far":    func(w *chain) { w.far.TakeCalls(nil) },
		"server closes": func(w *chain) { w.server.conn.Close() },
		"client closes": func(w *chain) { w.client.conn.Close() },
		"far ends":      func(w *chain) { w.far.End(errors.New("over")) },
		"near ends":     func(w *chain) { w.near.End(errors.New("over")) },
		"drain":         func(w *chain) { w.near.Drain(nil, time.Second) },
		"finish":        func(w *chain) { w.near.Finish(nil, time.Second) },
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for a := range racers {
		for b := range racers {
			if a > b {
				continue
			}
			t.Run(a+" and "+b, func(t *testing.T) {
				for i := range 200 {
					if i%67 == 0 {
						runtime.GOMAXPROCS([]int{1, 2, 8}[i/67])
					}
					synctest.Test(t, func(t *testing.T) { race(t, i%2 == 1, racers[a], racers[b]) })
					if t.Failed() {
						return
					}
				}
			})
		}
	}
}

// race makes a call each way, and one more that is on its way, and runs two racers. direct is as in newChain.
func race(t *testing.T, direct bool, racers ...func(*chain)) {
	w := newChain(t, direct)
	w.client.call(`{}`)
	w.server.call(`{}`)
	synctest.Wait()
	w.client.call(`{}`) // may be anywhere
	var wg sync.WaitGroup
	for _, r := range racers {
		wg.Go(func() { r(w) })
	}
	wg.Wait()
	w.end(t)
}

// TestClientIsAlwaysListenedTo uses a server that does not read: a full queue refuses, and messages
// of the client are handled nevertheless (6).
func TestClientIsAlwaysListenedTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newChain(t, false)
		w.server.conn.Close()
		synctest.Wait()
		stuck, _ := jsonrpc.Pipe() // nobody reads the other end
		w.far = newSide("far", peer.Options{Name: "files", Full: func(*jsonrpc.Message) {}, Room: jsonrpc.Room{Messages: 4}})
		w.far.run(t, stuck, false)
		for range 200 {
			w.client.call(`{}`)
		}
		pong := w.client.NewCall("ping")
		answered := false
		pong.Done = func(*jsonrpc.Message, *peer.Lost) { answered = true }
		_ = pong.Send(&jsonrpc.Message{})
		synctest.Wait()
		if !answered {
			t.Error("a ping waits behind a server that does not read")
		}
		refused := 0
		for _, c := range w.client.calls {
			refused += w.client.ended[c]
		}
		if refused == 0 || refused == 200 {
			t.Errorf("%d of 200 calls were refused", refused)
		}
		w.end(t)
	})
}

// In TestOneStimulus a client leaves a server that stays: calls that possibly wait for a request
// that got the connection-closed error are not cancelled.
func TestOneStimulus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, server := newSide("ours", peer.Options{}), newSide("server", peer.Options{})
		a, b := jsonrpc.Pipe()
		ours.run(t, a, true)
		server.run(t, b, true)
		waits, list := ours.call(`{}`), ours.call(`{}`)
		list.Works = false
		synctest.Wait()
		server.call(`{}`)
		synctest.Wait()
		after := ours.call(`{}`) // nothing was asked for it
		synctest.Wait()

		requests := slices.Clone(ours.open)
		for _, r := range requests {
			ours.settles(r)
		}
		for _, r := range requests {
			r.Refuse(jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.Cause{}, jsonrpc.InFlight))
		}
		var marked []*peer.Call
		for _, c := range ours.Calls(nil) {
			if c.Marked() {
				marked = append(marked, c)
				continue
			}
			c.Cancel("left")
		}
		if !slices.Equal(marked, []*peer.Call{waits}) {
			t.Errorf("%d calls are marked, want the one that waits", len(marked))
		}
		synctest.Wait()
		var wire []string
		for _, m := range ours.conn.sent[3:] {
			text, _ := jsonrpc.Member(m.Params, "requestId")
			wire = append(wire, m.Method+string(text)+m.ID.String())
		}
		want := []string{"1", "notifications/cancelled" + list.ID.String(), "notifications/cancelled" + after.ID.String()}
		if !slices.Equal(wire, want) {
			t.Errorf("sent %q, want %q", wire, want)
		}
		for _, c := range []*peer.Call{list, after} {
			ours.ended[c]++ // by Cancel
		}
		ours.conn.Close()
		for _, s := range []*side{ours, server} {
			<-s.done
			s.check(t)
		}
	})
}

func BenchmarkForward(b *testing.B) {
	client, near := jsonrpc.Pipe()
	far, server := jsonrpc.Pipe()
	var ends []*peer.Peer
	run := func(c jsonrpc.Conn, o peer.Options) *peer.Peer {
		p := peer.New(o)
		ends = append(ends, p)
		go func() { p.End(p.Run(b.Context(), c)) }()
		return p
	}
	result, params := json.RawMessage(`{"content":[]}`), json.RawMessage(`{"name":"echo"}`)
	run(server, peer.Options{Request: func(r *peer.Request) { r.Respond(&jsonrpc.Message{Result: result}) }})
	to := run(far, peer.Options{Name: "files", Room: jsonrpc.Room{Messages: 1024}})
	run(near, peer.Options{Room: jsonrpc.Room{Messages: 1024}, Request: func(r *peer.Request) {
		_ = r.Forward(to.NewCall(r.Method), &jsonrpc.Message{Params: r.Message.Params})
	}})
	from := run(client, peer.Options{Room: jsonrpc.Room{Messages: 1024}})
	slots := make(chan struct{}, 64)
	b.ReportAllocs()
	for b.Loop() {
		slots <- struct{}{}
		c := from.NewCall("tools/call")
		c.Done = func(*jsonrpc.Message, *peer.Lost) { <-slots }
		_ = c.Send(&jsonrpc.Message{Params: params})
	}
	for range cap(slots) {
		slots <- struct{}{}
	}
}

// A notification that belongs to a request comes before the answer, or not at all, whatever happens
// at the same time.
func TestTellNeverFollowsTheAnswer(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := jsonrpc.Pipe()
			s := newSide("ours", peer.Options{})
			s.run(t, ours, true)
			_ = theirs.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "tools/call", nil))
			synctest.Wait()
			r := s.open[0]
			s.settles(r)
			go r.Respond(&jsonrpc.Message{Result: json.RawMessage(`{}`)})
			r.Tell(jsonrpc.NewNotification("notifications/progress", nil))
			synctest.Wait()
			r.Tell(jsonrpc.NewNotification("notifications/progress", nil))
			synctest.Wait()
			ours.Close()
			answered := false
			for m, err := theirs.Recv(); err == nil; m, err = theirs.Recv() {
				if m.Method != "" && (answered || m.Related != jsonrpc.IntID(1)) {
					t.Errorf("answered: %v, got %+v", answered, m)
				}
				answered = answered || m.IsResponse()
			}
			if !answered {
				t.Error("no answer")
			}
			theirs.Close()
		})
	}
}
