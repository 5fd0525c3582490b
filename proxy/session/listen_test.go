package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/listen"
)

// testdata/modern_listen* has the normal cases.

// inModernWorld is inWorld for a client of the modern era.
func inModernWorld(t *testing.T, p *Router, names []string, test func(w *world)) {
	inWorldOf(t, mcp.Modern, p, names, test)
}

const listenTools = `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["test://a/a"]}}}`

// frame returns a message of a listen as the client gets it.
func frame(method, members string) string {
	return `{"jsonrpc":"2.0","method":"` + method + `","params":{` + members + `"_meta":{"` + mcp.KeySubscription + `":"l"}}}`
}

var (
	ackedAll       = frame("notifications/subscriptions/acknowledged", `"notifications":{"toolsListChanged":true,"resourceSubscriptions":["test://a/a"]},`)
	toolsOfListen  = frame("notifications/tools/list_changed", "")
	updateOfListen = frame("notifications/resources/updated", `"uri":"test://a/a",`)
	endOfOnly      = `{"jsonrpc":"2.0","id":"l","result":{"resultType":"complete","_meta":{"` + mcp.KeySubscription + `":"l"}}}`
	endOfListen    = `{"jsonrpc":"2.0","id":"l","result":{"resultType":"complete","_meta":{"` + mcp.KeySubscription + `":"l","` + mcp.KeyServerInfo + `":{"name":"mcp-proxy","version":"dev"}}}}`
)

// listens opens a subscription that all upstreams acknowledge.
func (w *world) listens() {
	w.t.Helper()
	w.client.say(listenTools)
	w.client.want(ackedAll)
}

// wantSoon checks the messages to the client within a minute.
func (w *world) wantSoon(want ...string) {
	w.t.Helper()
	time.Sleep(time.Minute)
	w.client.want(want...)
}

func (w *world) reach(upstream string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dial[upstream] = err
}

func TestD41_UpstreamDiesWhileClientListens(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a", "b", "c"}, func(w *world) {
		w.listens()
		b := w.upstream("b")
		b.take()
		w.die("a", "signal: killed", true)
		w.client.want() // the subscription stays
		w.wantSoon(toolsOfListen, updateOfListen)
		if got := w.upstream("a").take(); len(got) != 1 || !strings.Contains(got[0], "subscriptions/listen") {
			t.Errorf("upstream got %q", got)
		}
		b.want() // has noticed nothing
		w.wantSoon()
	})
}

// An upstream that ends a subscription, in whatever way, is listened to again.
func TestD41_UpstreamEndsListen(t *testing.T) {
	for _, end := range []string{
		`{"jsonrpc":"2.0","id":%d,"result":{"resultType":"complete"}}`,
		`{"jsonrpc":"2.0","id":%d,"error":{"code":-32603,"message":"busy"}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`,
	} {
		inModernWorld(t, &Router{}, []string{"a"}, func(w *world) {
			w.listens()
			a := w.upstream("a")
			a.take()
			a.say(fmt.Sprintf(end, 1))
			w.client.want()
			w.wantSoon(toolsOfListen, updateOfListen)
			if got := a.take(); len(got) != 1 || !strings.Contains(got[0], `"id":2,"method":"subscriptions/listen"`) {
				t.Errorf("upstream got %q", got)
			}
		})
	}
}

// A server that crashes on listens is not started over and over.
func TestD41_CrashLoop(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, _ *jsonrpc.Message) {
			p.conn.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(1), Delivered: true})
		}}
		w.client.say(listenTools)
		time.Sleep(10 * time.Minute)
		w.client.want(frame("notifications/subscriptions/acknowledged", `"notifications":{"toolsListChanged":true},`))
		if n := len(w.conns["a"+modernStream]); n < 10 || n > 40 {
			t.Error("starts:", n)
		}
	})
}

// An upstream that does not know listens is not asked again, until it is another process.
func TestListenRefused(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		refuse := func(p *party, m *jsonrpc.Message) {
			if m.Method == "subscriptions/listen" {
				p.conn.Send(jsonrpc.NewError(m.ID, jsonrpc.MethodNotFound(m.Method)))
				return
			}
			echo("a")(p, m)
		}
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": refuse}
		w.upstream("a").handle(refuse)
		w.client.say(listenTools) // a has tools, which may come and go
		w.client.want(frame("notifications/subscriptions/acknowledged", `"notifications":{"toolsListChanged":true},`))
		w.wantSoon()
		a := w.upstream("a")
		if got := a.take(); !strings.Contains(got[len(got)-1], "subscriptions/listen") || strings.Count(fmt.Sprint(got), "subscriptions/listen") != 1 {
			t.Errorf("upstream got %q", got)
		}
		w.die("a", "exit status 1", true)
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__echo"}}`)
		w.wantSoon(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"by":"a","args":{}}}}`, toolsOfListen)
	})
}

func TestD13_LinkLostWhileClientListens(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	inModernWorld(t, &Router{}, names, func(w *world) {
		w.listens()
		for _, n := range names {
			w.reach(n, &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost})
		}
		w.cut()
		w.wantSoon()
		for _, n := range names {
			w.reach(n, nil)
		}
		w.proxy.Returned(names...)
		time.Sleep(time.Second)
		w.client.want(toolsOfListen, updateOfListen)
		w.wantSoon()
	})
}

// Slow upstreams do not cause two notifications.
func TestD13_LinkReturnsToSlowUpstreams(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	inModernWorld(t, &Router{}, names, func(w *world) {
		w.listens()
		w.hands = map[string]func(*party, *jsonrpc.Message){}
		for i, n := range names {
			w.reach(n, &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost})
			w.hands[n] = func(p *party, m *jsonrpc.Message) {
				if m.Method == "subscriptions/listen" {
					time.Sleep(time.Duration(i) * time.Second / 2)
				}
				echo(n)(p, m)
			}
		}
		w.cut()
		w.wantSoon()
		for _, n := range names {
			w.reach(n, nil)
		}
		w.proxy.Returned(names...)
		var told []string
		for len(told) == 0 {
			time.Sleep(debounce / 2)
			told = w.client.take()
		}
		if !slices.Equal(told, []string{toolsOfListen, updateOfListen}) {
			t.Errorf("told %q", told)
		}
		for _, n := range names { // what the client asks for now comes behind that
			if got := w.upstream(n).take(); len(got) != 1 || !strings.Contains(got[0], "subscriptions/listen") {
				t.Errorf("%s got %q", n, got)
			}
		}
		time.Sleep(5 * time.Second)
		w.client.want()
	})
}

func TestD42_Drain(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.listens()
		w.client.say(strings.Replace(listenTools, `"l"`, `"other"`, 1))
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"other"}}`)
		w.list()
		got := w.calls("a", "a__echo", 1, 1)
		w.client.take()
		shut := make(chan struct{})
		go func() { w.proxy.Shutdown(w.t.Context()); close(shut) }()
		w.client.want(endOfListen)
		w.client.say(listenTools)
		w.client.want(w.closing(`"l"`, "not_sent"))
		echo("a")(w.upstream("a"), decode(t, got[0]))
		<-shut
		<-w.ended
		if got := w.client.take(); len(got) != 1 || !strings.Contains(got[0], `"id":1`) {
			t.Errorf("got %q", got)
		}
	})
}

func TestD42_HalfClose(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.client.say(listenTools)
		w.client.conn.CloseWrite() // before it is acknowledged, maybe
		if got := w.client.take(); len(got) != 2 || got[1] != endOfListen {
			t.Errorf("got %q", got)
		}
		if err := <-w.ended; !errors.Is(err, errDrained) {
			t.Error("ended with", err)
		}
	})
}

func TestD42_ForcedEnd(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.listens()
		w.cancel()
		<-w.ended
		w.client.want(endOfOnly)
		if !w.upstream("a").gone() {
			t.Error("stream is still open")
		}
	})
}

func TestD42_UpstreamsGone(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.listens()
		w.proxy.Update([]Upstream{{Name: "b"}}, farAway)
		time.Sleep(debounce)
		w.client.want(toolsOfListen, updateOfListen) // b honours what nobody has
		w.proxy.Update(nil, farAway)
		time.Sleep(debounce)
		w.client.want(toolsOfListen) // there may be others
		w.proxy.Update(nil, nil)
		w.client.want(endOfListen)
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"l"}}`)
		w.client.want()
	})
}

func TestRemovedUpstreamModern(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.list()
		w.calls("a", "a__echo", 1, 2)
		w.proxy.Update([]Upstream{{Name: "b"}}, nil)
		got := w.client.take()
		slices.Sort(got)
		if want := []string{cc(1, -32603, "a", "upstream changed", "in_flight"), cc(2, -32603, "a", "upstream changed", "in_flight")}; !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		time.Sleep(lastWords)
		if !w.upstream("a").gone() {
			t.Error("stream is still open")
		}
		w.wantSoon() // nobody listens
	})
}

func TestUpdateWhileClientListens(t *testing.T) {
	inModernWorld(t, &Router{Naming: catalog.PrefixAlways}, []string{"b"}, func(w *world) {
		w.listens()
		b := w.upstream("b")
		b.take()
		w.proxy.Update([]Upstream{{Name: "b"}, {Name: "a"}}, nil)
		time.Sleep(debounce)
		w.client.want(toolsOfListen, updateOfListen)
		if got := w.upstream("a").take(); !strings.Contains(strings.Join(got, "\n"), `"resourceSubscriptions":["test://a/a"]`) {
			t.Errorf("upstream got %q", got)
		}
		got := b.take() // the resource is not its own any more
		if n := len(got); n < 2 || !strings.HasSuffix(got[n-1], `"notifications":{"toolsListChanged":true}}}`) && !strings.HasSuffix(got[n-2], `"notifications":{"toolsListChanged":true}}}`) {
			t.Errorf("upstream got %q", got)
		}
		w.wantSoon()
	})
}

func TestListensAreBounded(t *testing.T) {
	inModernWorld(t, &Router{Limits: Limits{InFlight: 8}}, []string{"a"}, func(w *world) {
		for i := range 3 {
			w.client.say(strings.Replace(listenTools, `"l"`, fmt.Sprint(i), 1))
		}
		got := w.client.take()
		if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"error":%s}`, jsonrpc.Overloaded("").Raw()); len(got) != 3 || !slices.Contains(got, want) {
			t.Errorf("got %q", got)
		}
		uris, _ := json.Marshal(make([]string, mcp.MaxWatched+1))
		w.client.say(`{"jsonrpc":"2.0","id":9,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":` + string(uris) + `}}}`)
		if got := w.client.take(); len(got) != 1 || !strings.Contains(got[0], "-32602") {
			t.Errorf("got %q", got)
		}
	})
}

// A subscription that comes as the drain begins delays it no more than others.
func TestD42_RaceListenAndDrain(t *testing.T) {
	for range 200 {
		inModernWorld(t, &Router{}, []string{"a"}, func(w *world) {
			w.initialize()
			m := decode(t, listenTools)
			m.Params = mcp.SetMeta(m.Params, claim...)
			go w.client.conn.Send(m)
			go w.proxy.Shutdown(w.t.Context())
			<-w.ended
			got := w.client.take()
			if n := len(got); n > 0 && got[n-1] != endOfOnly && got[n-1] != w.closing(`"l"`, "in_flight") {
				t.Errorf("got %q", got)
			}
		})
	}
}

// A subscription ends in exactly one way, whatever happens at once.
func TestD42_RaceCancelAndDrain(t *testing.T) {
	for range 200 {
		inModernWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
			w.listens()
			b := w.upstream("b")
			go w.client.conn.Send(decode(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"l"}}`))
			go w.proxy.Shutdown(w.t.Context())
			go b.conn.Close()
			synctest.Wait()
			if got := w.client.take(); len(got) > 1 || len(got) == 1 && got[0] != endOfListen {
				t.Errorf("got %q", got)
			}
			<-w.ended
		})
	}
}

// listening returns the id of the subscription that a party got last.
func (p *party) listening() (id jsonrpc.ID) {
	for _, text := range p.take() {
		if m := decode(p.t, text); m.Method == mcp.MethodListen {
			id = m.ID
		}
	}
	return id
}

// Messages before the acknowledgment are kept, within bounds.
func TestEarlyIsBounded(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		w.upstream("b").mute() // so that the acknowledgment waits
		w.client.say(listenTools)
		time.Sleep(ownersWithin)
		a := w.upstream("a")
		id := a.listening()
		for range listen.MaxEarly + 10 {
			a.tell(id, "notifications/resources/updated", `"uri":"test://a/a"`)
		}
		w.client.want()
		time.Sleep(listen.AckWithin)
		if got := w.client.take(); len(got) != 1+listen.MaxEarly || !strings.Contains(got[0], "acknowledged") {
			t.Error("messages:", len(got))
		}
	})
}

// A subscription that is cancelled as it begins keeps no place.
func TestListenCancelledAtOnce(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.listens()
		s := w.proxy.running()[0]
		pr := s.client.Request(decode(t, listenTools).ID)
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"l"}}`)
		w.client.take()
		if n := s.subscriptions.Len(); n != 0 {
			t.Fatalf("%d subscriptions after the cancellation", n)
		}
		of := pr.Value.(*request)
		r := &request{Request: pr, era: mcp.Modern, upstreams: of.upstreams, caps: of.caps}
		r.msg = jsonrpc.NewRequest(pr.ID, pr.Method, mcp.SetMeta(decode(t, listenTools).Params, claim...))
		r.notes = mcp.Read(r.msg)
		if err := s.listen(r); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n, kept := s.subscriptions.Len(), s.kept.Load(); n != 0 || kept != 0 {
			t.Errorf("%d subscriptions have places, and %d bytes are kept", n, kept)
		}
	})
}

// A client need not wait for the answer to its subscribe before it unsubscribes.
func TestPipelinedUnsubscribe(t *testing.T) {
	inWorld(t, &Router{Upstreams: []Upstream{{Name: "a"}, {Name: "b"}}}, nil, func(w *world) {
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"resources/list"}`)
		w.client.take()
		w.upstream("a").mute()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://a/a"}}`)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"resources/unsubscribe","params":{"uri":"test://a/a"}}`)
		synctest.Wait()
		a := w.upstream("a")
		for _, text := range a.take() {
			m := decode(t, text)
			if m.IsRequest() {
				a.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
			}
		}
		w.client.take()
		a.conn.Close() // crash
		synctest.Wait()
		w.client.say(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"a__echo"}}`)
		w.client.take()
		got := strings.Join(w.upstream("a").take(), "\n")
		if strings.Contains(got, "resources/subscribe") {
			t.Error("replayed although unsubscribed:\n", got)
		}
	})
}

// A client that only waits for updates need not send a request, so that a server that has crashed starts again.
func TestCrashUnderSubscription(t *testing.T) {
	inWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"test://a/a"}}`)
		w.client.take()
		for n := 2; n < 4; n++ {
			w.upstream("a").conn.Close()
			time.Sleep(reopenWithin)
			if got := strings.Join(w.upstream("a").take(), ""); w.streams("a") != n || !strings.Contains(got, "resources/subscribe") {
				t.Errorf("%d streams, want %d with the subscription; the server got %s", w.streams("a"), n, got)
			}
		}
		w.mu.Lock()
		w.dial["a"] = &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
		w.mu.Unlock()
		w.upstream("a").conn.Close()
		time.Sleep(time.Hour) // it cannot start, and the next request tries again
		if w.streams("a") != 3 {
			t.Errorf("%d streams", w.streams("a"))
		}
	})
}
