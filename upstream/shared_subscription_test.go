//go:build unix

package upstream

import (
	"fmt"
	"strings"
	"testing"
)

func subscribeTo(id int, uri string) string {
	return fmt.Sprintf(`{"id":%d,"method":"resources/subscribe","params":{"uri":"%s"}}`, id, uri)
}

func unsubscribeFrom(id int, uri string) string {
	return fmt.Sprintf(`{"id":%d,"method":"resources/unsubscribe","params":{"uri":"%s"}}`, id, uri)
}

func updatedAt(uri string) string {
	return `{"method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`
}

const noErr = `"error":{"code":1,"message":"no"}`

func TestSharedSubscriptionIsCounted(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b, c := w.start("a"), w.start("b"), w.start("c")
		s := w.server()
		a.say(`{"id":1,"method":"resources/subscribe","params":{"vendor":1,"uri":"x:\u002f1","_meta":{"progressToken":5}}}`)
		s.hears(`{"id":2,"method":"resources/subscribe","params":{"vendor":1,"uri":"x:\u002f1","_meta":{"progressToken":2}}}`)
		b.say(subscribeTo(1, "x:/1"))
		s.hears()
		b.hears()
		s.say(updatedAt("x:/1"), `{"id":2,"result":{"_meta":{"k":1}}}`)
		a.hears(`{"id":1,"result":{"_meta":{"k":1}}}`)
		b.hears(`{"id":1,"result":{}}`)
		s.say(updatedAt("x:/1"), updatedAt("x:/2"), updatedAt("x:/1/part"), updatedAt("x:/1#part"), updatedAt("x:/12"), updatedAt("x:"))
		a.hears(updatedAt("x:/1"), updatedAt("x:/1")) // others may not learn which part
		b.hears(updatedAt("x:/1"), updatedAt("x:/1"))
		c.hears()

		c.say(unsubscribeFrom(1, "x:/1")) // it has none
		a.say(unsubscribeFrom(1, "x:/1"))
		s.hears()
		c.hears(`{"id":1,"result":{}}`)
		a.hears(`{"id":1,"result":{}}`)
		s.say(updatedAt("x:/1"))
		a.hears()
		b.hears(updatedAt("x:/1"))

		b.say(unsubscribeFrom(2, "x:/1"))
		s.hears(`{"id":3,"method":"resources/unsubscribe","params":{"uri":"x:/1"}}`)
		c.say(subscribeTo(2, "x:/1")) // behind it
		s.hears()
		s.say(`{"id":3,"result":{}}`)
		b.hears(`{"id":2,"result":{}}`)
		s.hears(`{"id":4,"method":"resources/subscribe","params":{"uri":"x:/1"}}`)
		s.say(`{"id":4,"result":{}}`)
		c.hears(`{"id":2,"result":{}}`)
		s.say(updatedAt("x:/1"))
		b.hears()
		c.hears(updatedAt("x:/1"))
	})
}

// A client that subscribed to a resource hears once of a change below it.
func TestSharedSubscriptionToWhole(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		for i, uri := range []string{"x:/1/", "x:/1/part", "x:"} {
			a.say(subscribeTo(i+1, uri))
			s.say(fmt.Sprintf(`{"id":%d,"result":{}}`, i+2))
			a.hears(fmt.Sprintf(`{"id":%d,"result":{}}`, i+1))
		}
		parts := []string{updatedAt("x:/1/part/a"), updatedAt("x:/1/b"), updatedAt("x:/2"), updatedAt("x:" + strings.Repeat("/", 50))}
		s.say(parts...)
		s.say(updatedAt("y:/1"), updatedAt("x:"+strings.Repeat("/", 1<<20)), updatedAt(""))
		a.hears(parts...)
	})
}

func TestSharedSubscriptionFailsForAllThatWait(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b, c := w.start("a"), w.start("b"), w.start("c")
		s := w.server()
		a.say(subscribeTo(1, "x:1"))
		b.say(subscribeTo(1, "x:1"))
		c.say(subscribeTo(1, "x:1"), `{"method":"notifications/cancelled","params":{"requestId":1}}`)
		b.say(unsubscribeFrom(2, "x:1"))
		s.hears(`{"id":2,"method":"resources/subscribe","params":{"uri":"x:1"}}`)
		s.say(`{"id":2,` + noErr + `}`)
		a.hears(`{"id":1,` + noErr + `}`)
		b.hears(`{"id":1,`+noErr+`}`, `{"id":2,"result":{}}`)
		c.hears()
		s.say(updatedAt("x:1"))
		a.hears()
		a.say(subscribeTo(1, "x:1"))
		s.hears(`{"id":3,"method":"resources/subscribe","params":{"uri":"x:1"}}`)
		a.say(`{"id":9,"method":"resources/subscribe","params":{}}`, `{"id":10,"method":"resources/unsubscribe","params":{"uri":"x","uri":"y"}}`)
		a.hears(`{"id":9,"error":{"code":-32602,"message":"Invalid params: \"uri\" is missing or not a string"}}`,
			`{"id":10,"error":{"code":-32602,"message":"Invalid params: duplicate key \"uri\""}}`)
	})
}

// Who leaves releases what it had; the last to leave a resource ends the server's
// subscription.
func TestD01_SharedSubscriberLeaves(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(subscribeTo(1, "x:1"), subscribeTo(2, "x:2"))
		s.say(`{"id":2,"result":{}}`, `{"id":3,"result":{}}`)
		b.say(subscribeTo(1, "x:2"))
		b.hears(`{"id":1,"result":{}}`)
		s.heard()
		a.leave()
		s.hears(`{"id":4,"method":"resources/unsubscribe","params":{"uri":"x:1"}}`)
		s.say(updatedAt("x:1"), updatedAt("x:2"), `{"id":4,`+noErr+`}`)
		b.hears(updatedAt("x:2"))

		// One that left while the server was asked, and one that waited for it.
		c, d := w.start("c"), w.start("d")
		c.say(subscribeTo(1, "x:3"))
		d.say(subscribeTo(1, "x:3"))
		s.heard()
		c.leave()
		s.hears()
		s.say(`{"id":5,"result":{}}`)
		d.hears(`{"id":1,"result":{}}`)
		e := w.start("e")
		e.say(subscribeTo(1, "x:4"))
		s.heard()
		e.leave()
		s.hears()
		s.say(`{"id":6,"result":{}}`)
		s.hears(`{"id":7,"method":"resources/unsubscribe","params":{"uri":"x:4"}}`)
		d.say(subscribeTo(2, "x:4")) // behind it
		s.hears()
		s.say(`{"id":7,"result":{}}`)
		s.hears(`{"id":8,"method":"resources/subscribe","params":{"uri":"x:4"}}`)
	})
}

// What was cancelled before its turn is not done.
func TestSharedSubscriptionCancelledBeforeItsTurn(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(subscribeTo(1, "x:1"))
		s.say(`{"id":2,"result":{}}`)
		a.say(unsubscribeFrom(2, "x:1"))
		b.say(subscribeTo(1, "x:1"), `{"method":"notifications/cancelled","params":{"requestId":1}}`)
		s.heard()
		s.say(`{"id":3,"result":{}}`)
		s.hears()
		b.hears()
	})
}

func TestSharedTooManySubscriptions(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		for i := range maxMemberSubs + 1 {
			a.say(subscribeTo(i, fmt.Sprint("x:", i)))
			s.say(fmt.Sprintf(`{"id":%d,"result":{}}`, i+2))
		}
		got := a.heard()
		if len(got) != maxMemberSubs+1 || got[maxMemberSubs] != fmt.Sprintf(`{"id":%d,"error":{"code":-32603,"message":"Too many requests in flight",`+
			`"data":{"reason":"overloaded","upstream":"u","phase":"not_sent","retryable":true}}}`, maxMemberSubs) {
			t.Errorf("%d answers, the last %s", len(got), got[len(got)-1])
		}
	})
}

// What a client cancels while it waits here still counts: a server that does not
// answer lets no client pile up more.
func TestSharedCancelledSubscriptionsAreBounded(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		wait := func(id int) {
			method, params := "resources/subscribe", fmt.Sprintf(`{"uri":"x:/%d"}`, id)
			switch id % 3 {
			case 0:
				method, params = "logging/setLevel", `{"level":"debug"}`
			case 1:
				params = `{"uri":"x:/same"}`
			}
			a.say(fmt.Sprintf(`{"id":%d,"method":"%s","params":%s}`, id, method, params),
				fmt.Sprintf(`{"method":"notifications/cancelled","params":{"requestId":%d}}`, id))
		}
		for id := range maxMemberCalls {
			wait(id)
		}
		a.hears()
		asked := s.heard()
		if most := maxMemberCalls/3 + 10; len(asked) > most {
			t.Errorf("the server was asked %d times, want at most %d", len(asked), most)
		}
		wait(maxMemberCalls)
		if got := a.heard(); len(got) != 1 || !strings.Contains(got[0], "overloaded") {
			t.Errorf("got %q", got)
		}
		for id := range len(asked) {
			s.say(fmt.Sprintf(`{"id":%d,"result":{}}`, id+2))
		}
		for n := len(asked); len(s.heard()) > 0; n++ { // what clients want no more is given back
			for range 2000 {
				n++
				s.say(fmt.Sprintf(`{"id":%d,"result":{}}`, n))
			}
		}
		a.hears()
		a.say(subscribeTo(9999, "x:/last"))
		a.heard()
		if n := len(s.heard()); n != 1 {
			t.Errorf("the server was asked %d times, want once", n)
		}
	})
}
