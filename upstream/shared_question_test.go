//go:build unix

package upstream

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A question goes to the one client with a call in flight, or to the owner of the
// call that it says it belongs to; else to nobody.
func TestSharedQuestionHasOneOwner(t *testing.T) {
	inSharedWorld(t, Upstream{Relates: true}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		s.say(`{"id":1,"method":"sampling/createMessage","params":{}}`)
		s.hears(`{"id":1,` + cannot + `}`)

		a.say(`{"id":"old","method":"x"}`, `{"id":"new","method":"x"}`)
		s.heard()
		s.say(`{"id":1,"method":"sampling/createMessage","params":{"a":1e2}}`)
		a.hears(`@"new" {"id":1,"method":"sampling/createMessage","params":{"a":1e2}}`)
		a.say(`{"id":1,"result":{"text":"\ud800"}}`)
		s.hears(`{"id":1,"result":{"text":"\ud800"}}`)

		b.say(`{"id":"b","method":"x"}`)
		s.heard()
		s.say(`{"id":1,"method":"elicitation/create","params":{}}`, `@2 {"id":2,"method":"elicitation/create","params":{}}`,
			`@4 {"id":3,"method":"roots/list"}`, `@9 {"id":4,"method":"roots/list"}`, `@1 {"id":5,"method":"roots/list"}`)
		s.hears(`{"id":1,`+cannot+`}`, `{"id":4,`+cannot+`}`, `{"id":5,`+cannot+`}`)
		a.hears(`@"old" {"id":2,"method":"elicitation/create","params":{}}`)
		b.hears(`@"b" {"id":1,"method":"roots/list"}`)
		b.say(`{"id":1,"error":{"code":1,"message":"no"}}`)
		s.hears(`{"id":3,"error":{"code":1,"message":"no"}}`)
	})
}

// A call of the proxy itself, which lists for the catalog, delays a question of the only client's call: if the
// server answers that call first, it has not asked because of it.
func TestSharedQuestionWhileTheProxyLists(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, own := w.start("1.a"), w.start("2.")
		s := w.server()
		both := func() {
			t.Helper()
			a.say(`{"id":"a","method":"x"}`)
			own.say(`{"id":"list","method":"tools/list"}`)
			s.heard()
			s.say(`{"id":7,"method":"elicitation/create","params":{}}`)
			s.hears()
		}
		both()
		own.say(`{"id":"later","method":"prompts/list"}`) // did not cause what came before it
		s.hears(`{"id":4,"method":"prompts/list"}`)
		s.say(`{"id":3,"result":{}}`)
		own.hears(`{"id":"list","result":{}}`)
		a.hears(`@"a" {"id":1,"method":"elicitation/create","params":{}}`)
		a.say(`{"id":1,"result":{}}`)
		s.hears(`{"id":7,"result":{}}`)
		s.say(`{"id":4,"result":{}}`, `{"id":2,"result":{}}`)
		a.hears(`{"id":"a","result":{}}`)
		own.hears(`{"id":"later","result":{}}`)

		both() // and the list waits for the answer
		time.Sleep(2 * time.Second)
		s.hears(`{"id":7,` + cannot + `}`)
		s.say(`{"id":6,"result":{}}`, `{"id":5,"result":{}}`)
		a.hears(`{"id":"a","result":{}}`)
		own.hears(`{"id":"list","result":{}}`)

		both() // and the call is over before the list
		s.say(`{"id":7,"result":{}}`, `{"id":8,"result":{}}`)
		s.hears(`{"id":7,` + cannot + `}`)
		a.hears(`{"id":"a","result":{}}`)

		both() // and the server takes the question back
		s.say(`{"method":"notifications/cancelled","params":{"requestId":7}}`, `{"id":10,"result":{}}`, `{"id":9,"result":{}}`)
		a.hears(`{"id":"a","result":{}}`)
		s.hears()

		both() // and the client leaves: the error is the one stimulus of its call
		a.leave()
		s.hears(`{"id":7,` + cannot + `}`)
		s.say(`{"id":11,"error":{"code":1,"message":"not without it"}}`, `{"id":12,"result":{}}`)
		s.hears()
		a = w.start("1.a")
		a.say(`{"id":"a","method":"x"}`)

		b := w.start("3.b") // has a call, too
		b.say(`{"id":"b","method":"x"}`)
		own.say(`{"id":"last","method":"tools/list"}`)
		s.heard()
		s.say(`{"id":7,"method":"elicitation/create","params":{}}`)
		s.hears(`{"id":7,` + cannot + `}`)
	})
}

// Large questions that wait for a list of the proxy fill no memory: beyond some megabytes they are refused.
func TestSharedLargeQuestionsWhileTheProxyLists(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, own := w.start("1.a"), w.start("2.")
		s := w.server()
		a.say(`{"id":"a","method":"x"}`)
		own.say(`{"id":"list","method":"tools/list"}`)
		s.heard()
		large := `"` + strings.Repeat("x", 3<<20) + `"`
		for i := range 3 {
			s.say(fmt.Sprintf(`{"id":%d,"method":"elicitation/create","params":{"message":%s}}`, i, large))
		}
		s.hears(`{"id":1,`+cannot+`}`, `{"id":2,`+cannot+`}`)
		s.say(`{"id":3,"result":{}}`)
		if got := a.heard(); len(got) != 1 {
			t.Errorf("the client was asked %d times", len(got))
		}
		time.Sleep(2 * time.Second)
		s.hears()
	})
}

// A call of the proxy that it has cancelled may have caused what the server asked before: that is nobody's.
func TestSharedQuestionOfACancelledList(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, own := w.start("1.a"), w.start("2.")
		s := w.server()
		a.say(`{"id":"a","method":"x"}`)
		own.say(`{"id":"t","method":"tools/list"}`, `{"id":"p","method":"prompts/list"}`)
		s.heard()
		s.say(`{"id":7,"method":"elicitation/create","params":{}}`)
		own.say(`{"method":"notifications/cancelled","params":{"requestId":"t"}}`)
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":3}}`)
		s.say(`{"id":4,"result":{}}`)
		own.hears(`{"id":"p","result":{}}`)
		a.hears()
		time.Sleep(2 * time.Second)
		s.hears(`{"id":7,` + cannot + `}`)
		a.hears()
	})
}

// The call of a client that has just left may have asked what the server had on
// its way: that is nobody else's to answer.
func TestSharedQuestionOfACallThatIsOver(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		told := new(toldBridge)
		w.host.Bridge = told
		a, b, c := w.start("a.one"), w.start("b.one"), w.start("c")
		s := w.server()
		asked := 0
		ask := func(want bool) {
			t.Helper()
			s.heard()
			s.say(`{"id":1,"method":"elicitation/create","params":{}}`)
			if want {
				s.hears()
				asked++
				b.conn.Send(parse(t, fmt.Sprintf(`{"id":%d,"result":{}}`, asked)))
			} else {
				s.hears(`{"id":1,` + cannot + `}`)
			}
		}
		b.say(`{"id":1,"method":"x"}`)
		a.say(`{"id":1,"method":"x"}`)
		a.leave()
		ask(false)
		if synctest.Wait(); told.unattributed.Load() != 1 {
			t.Error("the bridge, which may keep a call of somebody who never comes back, does not hear of that")
		}
		time.Sleep(lingering)
		ask(true)
		b.hears(`@1 {"id":1,"method":"elicitation/create","params":{}}`)
		c.say(`{"id":1,"method":"x"}`)
		c.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`)
		ask(false)
		c.leave()
		ask(false)
		time.Sleep(lingering)
		ask(false) // of another principal: the server may be at it for longer
		time.Sleep(fadeFor)
		ask(true)
		b.hears(`@1 {"id":2,"method":"elicitation/create","params":{}}`)
	})
}

// A call whose question was refused, because it could be another's, is not cancelled besides when
// its client leaves just then. One that did not ask is, a little later.
func TestSharedRefusedQuestionIsTheOneStimulus(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"tools/call"}`)
		b.say(`{"id":1,"method":"tools/call"}`)
		s.heard()
		s.say(`{"id":1,"method":"elicitation/create","params":{}}`)
		s.hears(`{"id":1,` + cannot + `}`)
		a.leave()
		time.Sleep(10*time.Second - time.Millisecond)
		s.hears()
		time.Sleep(time.Millisecond)
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,"reason":"client disconnected"}}`)
		b.say(`{"id":2,"method":"tools/call"}`)
		s.heard()
		b.leave()
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":3,"reason":"client disconnected"}}`,
			`{"method":"notifications/cancelled","params":{"requestId":4,"reason":"client disconnected"}}`)

		c, d := w.start("c"), w.start("d")
		c.say(`{"id":1,"method":"tools/call"}`)
		d.say(`{"id":1,"method":"tools/call"}`)
		s.heard()
		s.say(`{"id":1,"method":"elicitation/create","params":{}}`)
		s.hears(`{"id":1,` + cannot + `}`)
		c.say(`{"method":"notifications/cancelled","params":{"requestId":1,"reason":"client disconnected"}}`) // as its session does
		c.leave()
		s.say(`{"id":5,"error":{"code":1,"message":"not without it"}}`)
		s.hears()
		d.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`) // the client's own is not held back
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":6}}`)
	})
}

// A client with a task may be the one that is meant, too.
func TestSharedQuestionWhileATaskRuns(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		createTask(a, s, 2, "t")
		s.say(`{"id":1,"method":"elicitation/create"}`)
		b.say(`{"id":1,"method":"x"}`)
		s.say(`{"id":2,"method":"elicitation/create"}`, `{"method":"notifications/tasks/status","params":{"taskId":"t","status":"cancelled"}}`,
			`{"id":3,"method":"elicitation/create"}`)
		s.hears(`{"id":1,`+cannot+`}`, `{"id":3,"method":"x"}`, `{"id":2,`+cannot+`}`)
		b.hears(`@1 {"id":1,"method":"elicitation/create"}`)
	})
}

// A call that was cancelled, and is kept only for the task that it may create,
// speaks to nobody.
func TestSharedCancelledCreatorIsSilent(t *testing.T) {
	inSharedWorld(t, Upstream{Relates: true}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"x","params":{"task":{},"_meta":{"progressToken":1}}}`)
		a.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`)
		s.heard()
		s.say(`@2 {"method":"vendor/x"}`, `@2 {"id":1,"method":"roots/list"}`,
			`{"method":"notifications/progress","params":{"progressToken":2,"progress":1}}`)
		a.hears()
		s.hears(`{"id":1,` + cannot + `}`)
	})
}

func TestSharedRootsOutsideOfACall(t *testing.T) {
	inSharedWorld(t, Upstream{Roots: []string{"file:///a", "file:///b\""}}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		s.say(`{"id":1,"method":"roots/list"}`)
		s.hears(`{"id":1,"result":{"roots":[{"uri":"file:///a"},{"uri":"file:///b\""}]}}`)
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":1,"method":"roots/list"}`)
		a.hears(`@1 {"id":1,"method":"roots/list"}`)
		a.say(`{"id":1,"result":{"roots":[]}}`)
		b.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":1,"method":"roots/list"}`)
		s.hears(`{"id":1,` + cannot + `}`)
	})
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		w.start("a")
		w.server().say(`{"id":1,"method":"roots/list"}`)
		w.server().hears(`{"id":1,` + cannot + `}`)
	})
	inSharedWorld(t, Upstream{Roots: []string{}}, func(w *sharedWorld) {
		w.start("a")
		w.server().say(`{"id":1,"method":"roots/list"}`)
		w.server().hears(`{"id":1,"result":{"roots":[]}}`)
	})
}

// What a client did not declare it is not asked.
func TestSharedQuestionNeedsTheCapability(t *testing.T) {
	const none, some, urls = `{}`, `{"sampling":{},"elicitation":{}}`, `{"elicitation":{"url":{}}}`
	const noMode = `"error":{"code":-32602,"message":"Invalid params: the client does not take this mode"}`
	notFound := func(method string) string {
		return `"error":{"code":-32601,"message":"Method not found: ` + method + `"}`
	}
	tests := []struct{ can, question, want string }{
		{none, `"method":"roots/list"`, notFound("roots/list")},
		{none, `"method":"sampling/createMessage"`, notFound("sampling/createMessage")},
		{none, `"method":"elicitation/create"`, notFound("elicitation/create")},
		{none, `"method":"tasks/get","params":{"taskId":"t"}`, notFound("tasks/get")},
		{none, `"method":"vendor/ask"`, ""},
		{some, `"method":"sampling/createMessage"`, ""},
		{some, `"method":"sampling/createMessage","params":{"tools":[]}`, `"error":{"code":-32602,"message":"Invalid params: the client does not take tools"}`},
		{some, `"method":"elicitation/create","params":{"mode":"form"}`, ""},
		{some, `"method":"elicitation/create","params":{"mode":"url"}`, noMode},
		{some, `"method":"elicitation/create"`, ""},
		{urls, `"method":"elicitation/create","params":{"mode":"form"}`, noMode},
		{urls, `"method":"elicitation/create","params":{"message":"m","requestedSchema":{}}`, noMode},
		{urls, `"method":"elicitation/create"`, noMode},
		{urls, `"method":"elicitation/create","params":{"mode":"url","mode":"form"}`, noMode},
		{urls, `"method":"elicitation/create","params":{"mode":"url"}`, ""},
		{some, `"method":"roots/list"`, notFound("roots/list")},
		{all, `"method":"roots/list"`, ""},
		{all, `"method":"sampling/createMessage","params":{"tools":[],"toolChoice":{}}`, ""},
		{all, `"method":"elicitation/create","params":{"mode":"url","elicitationId":"e"}`, ""},
		{all, `"method":"vendor/ask","params":{"_meta":{"progressToken":1,"progressToken":1}}`,
			`"error":{"code":-32602,"message":"Invalid params: duplicate key \"progressToken\""}`},
	}
	for _, tt := range tests {
		inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
			a := w.startWith("a", tt.can)
			s := w.server()
			a.say(`{"id":1,"method":"x"}`)
			s.heard()
			s.say(`{"id":7,` + tt.question + `}`)
			if tt.want == "" {
				a.hears(`@1 {"id":1,` + tt.question + `}`)
				s.hears()
			} else {
				s.hears(`{"id":7,` + tt.want + `}`)
				a.hears()
			}
		})
	}
}

func TestSharedQuestionProgressAndWithdrawal(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":"q","method":"sampling/createMessage","params":{"_meta":{"progressToken":"theirs"}}}`)
		a.hears(`@1 {"id":1,"method":"sampling/createMessage","params":{"_meta":{"progressToken":1}}}`)
		const progress = `{"method":"notifications/progress","params":{"progressToken":1,"progress":1}}`
		a.say(progress)
		b.say(progress, `{"id":1,"result":{"from":"b"}}`, `{"id":"q","result":{"from":"b"}}`)
		s.hears(`{"method":"notifications/progress","params":{"progressToken":"theirs","progress":1}}`)
		s.say(`{"id":"q","method":"sampling/createMessage"}`) // the id is taken
		s.say(`{"method":"notifications/cancelled","params":{"requestId":"r"}}`, `{"method":"notifications/cancelled","params":{"reason":"x","requestId":"q"}}`)
		a.hears(`@1 {"method":"notifications/cancelled","params":{"reason":"x","requestId":1}}`)
		b.hears()
		a.say(progress, `{"id":1,"result":{}}`)
		s.hears()
	})
}

func TestSharedTooManyQuestions(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		for i := range maxAsked + 1 {
			s.sayText(fmt.Sprintf(`{"id":%d,"method":"roots/list"}`, i))
		}
		if n := len(a.heard()); n != maxAsked {
			t.Errorf("the client was asked %d times", n)
		}
		s.hears(fmt.Sprintf(`{"id":%d,"error":{"code":-32603,"message":"Too many requests in flight",`+
			`"data":{"reason":"overloaded","upstream":"u","phase":"not_sent","retryable":true}}}`, maxAsked))
	})
}

// A server that asks and asks and does not read fills no memory.
func TestSharedServerFloodsAndDoesNotRead(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		block := make(chan struct{})
		n := 0
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.hand = nil
		blockReads(s, block, &n)
		const backlog = maxBacklog / 128 // of the stream to the server, in small messages
		for range 3*maxReplies + backlog {
			s.sayText(`{"id":1,"method":"ping"}`)
		}
		close(block)
		s.heard()
		if n < maxReplies || n > maxReplies+backlog+500 {
			t.Errorf("%d pings were answered", n)
		}
	})
}
