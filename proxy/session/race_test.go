package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// race plays a world 200 times, on one processor, two and more: begin, then all racers at once,
// then check.
func race(t *testing.T, begin func(*world), check func(*world), racers ...func(*world)) {
	raceIn(t, mcp.Legacy, begin, check, racers...)
}

// raceInEras is race for a client of each era.
func raceInEras(t *testing.T, begin func(*world), check func(*world), racers ...func(*world)) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(string(era), func(t *testing.T) { raceIn(t, era, begin, check, racers...) })
	}
}

func raceIn(t *testing.T, era mcp.Era, begin func(*world), check func(*world), racers ...func(*world)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for i := range 200 {
		if i%67 == 0 { // changing it stops the world
			runtime.GOMAXPROCS([]int{1, 2, 8}[i/67])
		}
		inWorldOf(t, era, &Router{}, []string{"files"}, func(w *world) {
			w.initialize()
			begin(w)
			var wg sync.WaitGroup
			for _, r := range racers {
				wg.Go(func() { r(w) })
			}
			wg.Wait()
			check(w)
		})
		if t.Failed() {
			return
		}
	}
}

// inFlight returns a begin with n calls, from id 1 on, which the upstream got under ids from 2 on.
func inFlight(n int) func(*world) {
	return func(w *world) { w.calls("files", "echo", 1, n) }
}

func answer(w *world, id int) {
	w.newest("files").conn.Send(jsonrpc.NewResult(jsonrpc.IntID(int64(id)), json.RawMessage(`{}`)))
}

func cancelCall(w *world, id int) {
	w.client.conn.Send(jsonrpc.NewNotification("notifications/cancelled", fmt.Appendf(nil, `{"requestId":%d}`, id)))
}

// once checks that each of n calls was answered once, by one of answers.
func once(w *world, n int, answers ...string) {
	w.t.Helper()
	got := w.client.take()
	for id := 1; id <= n; id++ {
		count := 0
		for _, a := range answers {
			a = strings.Replace(a, "ID", fmt.Sprint(id), 1)
			for _, m := range got {
				if m == a {
					count++
				}
			}
		}
		if count != 1 {
			w.t.Fatalf("%d answers to %d in %q", count, id, got)
		}
	}
	if len(got) != n {
		w.t.Errorf("got %q", got)
	}
}

const resultOfID = `{"jsonrpc":"2.0","id":ID,"result":{}}`

func TestRaceA_AnswersAndForcedEnd(t *testing.T) {
	raceInEras(t, inFlight(3), func(w *world) {
		<-w.ended
		once(w, 3, resultOfID, w.closing("ID", "in_flight"))
	}, func(w *world) { w.cancel() },
		func(w *world) {
			for id := 2; id <= 4; id++ {
				answer(w, id)
			}
		})
}

func TestRaceA_AnswersAndHalfClose(t *testing.T) {
	raceInEras(t, inFlight(3), func(w *world) {
		<-w.ended
		once(w, 3, resultOfID)
	}, func(w *world) { w.client.conn.CloseWrite() },
		func(w *world) {
			for id := 2; id <= 4; id++ {
				answer(w, id)
			}
		})
}

// Requests that come after the end has begun are refused, and do not delay it.
func TestRaceA_RequestsAndForcedEnd(t *testing.T) {
	var began time.Time
	race(t, func(w *world) {
		w.upstream("files").mute()
		began = time.Now()
	}, func(w *world) {
		<-w.ended
		if took := time.Since(began); took > 0 {
			t.Error("the end took", took)
		}
	}, func(w *world) {
		for id := range 500 {
			w.client.conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(int64(id)), "tools/call", json.RawMessage(`{"name":"echo"}`)))
		}
	}, func(w *world) {
		for range rand.N(2000) {
			runtime.Gosched()
		}
		w.cancel()
	})
}

// A merged list that the end interrupts must not look empty.
func TestRaceA_ListAndForcedEnd(t *testing.T) {
	race(t, func(w *world) { w.upstream("files").mute() }, func(w *world) {
		<-w.ended
		for _, m := range w.client.take() {
			if !strings.Contains(m, `"connection_closed"`) {
				t.Error("got", m)
			}
		}
	}, func(w *world) { w.cancel() },
		func(w *world) {
			for id, method := range []string{"tools/list", "prompts/list", "logging/setLevel", "resources/list"} {
				w.client.conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(int64(id)), method, json.RawMessage(`{"level":"info"}`)))
			}
		})
}

func TestRaceB_QuestionAndClientGone(t *testing.T) {
	race(t, inFlight(1), func(w *world) {
		<-w.ended
		for _, m := range w.newest("files").take() { // else the host tells it, when the stream closes
			if m != cc(1, -32000, "", "client disconnected", "in_flight") {
				t.Error("upstream got", m)
			}
		}
		if !w.newest("files").gone() {
			t.Error("stream is open")
		}
	}, func(w *world) { w.client.conn.Close() },
		func(w *world) {
			w.newest("files").conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "roots/list", nil))
		})
}

func TestRaceB_QuestionAndHalfClose(t *testing.T) {
	race(t, inFlight(1), func(w *world) {
		u := w.upstream("files")
		u.want(cc(1, -32000, "", "client disconnected", "in_flight"))
		answer(w, 2)
		<-w.ended
	}, func(w *world) { w.client.conn.CloseWrite() },
		func(w *world) {
			w.newest("files").conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "roots/list", nil))
		})
}

func TestRaceC_TableEmptiedFromAllSides(t *testing.T) {
	raceInEras(t, inFlight(20), func(w *world) {
		seen := map[string]bool{}
		for _, m := range w.client.take() {
			id := decode(t, m).ID.String()
			if seen[id] {
				t.Error("two answers to", id)
			}
			seen[id] = true
		}
		for id := 1; id <= 10; id++ { // the others were cancelled
			if !seen[fmt.Sprint(id)] {
				t.Error("no answer to", id)
			}
		}
	}, func(w *world) {
		w.newest("files").conn.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Delivered: true})
	}, func(w *world) {
		for id := 2; id <= 21; id++ {
			answer(w, id)
		}
	}, func(w *world) {
		for id := 11; id <= 20; id++ {
			cancelCall(w, id)
		}
	})
}

func TestRaceD_NothingWrittenAfterTheEnd(t *testing.T) {
	raceInEras(t, inFlight(3), func(w *world) {
		<-w.ended
		w.client.take()
		answer(w, 3)
		answer(w, 4)
		w.client.want()
	}, func(w *world) { w.client.conn.Close() }, func(w *world) { answer(w, 2) })
}

func TestRaceGH_CancelAndAnswer(t *testing.T) {
	raceInEras(t, inFlight(1), func(w *world) {
		got, cancels := w.client.take(), w.upstream("files").take()
		if len(got)+len(cancels) != 1 {
			t.Errorf("client got %q, upstream %q", got, cancels)
		}
	}, func(w *world) { cancelCall(w, 1); cancelCall(w, 1) }, func(w *world) { answer(w, 2); answer(w, 2) })
}

func TestRaceI_CancelWhileWritten(t *testing.T) {
	raceInEras(t, func(w *world) { w.upstream("files").mute(); w.upstream("files").take() }, func(w *world) {
		got := w.upstream("files").take()
		if len(got) == 1 || len(got) == 2 && !strings.Contains(got[1], "cancelled") {
			t.Errorf("upstream got %q", got)
		}
		w.client.want()
	}, func(w *world) {
		w.client.say(call1)
		cancelCall(w, 1)
	})
}

func TestRaceJ_IDUsedAgain(t *testing.T) {
	raceInEras(t, inFlight(1), func(w *world) {
		u := w.upstream("files")
		u.take()
		u.say(`{"jsonrpc":"2.0","id":3,"result":{"second":true}}`)
		got := slices.DeleteFunc(w.client.take(), func(m string) bool { return m == strings.Replace(resultOfID, "ID", "1", 1) })
		if want := []string{`{"jsonrpc":"2.0","id":1,"result":{"second":true}}`}; !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
	}, func(w *world) {
		cancelCall(w, 1)
		w.client.send(decode(t, call1))
	}, func(w *world) { answer(w, 2); answer(w, 2) })
}

func TestRaceK_AnswersNobodyAskedFor(t *testing.T) {
	raceInEras(t, func(w *world) { w.upstream("files").mute() }, func(w *world) {
		u := w.upstream("files")
		u.say(`{"jsonrpc":"2.0","id":2,"result":{"now":true}}`)
		got := w.client.take()
		if len(got) != 1 { // an id can be guessed, but only the first answer to it counts
			t.Errorf("got %q", got)
		}
	}, func(w *world) { w.client.say(call1) }, func(w *world) { answer(w, 2); answer(w, 3); answer(w, 0) })
}

func TestRaceL_RequestAfterClose(t *testing.T) {
	raceInEras(t, inFlight(1), func(w *world) {
		if err := <-w.ended; !errors.Is(err, jsonrpc.ErrClosed) {
			t.Error(err)
		}
		got := w.client.take()
		late := slices.DeleteFunc(slices.Clone(got), func(m string) bool { return m == w.closing(1, "in_flight") })
		if len(got)-len(late) != 1 || len(late) > 1 || len(late) == 1 && !strings.Contains(late[0], `"connection_closed"`) {
			t.Errorf("got %q", got)
		}
	}, func(w *world) { w.cancel() }, func(w *world) {
		w.client.send(decode(t, strings.Replace(call1, `"id":1`, `"id":2`, 1)))
	})
}

// However many layers an end has passed, the client gets one flat error.
func TestRaceF_EndsAreNotWrapped(t *testing.T) {
	inner := fmt.Errorf("read /secret/path: %w", fmt.Errorf("layer: %w", jsonrpc.Closed(errors.New("10.0.0.1:80: reset"))))
	for _, row := range []struct {
		end         error
		cause, when string
	}{
		{inner, "link lost", "in_flight"},
		{fmt.Errorf("attach: %w", &jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(3), Delivered: true, Err: inner}), "exit status 3", "in_flight"},
		{&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Err: inner}, "start failed", "not_sent"},
		{nil, "link lost", "in_flight"}, // closed without a word
	} {
		inWorld(t, &Router{}, []string{"files"}, func(w *world) {
			w.initialize()
			w.calls("files", "echo", 1, 1)
			w.upstream("files").conn.CloseCause(row.end)
			w.client.want(cc(1, -32603, "files", row.cause, row.when))
		})
	}
}

// A client that does not read cannot delay its own end.
func TestRaceP_ClientDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := newStuckConn()
		ctx, force := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- new(Router).Serve(ctx, identity.Nobody, "", stuck) }()
		for id := range int64(3) {
			stuck.say(jsonrpc.NewRequest(jsonrpc.IntID(id), "ping", nil))
		}
		synctest.Wait()
		began := time.Now()
		force()
		<-done
		if took := time.Since(began); took > time.Second {
			t.Error("took", took)
		}
	})
}

// Restarts, lists and calls at once: every call gets one answer.
func TestRaceRestart(t *testing.T) {
	race(t, func(*world) {}, func(w *world) {
		seen := map[string]int{}
		for _, m := range w.client.take() {
			if m := decode(t, m); m.IsResponse() {
				seen[m.ID.String()]++
			}
		}
		for id := range 20 {
			if seen[fmt.Sprint(id)] != 1 {
				t.Errorf("%d answers to %d", seen[fmt.Sprint(id)], id)
			}
		}
	}, func(w *world) {
		for i := range 20 {
			method := []string{"tools/call", "tools/list", "resources/list", "prompts/get"}[i%4]
			w.client.conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(int64(i)), method, json.RawMessage(`{"name":"echo"}`)))
		}
	}, func(w *world) {
		for range 5 {
			w.newest("files").conn.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(1), Delivered: true})
		}
	})
}

// After Updates in any order, all sessions serve the last set.
func TestRaceUpdates(t *testing.T) {
	race(t, func(*world) {}, func(w *world) {
		synctest.Wait()
		var names []string
		for _, u := range w.proxy.running()[0].upstreams.of(mcp.Legacy).conns {
			names = append(names, u.up.Name)
		}
		var want []string
		for _, u := range w.proxy.current().upstreams {
			want = append(want, u.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("serves %q of %q", names, want)
		}
	}, func(w *world) { w.proxy.Update([]Upstream{{Name: "a"}}, nil) },
		func(w *world) { w.proxy.Update([]Upstream{{Name: "b"}, {Name: "files"}}, nil) },
		func(w *world) { w.proxy.Update(nil, farAway) })
}

// Calls, cancellations, changes of the set and all kinds of end at once: each call is answered
// once, unless it was cancelled.
func TestRaceUpdateAndEverything(t *testing.T) {
	ends := []func(*world){
		func(w *world) { w.cancel() },
		func(w *world) { w.client.conn.CloseWrite() },
		func(w *world) { w.proxy.Shutdown(context.Background()) },
		func(*world) {},
	}
	round := 0
	race(t, func(*world) { round++ }, func(w *world) {
		if round%len(ends) != 3 {
			<-w.ended
		}
		time.Sleep(11 * time.Second) // lists wait for upstreams if there are none
		seen := map[string]int{}
		for _, m := range w.client.take() {
			if m := decode(t, m); m.IsResponse() {
				seen[m.ID.String()]++
			}
		}
		for id := range 20 {
			unread := round%len(ends)%2 == 0 // it may have ended before it came to that
			if n := seen[fmt.Sprint(id)]; n > 1 || n == 0 && id%5 != 0 && !unread {
				t.Errorf("%d answers to %d", n, id)
			}
		}
	}, func(w *world) {
		for i := range 20 {
			method := []string{"tools/call", "tools/list", "resources/read", "prompts/get"}[i%4]
			w.client.conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(int64(i)), method, json.RawMessage(`{"name":"b__echo","uri":"test://a/a"}`)))
			if i%5 == 0 {
				cancelCall(w, i)
			}
		}
		ends[round%len(ends)](w)
	}, func(w *world) {
		for range 10 {
			set := []Upstream{{Name: "files"}, {Name: "a"}, {Name: "b"}, {Name: "c"}}
			rand.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
			w.proxy.Update(set[:rand.N(len(set))], map[bool][]Unknown{false: farAway}[rand.N(2) == 0])
			w.proxy.Returned("a", "files")
		}
	})
}
