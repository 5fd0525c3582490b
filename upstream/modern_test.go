//go:build unix

package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
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
		a.ends(jsonrpc.CauseStartTimeout.String(), false)
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

// A log message names no request, and servers log unasked. So whoever has a call, a
// subscription or a task there may be meant, whether it asked for log messages or not; if
// that is one client, it gets what it asked for.
func TestModernLogMessages(t *testing.T) {
	for begin, end := range map[string]string{
		`{"id":1,"method":"x"}`: `{"id":4,"result":{}}`,
		`{"id":1,"method":"x","params":{"_meta":{"io.modelcontextprotocol/logLevel":null}}}`: `{"id":4,"result":{}}`,
		`{"id":1,"method":"x","params":` + wantsLogs + `}`:                                   `{"id":4,"error":{"code":1,"message":"m"}}`,
		`{"id":1,"method":"subscriptions/listen"}`:                                           `{"id":4,"result":{"resultType":"complete"}}`,
	} {
		inModernWorld(t, func(w *sharedWorld) {
			a, b := w.attach("a"), w.attach("b")
			s := w.server()
			s.say(logMessage) // nobody asked for anything
			a.say(`{"id":1,"method":"x","params":`+wantsLogs+`}`, `{"id":2,"method":"x"}`)
			s.heard()
			s.say(logMessage)
			a.hears("@1 " + logMessage)
			b.say(begin)
			s.heard()
			s.say(logMessage)
			a.hears()
			b.hears()
			s.say(end)
			b.heard()
			s.say(logMessage)
			a.hears("@1 " + logMessage)
			s.say(`{"id":2,"result":{}}`, logMessage) // its other call did not ask
			a.hears(`{"id":1,"result":{}}`)
			if st := w.host.Status(); len(st) != 1 || st[0].Unattributed != 2 {
				t.Errorf("%+v, want 2 messages dropped", st)
			}
		})
	}
}

// A server may be at a call long after its client has given it up, and at a task after it
// has answered with that. Of another principal that is never over; of another client of the
// same one, after a while.
func TestModernLogMessagesOfWhatWasGivenUp(t *testing.T) {
	call := func(id int) string { return fmt.Sprintf(`{"id":%d,"method":"x","params":%s}`, id, wantsLogs) }
	for what, giveUp := range map[string]func(c *sharedClient, s *sharedServer){
		"cancelled": func(c *sharedClient, _ *sharedServer) {
			c.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`)
		},
		"left": func(c *sharedClient, _ *sharedServer) { c.leave() },
		"a task": func(_ *sharedClient, s *sharedServer) {
			s.say(`{"id":2,"result":{"resultType":"task","taskId":"t","status":"working"}}`)
		},
		"a task, and left": func(c *sharedClient, s *sharedServer) {
			s.say(`{"id":2,"result":{"resultType":"task","taskId":"t","status":"working"}}`)
			c.leave()
		},
	} {
		t.Run(what, func(t *testing.T) {
			inModernWorld(t, func(w *sharedWorld) {
				b, a, other := w.attach("b.b"), w.attach("a.a"), w.attach("other.b")
				s := w.server()
				b.say(`{"id":1,"method":"x"}`) // it did not ask
				giveUp(b, s)
				a.say(call(1))
				s.heard()
				s.say(logMessage)
				time.Sleep(time.Hour)
				s.say(logMessage)
				a.hears()
				s.say(`{"id":3,"result":{}}`)
				a.heard()
				other.say(call(1))
				s.heard()
				s.say(logMessage)
				other.hears("@1 " + logMessage)
				other.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`)

				again := w.attach("again.b")
				again.say(call(1), call(2))
				s.say(logMessage)
				again.hears() // it may be of what the other has just cancelled
				time.Sleep(fadeFor)
				s.say(logMessage)
				again.hears("@2 " + logMessage) // the newest of its calls
			})
		})
	}
}

// Several calls of one connection are one client's, those of a principal's stream may be of
// different ones. Subscriptions of a principal do not keep its clients from log messages.
func TestModernLogMessagesOfSeveral(t *testing.T) {
	inModernWorld(t, func(w *sharedWorld) {
		a, all := w.attach("a.me"), w.attach("p-all.me")
		s := w.server()
		from := func(id int, level string) string {
			return fmt.Sprintf(`{"id":%d,"method":"x","params":{"_meta":{"io.modelcontextprotocol/logLevel":%q}}}`, id, level)
		}
		failure := strings.Replace(logMessage, "info", "error", 1)
		all.say(`{"id":9,"method":"subscriptions/listen"}`)
		a.say(from(1, "info"), from(2, "error"), `{"id":3,"method":"subscriptions/listen","params":`+wantsLogs+`}`) // which never logs
		s.heard()
		s.say(logMessage, failure)
		a.hears("@1 "+logMessage, "@2 "+failure) // the newest that asked
		a.say(`{"method":"notifications/cancelled","params":{"requestId":2}}`)
		s.say(failure)
		a.hears("@1 " + failure) // which was its own, if it was that
		a.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`)

		all.say(from(1, "info"))
		s.say(logMessage)
		all.hears()
		time.Sleep(fadeFor)
		s.say(logMessage)
		all.hears("@1 " + logMessage)
		all.say(`{"id":2,"method":"x"}`) // another client of the principal, as far as anybody knows
		s.say(logMessage)
		all.say(`{"method":"notifications/cancelled","params":{"requestId":2}}`)
		s.say(logMessage)
		all.hears()
	})
}

// Of fifty clients that call at once, cancel, leave, subscribe and get tasks, whether they
// asked for log messages or not, nobody gets a log message of another, and each gets its own
// while it is alone. In every second run all are one principal. Then subscriptions, and what
// was given up long ago, do not count.
func TestModernLogMessagesOfMany(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		inModernWorld(t, func(w *sharedWorld) {
			(&loggingCrowd{w: w, random: rand.New(rand.NewPCG(seed, 0)), one: seed%2 == 1}).play()
		})
	}
}

// A loggingCrowd is a modern server that logs for each call, unasked, and its clients.
type loggingCrowd struct {
	w       *sharedWorld
	one     bool // the clients are one principal
	s       *sharedServer
	random  *rand.Rand
	clients []*sharedClient
	open    []string // ids of calls at the server
	owners  []string // of all that it was ever asked, who may still be spoken of
}

func (x *loggingCrowd) play() {
	for i := range 50 {
		who := fmt.Sprint(i)
		if x.one {
			who = "one"
		}
		x.clients = append(x.clients, x.w.attach(fmt.Sprintf("c%d.%s", i, who)))
	}
	x.s = x.w.server()
	x.s.hand = x.hand
	x.alone()
	for i, c := range x.clients {
		x.act(i, c)
		for range x.random.IntN(3) {
			x.log()
		}
	}
	for range 20 { // late
		if x.one {
			break
		}
		time.Sleep(time.Duration(x.random.IntN(3)) * time.Minute)
		x.log()
	}
	for i, c := range x.clients {
		for _, text := range c.heard() {
			if strings.Contains(text, "<") && !strings.Contains(text, fmt.Sprintf("<%d>", i)) {
				x.w.t.Errorf("client %d got %s", i, text)
			}
		}
	}
}

// alone has the first client log before any other calls.
func (x *loggingCrowd) alone() {
	x.clients[0].say(`{"id":0,"method":"tools/call","params":{"of":"<0>","_meta":{"io.modelcontextprotocol/logLevel":"debug"}}}`)
	x.log()
	if heard := x.clients[0].heard(); len(heard) != 1 || !strings.Contains(heard[0], "<0>") {
		x.w.t.Errorf("a client that is alone got %q", heard)
	}
	x.answer(`{}`)
	x.owners = nil // that call is over
	x.clients[0].heard()
}

// hand notes a call.
func (x *loggingCrowd) hand(m *jsonrpc.Message) {
	if of, _ := jsonrpc.Member(m.Params, "of"); of != nil {
		x.open, x.owners = append(x.open, m.ID.String()), append(x.owners, string(of))
	}
}

// act lets a client do something.
func (x *loggingCrowd) act(i int, c *sharedClient) {
	meta := []string{`{}`, `{"io.modelcontextprotocol/logLevel":"info"}`, `{"io.modelcontextprotocol/logLevel":"emergency"}`}[x.random.IntN(3)]
	method := []string{"tools/call", "tools/call", "subscriptions/listen"}[x.random.IntN(3)]
	if x.one {
		method = "tools/call"
	}
	c.say(fmt.Sprintf(`{"id":1,"method":%q,"params":{"of":"<%d>","_meta":%s}}`, method, i, meta))
	switch x.random.IntN(6) {
	case 0:
		c.say(`{"method":"notifications/cancelled","params":{"requestId":1}}`)
	case 1:
		c.leave()
	case 2:
		x.answer(`{"resultType":"task","taskId":"t","status":"working"}`)
	}
}

// answer answers the newest call.
func (x *loggingCrowd) answer(result string) {
	x.s.say(`{"id":` + x.open[len(x.open)-1] + `,"result":` + result + `}`)
}

// log has the server log for whoever it has heard of.
func (x *loggingCrowd) log() {
	of := x.owners[x.random.IntN(len(x.owners))]
	x.s.say(`{"method":"notifications/message","params":{"level":"info","data":` + of + `}}`)
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
		a.ends(jsonrpc.CauseHostStopped.String(), true)
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
		a.ends(jsonrpc.CauseHostStopped.String(), false)
		<-stopped
		synctest.Wait()
		if s.end == nil {
			t.Error("the server was not ended")
		}
	})
}
