//go:build unix

package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	versioned  = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	wantsLogs  = `{"_meta":{"io.modelcontextprotocol/logLevel":"debug"}}`
	logMessage = `{"method":"notifications/message","params":{"level":"info","data":"secret"}}`
)

// frame is a notification for a listen.
func frame(method, id string) string {
	return `{"method":"notifications/` + method + `","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":` + id + `}}}`
}

// What is sent before the server has said that it is there waits for that, and has
// not been delivered if it never does.
func TestModernRequestsWaitForTheServer(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		w.discover = ""
		a := w.attach("a")
		a.say(`{"id":1,"method":"tools/call"}`)
		s := w.server()
		s.hears()
		s.say(`{"id":1,` + modernDiscover + `}`)
		s.hears(`{"id":2,"method":"tools/call"}`)
		s.die("exit status 1")
		a.ends("exit status 1", true)

		b := w.attach("b")
		b.say(`{"id":1,"method":"tools/call"}`)
		w.server().hears()
		w.server().die("exit status 1")
		b.ends("exit status 1", false)
	})
}

// A server that answers nothing at all is not waited for without end.
func TestModernStartTimeout(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		w.discover = ""
		a := w.attach("a")
		a.say(`{"id":1,"method":"tools/call"}`)
		time.Sleep(30 * time.Second)
		a.ends(jsonrpc.CauseStartTimeout, false)
		w.server().hears() // and so nothing is cancelled
	})
}

func TestModernIDsAndTokensComeBack(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b := w.attach("a"), w.attach("b")
		s := w.server()
		a.say(`{"id":1,"method":"tools/call","params":{"x":1e2,"_meta":{`+versioned+`,"progressToken":1,"k":[1 ,2]},"y":"\ud800"},"vendor":true}`,
			`{"id":2,"method":"server/discover","params":{}}`)
		b.say(`{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":"b"}}}`, `{"method":"vendor/hello"}`)
		s.hears(
			`{"id":2,"method":"tools/call","vendor":true,"params":{"x":1e2,"_meta":{`+versioned+`,"progressToken":2,"k":[1 ,2]},"y":"\ud800"}}`,
			`{"id":3,"method":"server/discover","params":{}}`,
			`{"id":4,"method":"tools/call","params":{"_meta":{"progressToken":4}}}`, `{"method":"vendor/hello"}`)
		s.say(
			`{"method":"notifications/progress","params":{"progress":1,"progressToken":4}}`,
			`{"method":"notifications/progress","params":{"progress":1,"progressToken":2}}`,
			`{"method":"notifications/progress","params":{"progress":1,"progressToken":3}}`,
			`{"method":"notifications/progress","params":{"progress":1}}`,
			`{"id":"4","result":{"of":"b"},"vendor":1}`, `{"id":3,"error":{"code":-32042,"message":"m"}}`, `{"id":2,"result":{"of":"a"}}`)
		a.hears(`@1 {"method":"notifications/progress","params":{"progress":1,"progressToken":1}}`,
			`{"id":2,"error":{"code":-32042,"message":"m"}}`, `{"id":1,"result":{"of":"a"}}`)
		b.hears(`@1 {"method":"notifications/progress","params":{"progress":1,"progressToken":"b"}}`,
			`{"id":1,"vendor":1,"result":{"of":"b"}}`)
		if len(w.servers) != 1 {
			t.Errorf("%d sessions", len(w.servers))
		}
	})
}

// D17 to D19, D22, D26: cancelling is about the stream's own requests.
func TestD18_ModernCancel(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b := w.attach("a"), w.attach("b")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		b.say(`{"id":1,"method":"x"}`)
		s.heard()
		a.say(`{"method":"notifications/cancelled","params":{"requestId":3}}`, // b's, at the server
			`{"method":"notifications/cancelled","params":{"requestId":"1"}}`,
			`{"method":"notifications/cancelled","params":{"reason":"why","requestId":1}}`,
			`{"method":"notifications/cancelled","params":{"requestId":1}}`,
			`{"id":1,"method":"y"}`)
		s.hears(`{"method":"notifications/cancelled","params":{"reason":"why","requestId":2}}`, `{"id":4,"method":"y"}`)
		s.say(`{"id":2,"result":{"late":true}}`, `{"id":3,"result":{}}`, `{"id":4,"result":{}}`)
		a.hears(`{"id":1,"result":{}}`)
		b.hears(`{"id":1,"result":{}}`)
	})
}

func TestModernListens(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b := w.attach("a"), w.attach("b")
		s := w.server()
		a.say(`{"id":7,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}`)
		b.say(`{"id":7,"method":"subscriptions/listen"}`, `{"id":8,"method":"tools/call"}`)
		s.hears(`{"id":2,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}`,
			`{"id":3,"method":"subscriptions/listen"}`, `{"id":4,"method":"tools/call"}`)
		s.say(frame("subscriptions/acknowledged", "2"), frame("subscriptions/acknowledged", `"3"`),
			frame("tools/list_changed", "3"), frame("vendor/news", "2"))
		a.hears("@7 "+frame("subscriptions/acknowledged", "7"), "@7 "+frame("vendor/news", "7"))
		b.hears("@7 "+frame("subscriptions/acknowledged", "7"), "@7 "+frame("tools/list_changed", "7"))

		a.say(`{"method":"notifications/cancelled","params":{"requestId":7}}`)
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2}}`)
		s.say(frame("tools/list_changed", "2"), `{"id":2,"result":{"resultType":"complete"}}`)
		a.hears()
		s.say(`{"id":3,"result":{"resultType":"complete","_meta":{"k":1,"io.modelcontextprotocol/subscriptionId":3}}}`)
		b.hears(`{"id":7,"result":{"resultType":"complete","_meta":{"k":1,"io.modelcontextprotocol/subscriptionId":7}}}`)
	})
}

// A listen that the server cancels ends gracefully; nothing else can be cancelled
// by it.
func TestModernServerEndsListen(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a := w.attach("a")
		s := w.server()
		a.say(`{"id":1,"method":"subscriptions/listen"}`, `{"id":2,"method":"tools/call"}`, `{"id":3,"method":"subscriptions/listen"}`)
		s.heard()
		s.say(`{"method":"notifications/cancelled","params":{"requestId":2}}`, `{"method":"notifications/cancelled","params":{"requestId":2}}`,
			`{"method":"notifications/cancelled","params":{"requestId":3}}`, `{"method":"notifications/cancelled","params":{}}`,
			`{"id":2,"result":{"late":true}}`, `{"id":3,"result":{}}`, `{"id":4,"error":{"code":-32602,"message":"no such filter"}}`)
		a.hears(`{"id":1,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":1}}}`,
			`{"id":2,"result":{}}`, `{"id":3,"error":{"code":-32602,"message":"no such filter"}}`)
	})
}

// What no request or listen can be told for goes to nobody, nor what a server of
// this era may not send.
func TestModernNobodysFrames(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a := w.attach("a")
		s := w.server()
		a.say(`{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":1}}}`, `{"id":2,"method":"subscriptions/listen"}`)
		s.heard()
		s.say(frame("tools/list_changed", "2"), // a call is no listen
			frame("tools/list_changed", "1"), frame("tools/list_changed", "9"), frame("tools/list_changed", "null"), frame("x", "{}"),
			`{"method":"notifications/tools/list_changed"}`, `{"method":"notifications/tools/list_changed","params":{"_meta":{}}}`,
			`{"method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":3,"io.modelcontextprotocol/subscriptionId":3}}}`,
			`{"method":"notifications/progress","params":{"progressToken":9}}`,
			`{"method":"notifications/resources/updated","params":{"uri":"file:///x"}}`, logMessage,
			`{"id":1,"method":"elicitation/create"}`, `{"id":"p","method":"ping"}`, `{"id":9,"result":{}}`, `{"id":"x","result":{}}`)
		s.conn.Send(&jsonrpc.Message{Batch: []*jsonrpc.Message{parse(t, `{"id":7,"method":"roots/list"}`)}})
		a.hears()
		s.hears()
		a.lives(s)
	})
}

// Two streams, the same ids, one server: whatever comes is seen by whose it is.
func TestModernNobodySeesAnothersFrames(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, evil := w.attach("a"), w.attach("evil")
		s := w.server()
		a.say(`{"id":1,"method":"tools/call","params":{"_meta":{"progressToken":"secret"}}}`, `{"id":2,"method":"subscriptions/listen"}`)
		s.heard()
		for i := range 8 { // claims the ids that a's calls have at the server
			evil.say(fmt.Sprintf(`{"id":%d,"method":"tools/call","params":{"_meta":{"progressToken":%d}}}`, i, i),
				fmt.Sprintf(`{"method":"notifications/cancelled","params":{"requestId":%d}}`, i),
				fmt.Sprintf(`{"id":%d,"method":"subscriptions/listen","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%d}}}`, i, i),
				fmt.Sprintf(`{"id":%d,"result":{}}`, i))
		}
		s.heard()
		s.say(`{"method":"notifications/progress","params":{"progressToken":2}}`, frame("tools/list_changed", "3"), `{"id":2,"result":{}}`,
			`{"method":"notifications/cancelled","params":{"requestId":3}}`)
		evil.hears()
		a.hears(`@1 {"method":"notifications/progress","params":{"progressToken":"secret"}}`, "@2 "+frame("tools/list_changed", "2"),
			`{"id":1,"result":{}}`, `{"id":2,"result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":2}}}`)
	})
}

// A log message names no request: it is for the only one that asked for any.
func TestModernLogMessages(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b := w.attach("a"), w.attach("b")
		s := w.server()
		a.say(`{"id":1,"method":"x","params":`+wantsLogs+`}`, `{"id":2,"method":"x"}`,
			`{"id":3,"method":"subscriptions/listen","params":`+wantsLogs+`}`, // which never logs
			`{"method":"notifications/cancelled","params":{"requestId":3}}`, `{"id":4,"method":"subscriptions/listen","params":`+wantsLogs+`}`)
		b.say(`{"id":1,"method":"x","params":{"_meta":{"io.modelcontextprotocol/logLevel":null}}}`)
		s.heard()
		s.say(logMessage)
		a.hears("@1 " + logMessage)
		b.hears()
		b.say(`{"id":2,"method":"x","params":` + wantsLogs + `}`)
		s.say(logMessage)
		a.hears()
		b.hears()
		s.say(`{"id":2,"result":{}}`, logMessage)
		a.hears(`{"id":1,"result":{}}`)
		b.hears("@2 " + logMessage)

		a.say(`{"id":3,"method":"x","params":` + wantsLogs + `}`)
		a.say(`{"method":"notifications/cancelled","params":{"requestId":3}}`)
		s.say(logMessage) // it may be of what was cancelled
		b.hears()
		time.Sleep(lingering)
		s.say(logMessage)
		b.hears("@2 " + logMessage)
		a.say(`{"id":5,"method":"x","params":` + wantsLogs + `}`)
		a.leave()
		s.say(logMessage)
		b.hears()
	})
}

// With several that asked, it is told by the level, or by all being of one connection.
func TestModernLogMessagesOfSeveral(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b, all := w.attach("a"), w.attach("b"), w.attach("p-all")
		s := w.server()
		from := func(id int, level string) string {
			return fmt.Sprintf(`{"id":%d,"method":"x","params":{"_meta":{"io.modelcontextprotocol/logLevel":%q}}}`, id, level)
		}
		failure := strings.Replace(logMessage, "info", "error", 1)
		a.say(from(1, "info"), from(2, "error"))
		b.say(from(1, "emergency"))
		s.heard()
		s.say(logMessage, failure)
		a.hears("@1 "+logMessage, "@2 "+failure) // the newest that asked
		a.say(`{"method":"notifications/cancelled","params":{"requestId":2}}`)
		s.say(failure)
		a.hears("@1 " + failure)
		time.Sleep(lingering)
		b.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`)
		s.say(failure) // b did not want it
		a.hears("@1 " + failure)
		b.say(from(2, "warning"))
		s.say(failure)
		a.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`)
		s.say(failure)
		a.hears()
		b.hears()
		time.Sleep(lingering)
		s.say(failure)
		b.hears("@2 " + failure)
		b.say(`{"method":"notifications/cancelled","params":{"requestId":2}}`)
		time.Sleep(lingering)

		all.say(from(1, "info"))
		s.say(logMessage)
		all.hears("@1 " + logMessage)
		all.say(from(2, "info")) // another client of the principal, as far as anybody knows
		s.say(logMessage)
		all.say(`{"method":"notifications/cancelled","params":{"requestId":2}}`)
		s.say(logMessage)
		all.hears()
	})
}

func TestModernLocalAnswers(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a := w.attach("a")
		s := w.server()
		a.say(`{"id":1,"method":"x","params":{"_meta":{"progressToken":1,"progressToken":2}}}`, `{"id":2,"method":"x","params":{"_Meta":{}}}`,
			`{"id":3,"method":"x"}`, `{"id":3,"method":"y"}`, `{"id":4,"method":"ping"}`)
		a.hears(`{"id":1,"error":{"code":-32602,"message":"Invalid params: duplicate key \"progressToken\""}}`,
			`{"id":2,"error":{"code":-32602,"message":"Invalid params: key \"_meta\" is not written that way"}}`,
			`{"error":{"code":-32600,"message":"Invalid request: the id is in use by a request in flight"}}`)
		s.hears(`{"id":2,"method":"x"}`, `{"id":3,"method":"ping"}`)
	})
}

// D01, D33: a stream that ends has its requests cancelled, listens too; the server
// stays.
func TestD01_ModernStreamEnds(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b := w.attach("a"), w.attach("b")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`, `{"id":2,"method":"subscriptions/listen"}`, `{"id":3,"method":"tools/call","params":{"task":{}}}`)
		b.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":4,"result":{"resultType":"task","task":{"taskId":"t","status":"working"}}}`)
		a.leave()
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,`+goneReason+`}}`,
			`{"method":"notifications/cancelled","params":{"requestId":3,`+goneReason+`}}`) // and the task goes on
		s.say(`{"id":2,"result":{}}`, frame("tools/list_changed", "3"), `{"id":5,"result":{}}`)
		b.hears(`{"id":1,"result":{}}`)
		b.lives(s)
		if warned := w.log.at(slog.LevelWarn); len(warned) > 0 {
			t.Errorf("warnings: %v", warned)
		}
	})
}

// D07, D33, D50: each stream ends once, whatever it has open; one line of the log.
func TestD07_ModernServerDies(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b, idle := w.attach("a"), w.attach("b"), w.attach("idle")
		s := w.server()
		for _, c := range []*sharedClient{a, b} {
			c.say(`{"id":1,"method":"x"}`, `{"id":2,"method":"subscriptions/listen"}`)
		}
		s.sayText(`{"id":2,"result":{"last":"word"}}`)
		s.die("signal: killed")
		a.ends("signal: killed", true)
		a.hears(`{"id":1,"result":{"last":"word"}}`)
		b.ends("signal: killed", true)
		b.hears()
		idle.ends("signal: killed", false)
		warned := w.log.at(slog.LevelWarn)
		if len(warned) != 1 || warned[0]["in_flight"] != 1.0 || warned[0]["msg"] != "upstream ended unexpectedly" {
			t.Errorf("warnings: %v, want one with 1 call", warned)
		}
		again := w.attach("a")
		if w.server() == s {
			t.Fatal("no new session")
		}
		again.lives(w.server())
	})
}

// A stream that is not read loses itself only.
func TestModernSlowClient(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		slow, b := w.attachDeaf("slow"), w.attach("b")
		slow.say(`{"id":1,"method":"subscriptions/listen"}`)
		s := w.server()
		s.heard()
		for range maxOut + 200 {
			s.sayText(frame("tools/list_changed", "2"))
		}
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,` + goneReason + `}}`)
		b.lives(s)
		slow.listen()
		slow.ends("client too slow", true)
	})
}

// That a pinned server refuses server/discover is its own affair; the log says so.
func TestModernPinnedServerNeedNotDiscover(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		w.discover = `"error":{"code":-32601,"message":"Method not found"}`
		w.attach("a").lives(w.server())
		if warned := w.log.at(slog.LevelWarn); len(warned) != 1 {
			t.Errorf("warnings %v", warned)
		}
	})
}

func TestModernForcedByContext(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, b := w.attach("a"), w.attach("b")
		s := w.server()
		a.say(`{"id":1,"method":"subscriptions/listen"}`)
		s.heard()
		a.cancel(nil)
		a.ends(jsonrpc.CauseHostStopped, true)
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,` + goneReason + `}}`)
		b.lives(s)
	})
}

func TestModernStop(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a := w.attach("a")
		s := w.server()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			w.host.Stop(context.Background())
		}()
		a.ends(jsonrpc.CauseHostStopped, false)
		<-stopped
		synctest.Wait()
		if s.end == nil {
			t.Error("the server was not ended")
		}
	})
}
