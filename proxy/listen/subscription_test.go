package listen

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

const (
	acked     = `subscriptions/acknowledged {"notifications":`
	changed   = `tools/list_changed {}`
	updateOf1 = `resources/updated {"uri":"x:1"}`
	updateOf2 = `resources/updated {"uri":"x:2"}`
)

// The acknowledgment comes first, and has what upstreams have accepted until then.
func TestAcknowledgedFirst(t *testing.T) {
	inWorld(t, func(w *world) {
		w.begin(resources, w.a, w.b)
		a, b := w.a.listening(t, 1), w.b.listening(t, 1)
		if want := `{"_meta":{"k":1},"notifications":` + resources + `}`; a.params != want {
			t.Errorf("asked for %s, want %s", a.params, want)
		}
		a.acknowledge(`{"resourceSubscriptions":["x:1"]}`)
		a.say(mcp.MethodResourceUpdated, `{"uri":"x:1"}`)
		a.say(mcp.MethodResourceUpdated, `{"uri":"x:2"}`)
		a.say(mcp.MethodToolsChanged, `{}`)
		w.client.want(t)
		b.acknowledge(`{}`)
		w.client.want(t, acked+`{"toolsListChanged":true,"resourceSubscriptions":["x:1"]}}`, updateOf1)
		time.Sleep(debounce)
		w.client.want(t, changed)
		b.say(mcp.MethodResourceUpdated, `{"uri":"x:2"}`)
		a.say(mcp.MethodTask, `{"taskId":"t"}`)
		a.say(mcp.MethodProgress, `{}`)
		w.client.want(t)
		if want := []string{"it was not acknowledged", "it was not acknowledged", "not requested", "not requested"}; !slices.Equal(w.client.dropped, want) {
			t.Errorf("dropped %q, want %q", w.client.dropped, want)
		}
	})
}

// The acknowledgment waits for an upstream that may accept a resource that no other has accepted, and
// no longer than AckWithin if it can change nothing.
func TestAcknowledgedInTime(t *testing.T) {
	const never = time.Hour
	for _, test := range []struct {
		asks   string
		after  []time.Duration // of a and b
		acks   []string
		want   string
		within time.Duration
	}{
		{resources, []time.Duration{700 * time.Millisecond, 0}, []string{"", "{}"}, resources, 700 * time.Millisecond},
		{resources, []time.Duration{never, 0}, []string{"", "{}"}, lists, acceptWithin},
		{resources, []time.Duration{3 * time.Second, 0}, []string{"", ""}, resources, AckWithin},
		{resources, []time.Duration{3 * time.Second, time.Second}, []string{"", ""}, resources, time.Second},
		{lists, []time.Duration{700 * time.Millisecond, 0}, []string{"", ""}, lists, AckWithin},
	} {
		inWorld(t, func(w *world) {
			servers := []*server{w.a, w.b}
			w.begin(test.asks, servers...)
			began := time.Now()
			for i, s := range servers {
				l := s.listening(t, 1)
				time.AfterFunc(test.after[i], func() { l.acknowledge(test.acks[i]) })
			}
			time.Sleep(time.Until(began.Add(test.within - 1)))
			w.client.want(t)
			time.Sleep(time.Nanosecond)
			w.client.want(t, acked+test.want+"}")
		})
	}
}

// A resource that is accepted after the acknowledgment is not notified.
func TestAcceptedLate(t *testing.T) {
	inWorld(t, func(w *world) {
		w.begin(resources, w.a, w.b)
		w.a.listening(t, 1).acknowledge(`{"resourceSubscriptions":["x:2"]}`)
		time.Sleep(acceptWithin)
		w.client.want(t, acked+`{"toolsListChanged":true,"resourceSubscriptions":["x:2"]}}`)
		w.b.listening(t, 1).acknowledge("")
		w.b.listening(t, 1).say(mcp.MethodResourceUpdated, `{"uri":"x:1"}`)
		w.client.want(t)
	})
}

// A sole upstream's acknowledgment is forwarded verbatim.
func TestSoleAcknowledges(t *testing.T) {
	inWorld(t, func(w *world) {
		want := filter(t, `{"toolsListChanged":true,"promptsListChanged":true,"vendor":[1.0],"taskIds":["a__t","u"]}`)
		w.client.follow(Split{Parts: map[Upstream]mcp.Filter{w.a: want}, Sole: true})
		w.run(string(want.As))
		a := w.a.listening(t, 1)
		a.acknowledge(`{"vendor":[1.0],"toolsListChanged":true,"taskIds":["t","u","v"]}`)
		w.client.want(t, acked+`{"vendor":[1.0],"toolsListChanged":true,"taskIds":["a__t","u"]}}`)
		a.say(mcp.MethodTask, `{"taskId":"t"}`)
		a.say(mcp.MethodTask, `{"taskId":"u"}`)
		a.say(mcp.MethodTask, `{"taskId":"v"}`)
		a.say("notifications/vendor", `{"x":1}`)
		w.client.want(t, mcp.MethodTask[len("notifications/"):]+` {"taskId":"a__t"}`, mcp.MethodTask[len("notifications/"):]+` {"taskId":"u"}`, `vendor {"x":1}`)
	})
}

// Messages that come while a slow client gets the earlier ones follow those.
func TestEarlyStayInOrder(t *testing.T) {
	inWorld(t, func(w *world) {
		w.client.room = make(chan struct{})
		w.begin(resources, w.a, w.b)
		a := w.a.listening(t, 1)
		a.acknowledge("")
		a.say(mcp.MethodResourceUpdated, `{"uri":"x:1"}`)
		a.say(mcp.MethodResourceUpdated, `{"uri":"x:2"}`)
		w.b.listening(t, 1).acknowledge("")
		w.client.room <- struct{}{} // the acknowledgment was read
		go a.say(mcp.MethodResourceUpdated, `{"uri":"x:1"}`)
		w.client.want(t, acked+resources+"}", updateOf1)
		close(w.client.room)
		w.client.want(t, updateOf2, updateOf1)
	})
}

// Messages before the acknowledgment are bounded in number and in bytes.
func TestEarlyIsBounded(t *testing.T) {
	update := jsonrpc.NewNotification(mcp.MethodResourceUpdated, json.RawMessage(`{"uri":"x:1"}`))
	size := (&Subscription{id: listenID}).own(update).Size()
	for name, test := range map[string]struct{ bytes, want int }{"messages": {1 << 30, MaxEarly}, "bytes": {4*size - 1, 3}} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.subs.EarlyBytes = test.bytes
				w.begin(resources, w.a, w.b)
				a := w.a.listening(t, 1)
				a.acknowledge("")
				for range MaxEarly + 10 {
					a.say(mcp.MethodResourceUpdated, `{"uri":"x:1"}`)
				}
				time.Sleep(AckWithin)
				w.client.want(t, append([]string{acked + resources + "}"}, slices.Repeat([]string{updateOf1}, test.want)...)...)
				if got := w.client.dropped; len(got) != MaxEarly+10-test.want || got[0] != "the subscription is not acknowledged" {
					t.Errorf("dropped %d: %q", len(got), got[0])
				}
			})
		})
	}
}

// A listen that ended is repeated with back-off. Then the client is notified once of each list and
// resource, however often it failed.
func TestMissed(t *testing.T) {
	inWorld(t, func(w *world) {
		w.begin(resources, w.a, w.b)
		w.a.listening(t, 1).acknowledge("")
		w.b.listening(t, 1).acknowledge("{}")
		w.client.want(t, acked+resources+"}")
		w.a.listening(t, 1).refuse(-32603)
		time.Sleep(repeatFirst / 2)
		w.a.listening(t, 1)
		time.Sleep(repeatFirst)
		w.a.listening(t, 2).refuse(-32603)
		time.Sleep(3 * repeatFirst)
		w.client.want(t)
		w.a.listening(t, 3).acknowledge("")
		w.b.listening(t, 1).say(mcp.MethodToolsChanged, `{}`)
		time.Sleep(debounce)
		w.client.want(t, changed, updateOf1, updateOf2)
		time.Sleep(time.Hour)
		w.client.want(t)
		w.a.listening(t, 3)
	})
}

// An upstream that refuses is asked again only when it has changed.
func TestRefused(t *testing.T) {
	for _, code := range []int{-32601, -32602, -32021, -32022} {
		inWorld(t, func(w *world) {
			w.begin(resources, w.a)
			a := w.a.listening(t, 1)
			w.subs.Resume(w.a) // its stream is open
			a.refuse(code)
			w.client.want(t, acked+lists+"}")
			time.Sleep(time.Hour)
			w.a.listening(t, 1)
			w.subs.Resume(w.b)
			w.subs.WakeDozing(w.a)
			w.a.listening(t, 1)
			w.subs.Resume(w.a)
			w.a.listening(t, 2).acknowledge("")
			time.Sleep(debounce)
			w.client.want(t, changed) // the resources were not acknowledged
		})
	}
}

// An upstream that comes back at the moment in which its refusal is handled is asked again.
func TestReturnedAsRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		w.begin(resources, w.a)
		a := w.a.listening(t, 1)
		w.subs.Resume(w.a) // its stream is open
		w.a.logged = func() {
			w.a.logged = nil
			w.subs.Returned(w.a, 0)
		}
		a.refuse(-32601)
		w.a.listening(t, 2).acknowledge("")
		time.Sleep(debounce)
		w.client.want(t, acked+lists+"}", changed)
	})
}

// When a link is back, the client is notified after all upstreams were asked to listen, even if they
// do not acknowledge.
func TestReturned(t *testing.T) {
	inWorld(t, func(w *world) {
		w.begin(resources, w.a, w.b)
		for _, s := range []*server{w.a, w.b} {
			s.listening(t, 1).acknowledge("")
			s.listening(t, 1).refuse(-32603)
		}
		w.client.want(t, acked+resources+"}")
		const after = 300 * time.Millisecond
		w.subs.Returned(w.a, after)
		w.subs.Returned(w.b, after)
		time.Sleep(after - 1)
		w.a.listening(t, 1)
		w.client.want(t)
		time.Sleep(time.Nanosecond)
		w.a.listening(t, 2)
		w.b.listening(t, 2)
		w.client.want(t)
		time.Sleep(2 * debounce)
		w.client.want(t, changed, updateOf1, updateOf2)
		w.a.listening(t, 2).acknowledge("")
		time.Sleep(time.Minute)
		w.client.want(t)
	})
}

// A listen for changes of lists starts no upstream. It is open while there is a server, and ends
// for its rest.
func TestDoze(t *testing.T) {
	inWorld(t, func(w *world) {
		w.a.idle.Store(true)
		w.begin(lists, w.a)
		w.a.listening(t, 0)
		w.client.want(t, acked+lists+"}")
		if w.subs.Doze(w.a) || w.subs.ListsOnly(w.a) != 0 {
			t.Error("it listens to an idle upstream")
		}
		w.subs.Resume(w.a) // it is idle still
		w.a.listening(t, 0)
		w.a.idle.Store(false)
		w.subs.Resume(w.a)
		w.a.listening(t, 1).acknowledge("")
		if want := []string{fmt.Sprint("a", filter(t, lists).Lists)}; !slices.Equal(w.client.verified, want) {
			t.Errorf("verified %q, want %q", w.client.verified, want)
		}
		if w.subs.ListsOnly(w.a) != 1 {
			t.Error("it does not listen")
		}
		w.subs.Resume(w.a) // its stream is open
		if !w.subs.Doze(w.a) || w.subs.Doze(w.a) {
			t.Error("it is to doze once")
		}
		if !w.a.listening(t, 1).ended.Load() || w.subs.ListsOnly(w.a) != 0 {
			t.Error("it keeps its upstream awake")
		}
		time.Sleep(time.Hour)
		w.a.listening(t, 1)
		w.subs.WakeDozing(w.a)
		w.a.listening(t, 2).acknowledge("")
		w.subs.WakeDozing(w.a)
		w.a.listening(t, 2)
		time.Sleep(time.Hour)
		w.client.want(t) // it has missed nothing, as Verify finds out
		w.a.listening(t, 2).refuse(-32603)
		time.Sleep(2 * repeatFirst)
		w.a.listening(t, 3).acknowledge("")
		time.Sleep(debounce)
		w.client.want(t, changed)
		if n := len(w.client.verified); n != 2 {
			t.Errorf("verified %d times, want 2", n)
		}
	})
}

// An upstream that ends a listen by itself while that is ended for its rest is listened to again as after the rest: it
// may be in use after all.
func TestEndedWhileItDozes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.a.slow = true
		w.begin(lists, w.a)
		a := w.a.listening(t, 1)
		a.acknowledge("")
		w.client.want(t, acked+lists+"}")
		if !w.subs.Doze(w.a) {
			t.Fatal("it does not listen")
		}
		a.refuse(-32603)
		time.Sleep(time.Second)
		synctest.Wait()
		w.subs.WakeDozing(w.a)
		w.a.listening(t, 2).acknowledge("")
		time.Sleep(time.Minute)
		w.client.want(t)
		if n := len(w.client.verified); n != 1 {
			t.Errorf("verified %d times, want 1", n)
		}
	})
}

// The acknowledgment waits no longer for an upstream whose listen has failed, or whose start for it.
func TestAcknowledgedAfterFailure(t *testing.T) {
	for _, starts := range []bool{false, true} {
		inWorld(t, func(w *world) {
			w.a.idle.Store(starts)
			w.begin(resources, w.a)
			a := w.a.listening(t, 1)
			time.Sleep(time.Second)
			w.client.want(t)
			a.refuse(-32603)
			w.client.want(t, acked+lists+"}")
		})
	}
}

// A listen for resources starts its upstream and keeps it awake.
func TestResourcesKeepAwake(t *testing.T) {
	inWorld(t, func(w *world) {
		w.a.idle.Store(true)
		w.begin(resources, w.a)
		w.a.listening(t, 1).acknowledge("")
		if w.subs.ListsOnly(w.a) != 0 || w.subs.Doze(w.a) {
			t.Error("it is not only for lists")
		}
		w.client.want(t, acked+resources+"}")
	})
}

// A subscription follows its upstreams. A part that stays the same is not affected.
func TestFollow(t *testing.T) {
	inWorld(t, func(w *world) {
		w.begin(resources, w.a)
		a := w.a.listening(t, 1)
		a.acknowledge("")
		w.client.want(t, acked+resources+"}")
		follow := func(want string, servers ...*server) {
			w.over(want, servers...)
			w.subs.Follow()
			synctest.Wait()
		}
		follow(resources, w.a, w.b)
		time.Sleep(debounce)
		w.client.want(t, changed)
		w.b.listening(t, 1).acknowledge("")
		time.Sleep(debounce)
		w.client.want(t, changed, updateOf1, updateOf2) // b may have changed them before it listened
		follow(lists, w.a)
		w.a.listening(t, 2).acknowledge("")
		if !a.ended.Load() || !w.b.listening(t, 1).ended.Load() {
			t.Error("a part that changed is still open")
		}
		time.Sleep(debounce)
		w.client.want(t, changed)
		w.client.follow(Split{Parts: w.client.split.Parts, Same: true})
		w.subs.Follow()
		time.Sleep(debounce)
		w.client.want(t)
		w.a.listening(t, 2)
		follow(lists)
		w.client.want(t, "end")
		<-w.ended
	})
}

// Changes of lists join, and the client gets those that it wants and sees.
func TestChanged(t *testing.T) {
	inWorld(t, func(w *world) {
		const want = `{"toolsListChanged":true,"resourcesListChanged":true}`
		w.begin(want, w.a)
		a := w.a.listening(t, 1)
		a.acknowledge("")
		w.client.want(t, acked+want+"}")
		w.subs.Changed(w.a, catalog.Templates)
		w.subs.Changed(w.a, catalog.Prompts)
		w.subs.Changed(w.b, catalog.Tools)
		time.Sleep(debounce)
		w.client.want(t, `resources/list_changed {}`)
		for k := range catalog.Kinds {
			w.subs.Changed(w.a, k)
			a.say(k.Changed(), `{}`)
		}
		time.Sleep(debounce)
		w.client.want(t, changed, `resources/list_changed {}`)
		w.client.blind = true
		w.subs.Changed(w.a, catalog.Tools)
		w.a.listening(t, 1).say(mcp.MethodToolsChanged, `{}`)
		time.Sleep(debounce)
		w.client.want(t)
		w.subs.Regrant(func(Client) (lists [catalog.Kinds]bool) {
			w.client.lock()
			defer w.client.mu.Unlock()
			lists[catalog.Tools], lists[catalog.Prompts], lists[catalog.Templates] = true, true, true
			return lists
		})
		time.Sleep(debounce)
		w.client.want(t, changed, `resources/list_changed {}`)
	})
}

// An upstream notifies only of what its part asks for.
func TestOfAnotherPart(t *testing.T) {
	inWorld(t, func(w *world) {
		w.client.follow(Split{Parts: map[Upstream]mcp.Filter{w.a: {URIs: []string{"x:1"}}, w.b: {Lists: filter(t, lists).Lists}}})
		w.run(`{"toolsListChanged":true,"resourceSubscriptions":["x:1"]}`)
		a, b := w.a.listening(t, 1), w.b.listening(t, 1)
		a.acknowledge("")
		b.acknowledge("")
		b.say(mcp.MethodResourceUpdated, `{"uri":"x:1"}`)
		a.say(mcp.MethodToolsChanged, `{}`)
		w.subs.Changed(w.a, catalog.Tools)
		time.Sleep(debounce)
		w.client.want(t, acked+`{"toolsListChanged":true,"resourceSubscriptions":["x:1"]}}`)
		a.say(mcp.MethodResourceUpdated, `{"uri":"x:1"}`)
		w.client.want(t, updateOf1)
	})
}

// A policy denies an update, and no other notification.
func TestDenied(t *testing.T) {
	inWorld(t, func(w *world) {
		w.client.denied = true
		w.begin(resources, w.a)
		w.a.listening(t, 1).acknowledge("")
		w.a.listening(t, 1).say(mcp.MethodResourceUpdated, `{"uri":"x:1"}`)
		w.client.want(t, acked+resources+"}")
		if !slices.Equal(w.client.dropped, []string{"not requested"}) {
			t.Errorf("dropped %q", w.client.dropped)
		}
	})
}

// A subscription ends with its result after its acknowledgment, even if it begins after the end.
func TestEnd(t *testing.T) {
	for _, late := range []bool{false, true} {
		inWorld(t, func(w *world) {
			if late {
				w.subs.End()
			}
			w.a.slow = true
			w.begin(lists, w.a)
			a := w.a.listening(t, 1)
			if !late {
				w.client.want(t)
				w.subs.End()
				w.subs.End()
			}
			w.client.want(t, acked+lists+"}", "end")
			if <-w.ended; !a.ended.Load() {
				t.Error("its part is still open")
			}
		})
	}
}

// There is no room for more than Most.
func TestMost(t *testing.T) {
	inWorld(t, func(w *world) {
		w.begin(lists, w.a)
		begin := func() *Subscription { return w.subs.Begin(jsonrpc.IntID(1), filter(t, lists), nil, w.client) }
		second := begin()
		if second == nil || begin() != nil {
			t.Error("there is room for two")
		}
		second.Forget()
		if third := begin(); third == nil {
			t.Error("its place was not given back")
		} else {
			third.Forget()
		}
	})
}

// A part ends with its upstream, in each of its states.
func TestUpstreamHungUp(t *testing.T) {
	for _, state := range []string{"resting", "paused"} {
		inWorld(t, func(w *world) {
			w.a.idle.Store(state == "resting")
			w.begin(lists, w.a)
			if state == "paused" {
				w.a.listening(t, 1).refuse(-32603)
			}
			synctest.Wait()
			w.a.hangUp()
			synctest.Wait()
			w.a.idle.Store(false)
			w.subs.Resume(w.a)
			time.Sleep(time.Hour)
			synctest.Wait()
			want := map[string]int{"resting": 0, "paused": 1}
			w.a.listening(t, want[state])
		})
	}
}
