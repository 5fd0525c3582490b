//go:build unix

package upstream

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const unknownTask = `"error":{"code":-32602,"message":"Invalid params: unknown task"}`

// createTask makes a task of a client's call; n is the server's id of that.
func createTask(c *sharedClient, s *sharedServer, n int, task string) {
	c.w.t.Helper()
	c.say(`{"id":"create","method":"tools/call","params":{"name":"t","task":{"ttl":1},"_meta":{"progressToken":"tok"}}}`)
	s.hears(fmt.Sprintf(`{"id":%d,"method":"tools/call","params":{"name":"t","task":{"ttl":1},"_meta":{"progressToken":%d}}}`, n, n))
	s.say(fmt.Sprintf(`{"id":%d,"result":{"task":{"taskId":"%s","status":"working"}}}`, n, task))
	c.hears(`{"id":"create","result":{"task":{"taskId":"` + task + `","status":"working"}}}`)
}

func TestSharedTaskIsItsCreators(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		createTask(a, s, 2, "t1")
		const progress = `{"method":"notifications/progress","params":{"progressToken":2,"progress":1}}`
		const status = `{"method":"notifications/tasks/status","params":{"taskId":"t1","status":"working"}}`
		s.say(progress, status, `{"method":"notifications/tasks/status","params":{"taskId":"t2","status":"working"}}`)
		a.hears(`{"method":"notifications/progress","params":{"progressToken":"tok","progress":1}}`, status)

		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			b.say(`{"id":1,"method":"`+method+`","params":{"taskId":"t1"}}`, `{"id":2,"method":"`+method+`","params":{"taskId":"none"}}`)
			b.hears(`{"id":1,`+unknownTask+`}`, `{"id":2,`+unknownTask+`}`)
		}
		b.say(`{"id":1,"method":"tasks/get","params":{"taskId":"none","taskId":"t1"}}`, `{"id":2,"method":"tasks/get"}`)
		b.hears(`{"id":1,"error":{"code":-32602,"message":"Invalid params: duplicate key \"taskId\""}}`,
			`{"id":2,"error":{"code":-32602,"message":"Invalid params: \"taskId\" is missing or not a string"}}`)
		b.say(`{"id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t1"}}}}`)
		b.hears(`{"id":1,` + unknownTask + `}`)
		s.hears()

		a.say(`{"id":1,"method":"tasks/result","params":{"taskId":"t1"}}`)
		s.hears(`{"id":3,"method":"tasks/result","params":{"taskId":"t1"}}`)
		b.say(`{"id":1,"method":"x"}`)
		s.heard()
		a.say(`{"id":"newer","method":"x"}`) // is about no task
		s.heard()
		const ask = `"method":"elicitation/create","params":{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t1"}}}}`
		s.say(`{"id":1,`+ask, `@4 {"id":2,`+ask) // the second says it is b's and a's
		a.hears(`@1 {"id":1,` + ask)
		b.hears()
		s.hears(`{"id":2,` + cannot + `}`)

		s.say(`{"method":"notifications/tasks/status","params":{"taskId":"t1","status":"completed"}}`, progress, `{"id":3,"result":{}}`)
		a.hears(`@1 {"method":"notifications/tasks/status","params":{"taskId":"t1","status":"completed"}}`, `{"id":1,"result":{}}`)
		s.say(`{"id":5,"result":{}}`)
		a.hears(`{"id":"newer","result":{}}`)
		a.leave()
		s.heard()
		b.say(`{"id":2,"method":"tasks/get","params":{"taskId":"t1"}}`)
		b.hears(`{"id":2,` + unknownTask + `}`)
	})
}

// D01 for tasks: what still runs is cancelled, also what is only now created.
func TestD01_SharedTasksOfWhoLeaves(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		createTask(a, s, 2, "runs")
		createTask(a, s, 3, "done")
		createTask(b, s, 4, "other")
		a.say(`{"id":1,"method":"tasks/get","params":{"taskId":"done"}}`)
		s.heard()
		s.say(`{"id":5,"result":{"taskId":"done","status":"failed"}}`)
		a.say(`{"id":2,"method":"tools/call","params":{"task":{}}}`, `{"id":3,"method":"tools/call","params":{"task":{}}}`)
		a.say(`{"method":"notifications/cancelled","params":{"requestId":3}}`)
		s.hears(`{"id":6,"method":"tools/call","params":{"task":{}}}`, `{"id":7,"method":"tools/call","params":{"task":{}}}`,
			`{"method":"notifications/cancelled","params":{"requestId":7}}`)
		a.leave()
		s.hears(`{"id":8,"method":"tasks/cancel","params":{"taskId":"runs"}}`)
		s.say(`{"id":8,"result":{}}`, `{"id":6,"result":{"task":{"taskId":"late","status":"working"}}}`,
			`{"id":7,"result":{"task":{"taskId":"finished","status":"completed"}}}`)
		s.hears(`{"id":9,"method":"tasks/cancel","params":{"taskId":"late"}}`)
		b.hears()
		b.say(`{"id":1,"method":"tasks/get","params":{"taskId":"other"}}`)
		s.hears(`{"id":10,"method":"tasks/get","params":{"taskId":"other"}}`)
	})
}

func TestSharedTaskList(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		createTask(a, s, 2, "a1")
		createTask(b, s, 3, "b1")
		a.say(`{"id":1,"method":"tasks/list","params":{"x":1}}`)
		s.hears(`{"id":4,"method":"tasks/list","params":{"x":1}}`)
		s.say(`{"id":4,"result":{"v":1e2,"tasks":[{"taskId":"b1"},{"taskId":"a1","z":1.0},{"taskId":"x"},7],"nextCursor":"b1"}}`)
		a.hears(`{"id":1,"result":{"v":1e2,"tasks":[{"taskId":"a1","z":1.0}],"nextCursor":"1"}}`)

		// The cursor, which would be another's task, is minted, and each client's own.
		b.say(`{"id":1,"method":"tasks/list","params":{"cursor":"1"}}`, `{"id":2,"method":"tasks/list","params":{"cursor":"b1"}}`)
		const unknown = `"error":{"code":-32602,"message":"Invalid params: unknown cursor"}`
		b.hears(`{"id":1,`+unknown+`}`, `{"id":2,`+unknown+`}`)
		a.say(`{"id":1,"method":"tasks/list","params":{"cursor":"1","_meta":{"progressToken":7}}}`)
		s.hears(`{"id":5,"method":"tasks/list","params":{"cursor":"b1","_meta":{"progressToken":5}}}`)
		s.say(`{"id":5,"result":{"tasks":[]}}`)
		a.hears(`{"id":1,"result":{"tasks":[]}}`)

		for i, bad := range []string{`{}`, `{"tasks":[],"Tasks":[{"taskId":"b1"}]}`, `{"tasks":{}}`, `{"tasks":[],"tasks":[{"taskId":"b1"}]}`} {
			a.say(`{"id":1,"method":"tasks/list"}`)
			s.heard()
			s.say(fmt.Sprintf(`{"id":%d,"result":%s}`, i+6, bad))
			a.hears(`{"id":1,"error":{"code":-32603,"message":"Invalid response from upstream","data":` +
				`{"reason":"invalid_response","upstream":"u","cause":"unusable list","phase":"in_flight","retryable":false}}}`)
		}
	})
}

func TestSharedOldCursorsAreForgotten(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		for i := range maxMemberCursors + 1 {
			a.say(`{"id":1,"method":"tasks/list"}`)
			s.say(fmt.Sprintf(`{"id":%d,"result":{"tasks":[],"nextCursor":"s"}}`, i+2))
		}
		s.heard()
		a.heard()
		a.say(`{"id":1,"method":"tasks/list","params":{"cursor":"1"}}`, `{"id":2,"method":"tasks/list","params":{"cursor":"2"}}`,
			`{"id":3,"method":"tasks/list","params":{"cursor":"2","cursor":"3"}}`)
		a.hears(`{"id":1,"error":{"code":-32602,"message":"Invalid params: unknown cursor"}}`,
			`{"id":3,"error":{"code":-32602,"message":"Invalid params: duplicate key \"cursor\""}}`)
		if n := len(s.heard()); n != 1 {
			t.Errorf("the server was asked %d times", n)
		}
	})
}

// A server that gives one client's task id to another does not give the task away.
func TestSharedTaskIDGivenTwice(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		createTask(a, s, 2, "t")
		createTask(b, s, 3, "t")
		b.say(`{"id":1,"method":"tasks/get","params":{"taskId":"t"}}`)
		b.hears(`{"id":1,` + unknownTask + `}`)
		b.leave()
		s.hears()
		a.say(`{"id":1,"method":"tasks/get","params":{"taskId":"t"}}`)
		s.hears(`{"id":4,"method":"tasks/get","params":{"taskId":"t"}}`)
	})
}

// What is kept of a server is bounded in bytes: a task whose id is longer than anybody could
// ask for is cancelled, and a list whose cursor is ends there.
func TestSharedLongIDs(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		fits := strings.Repeat("x", mcp.MaxRouted)
		createTask(a, s, 2, fits)
		a.say(`{"id":1,"method":"tools/call","params":{"name":"t","task":{}}}`)
		s.heard()
		s.say(`{"id":3,"result":{"task":{"taskId":"` + fits + `x","status":"working"}}}`)
		a.hears(`{"id":1,"error":{"code":-32603,"message":"Invalid response from upstream","data":` +
			`{"reason":"invalid_response","upstream":"u","cause":"\"taskId\" is longer than 8 KiB","phase":"in_flight","retryable":false}}}`)
		s.hears(`{"id":4,"method":"tasks/cancel","params":{"taskId":"` + fits + `x"}}`)
		a.say(`{"id":1,"method":"tasks/list"}`)
		s.heard()
		s.say(`{"id":5,"result":{"tasks":[{"taskId":"` + fits + `"}],"nextCursor":"` + fits + `x"}}`)
		a.hears(`{"id":1,"result":{"tasks":[{"taskId":"` + fits + `"}]}}`)
	})
}

func TestSharedOldTasksAreForgotten(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		for i := range maxMemberTasks + 1 {
			createTask(a, s, i+2, fmt.Sprint("t", i))
		}
		a.say(`{"id":1,"method":"tasks/get","params":{"taskId":"t0"}}`, `{"id":2,"method":"tasks/get","params":{"taskId":"t1"}}`)
		a.hears(`{"id":1,` + unknownTask + `}`)
		if n := len(s.heard()); n != 1 {
			t.Errorf("the server was asked %d times", n)
		}
	})
}
