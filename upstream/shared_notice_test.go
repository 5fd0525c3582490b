//go:build unix

package upstream

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// blockReads makes s stop reading until block is closed; n counts what it then
// gets.
func blockReads(s *sharedServer, block chan struct{}, n *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hand = func(*jsonrpc.Message) {
		<-block
		*n++
	}
}

func TestSharedListChangesGoToAll(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b, early := w.start("a"), w.start("b"), w.attach("early")
		s := w.server()
		for _, list := range []string{"tools", "prompts", "resources"} {
			changed := `{"method":"notifications/` + list + `/list_changed"}`
			s.say(changed)
			a.hears(changed)
			b.hears(changed)
		}
		early.hears() // it has not heard yet that there is a server

		a.say(`{"id":"a1","method":"x"}`)
		s.heard()
		const changed = `{"method":"notifications/tools/list_changed","params":{"_meta":{"because":"of a"}}}`
		s.say(changed)
		a.hears(changed)
		b.hears(`{"method":"notifications/tools/list_changed"}`)
	})
}

// What does not say whose it is may be about whatever the server was ever told. So it goes to
// the clients of the one principal that has told it anything, and to nobody once there were
// two, however long ago.
func TestSharedUnattributed(t *testing.T) {
	const vendor = `{"method":"vendor/secret","params":{"s":1}}`
	const log = `{"method":"notifications/message","params":{"level":"error","data":"SECRET"}}`
	for use, first := range map[string]string{
		"call":         `{"id":"a1","method":"tools/call"}`,
		"list":         `{"id":"a1","method":"tools/list"}`,
		"task":         `{"id":"a1","method":"tools/call","params":{"task":{}}}`,
		"subscription": `{"id":"a1","method":"resources/subscribe","params":{"uri":"x:SECRET"}}`,
		"notification": `{"method":"vendor/hello"}`,
	} {
		t.Run(use, func(t *testing.T) {
			inSharedWorld(t, Upstream{Relates: true}, func(w *sharedWorld) {
				a, other, b := w.start("a1.a"), w.start("a2.a"), w.start("b1.b")
				s := w.server()
				dropped := func(want int) {
					t.Helper()
					if st := w.host.Status(); len(st) != 1 || st[0].Unattributed != want {
						t.Errorf("%+v, want %d messages dropped", st, want)
					}
				}
				s.say(vendor, log) // nobody has told it anything yet
				for _, c := range []*sharedClient{a, other, b} {
					c.hears(vendor, log)
				}
				b.say(`{"id":"b1","method":"logging/setLevel","params":{"level":"debug"}}`)
				s.say(`{"id":2,"result":{}}`)
				b.heard()
				a.say(first)
				s.heard()
				s.say(vendor, log, `@9 `+log)
				a.hears(vendor, log)
				other.hears(vendor, log)
				b.hears()
				a.leave()
				other.say(`{"id":"a2","method":"x"}`)
				s.heard()
				time.Sleep(time.Hour) // servers log late
				s.say(vendor, log)
				other.hears(vendor, log)
				b.hears()
				dropped(0)

				b.say(strings.Replace(first, "a1", "b2", 1))
				s.heard()
				s.say(vendor, log)
				other.hears()
				b.hears()
				b.leave()
				time.Sleep(time.Hour)
				s.say(vendor, log)
				other.hears()
				dropped(4)
				if lines := w.log.at(slog.LevelDebug); strings.Count(fmt.Sprint(lines), "could be for any of several clients") != 4 {
					t.Errorf("log %v", lines)
				}
				if strings.Contains(fmt.Sprint(w.log.at(slog.LevelDebug)), secret) {
					t.Error("the log has what the server said")
				}
				s.die("exit status 1") // the next one knows nothing
				again := w.start("b2.b")
				again.say(`{"id":"b3","method":"x"}`)
				w.server().heard()
				w.server().say(vendor, log)
				again.hears(vendor, log)
				dropped(0)
			})
		})
	}
}

func TestSharedLogLevels(t *testing.T) {
	inSharedWorld(t, Upstream{Relates: true}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		log := func(level string) string {
			return `{"method":"notifications/message","params":{"level":"` + level + `","data":1}}`
		}
		logs := func() { s.say(log("debug"), log("info"), log("error"), log("odd")) }
		logs()
		a.hears(log("debug"), log("info"), log("error"), log("odd")) // the server decides
		b.hears(log("debug"), log("info"), log("error"), log("odd"))

		// b did not say anything, and so must go on to hear info.
		a.say(`{"id":1,"method":"logging/setLevel","params":{"level":"error"}}`)
		s.hears(`{"id":2,"method":"logging/setLevel","params":{"level":"info"}}`)
		a.hears()
		s.say(`{"id":2,"result":{}}`)
		a.hears(`{"id":1,"result":{}}`)
		logs()
		a.hears(log("error"))
		b.hears(log("info"), log("error"), log("odd"))

		b.say(`{"id":1,"method":"logging/setLevel","params":{"level":"debug"}}`)
		a.say(`{"id":1,"method":"logging/setLevel","params":{"level":"emergency"}}`) // waits for b's
		s.hears(`{"id":3,"method":"logging/setLevel","params":{"level":"debug"}}`)
		s.say(`{"id":3,"result":{}}`)
		a.hears(`{"id":1,"result":{}}`)
		b.hears(`{"id":1,"result":{}}`)
		logs()
		a.hears()
		b.hears(log("debug"), log("info"), log("error"), log("odd"))

		// A message of a call is its owner's alone.
		a.say(`{"id":5,"method":"x"}`)
		s.hears(`{"id":4,"method":"x"}`)
		s.say(`@4 `+log("emergency"), `@4 `+log("debug"), `@99 `+log("emergency"))
		a.hears(`@5 ` + log("emergency"))
		b.hears()

		// Nothing changes, nothing is said.
		b.say(`{"id":2,"method":"logging/setLevel","params":{"level":"debug"}}`)
		b.hears(`{"id":2,"result":{}}`)
		s.hears()

		b.leave()
		s.hears(`{"id":5,"method":"logging/setLevel","params":{"level":"emergency"}}`)
		s.say(`{"id":5,"result":{}}`)
		w.start("c") // who must hear info
		s.hears(`{"id":6,"method":"logging/setLevel","params":{"level":"info"}}`)
	})
}

func TestSharedLogLevelFails(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		for _, params := range []string{`{"level":"loud"}`, `{}`, `{"level":"debug","level":"error"}`, `{"level":3}`} {
			a.say(`{"id":1,"method":"logging/setLevel","params":` + params + `}`)
			a.hears(`{"id":1,"error":{"code":-32602,"message":"Invalid params: \"level\" is not a log level"}}`)
		}
		a.say(`{"id":1,"method":"logging/setLevel","params":{"level":"debug"}}`)
		b.say(`{"id":1,"method":"logging/setLevel","params":{"level":"debug"}}`, `{"method":"notifications/cancelled","params":{"requestId":1}}`)
		s.hears(`{"id":2,"method":"logging/setLevel","params":{"level":"debug"}}`)
		s.say(`{"id":2,"error":{"code":1,"message":"no"}}`)
		a.hears(`{"id":1,"error":{"code":1,"message":"no"}}`)
		b.hears()
		b.say(`{"id":1,"method":"logging/setLevel","params":{"level":"debug"}}`)
		s.hears(`{"id":3,"method":"logging/setLevel","params":{"level":"debug"}}`)
	})
}

// Who has not said hello yet does not make the server more verbose.
func TestSharedLogLevelWithoutHello(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		w.attach("early")
		s := w.server() // which waits
		a.say(`{"id":1,"method":"logging/setLevel","params":{"level":"alert"}}`)
		s.hears(`{"id":2,"method":"logging/setLevel","params":{"level":"alert"}}`)
	})
}

func TestSharedNoLogging(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		w.welcome = `"result":{"capabilities":{}}`
		a := w.attach("a")
		a.say(`{"id":1,"method":"initialize","params":{}}`, `{"id":2,"method":"logging/setLevel","params":{"level":"debug"}}`)
		a.hears(`{"id":1,"result":{"capabilities":{}}}`, `{"id":2,"error":{"code":-32601,"message":"Method not found: logging/setLevel"}}`)
		w.server().hears()
	})
}

// An elicitation's completion is for whom it was given to.
func TestSharedElicitationComplete(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":1,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e1","url":"u"}}`)
		a.heard()
		s.say(`{"id":2,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"elicitationId":"e2"}]}}}`)
		a.heard()
		b.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":3,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"elicitationId":"e1"}]}}}`) // b has no part in it
		b.heard()
		complete := func(id string) string {
			return `{"method":"notifications/elicitation/complete","params":{"elicitationId":"` + id + `"}}`
		}
		s.say(complete("e1"), complete("e2"), complete("e3"))
		a.hears(complete("e1"), complete("e2"))
		b.hears()
		a.leave()
		s.say(complete("e1"), complete("e2"))
		b.hears()
		b.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":4,"error":{"code":-32042,"message":"m","data":{"elicitations":[{"elicitationId":"e1"}]}}}`) // free again
		b.heard()
		s.say(complete("e1"))
		b.hears(complete("e1"))
	})
}

func TestSharedOldElicitationsAreForgotten(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		for i := range maxElicited + 1 {
			s.say(fmt.Sprintf(`{"id":1,"method":"elicitation/create","params":{"elicitationId":"e%d"}}`, i))
			a.say(fmt.Sprintf(`{"id":%d,"result":{}}`, i+1))
		}
		a.heard()
		const complete = `{"method":"notifications/elicitation/complete","params":{"elicitationId":"e1"}}`
		s.say(`{"method":"notifications/elicitation/complete","params":{"elicitationId":"e0"}}`, complete)
		a.hears(`@1 ` + complete)
	})
}

// What cannot be read, or be read in two ways, goes to nobody and hurts nobody.
func TestSharedNoise(t *testing.T) {
	inSharedWorld(t, Upstream{Relates: true}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"x","params":{"_meta":{"progressToken":1}}}`, subscribeTo(2, "x:1"))
		s.heard()
		s.say(`{"id":3,"result":{}}`)
		a.heard()
		for _, params := range []string{`{}`, `[]`, `{"progressToken":2,"progressToken":2}`, `{"progressToken":2,"ProgressToken":2}`,
			`{"progressToken":{}}`, `{"requestId":1,"requestId":2}`, `{"requestId":[]}`, `{"uri":"x:1","uri":"x:1"}`, `{"uri":1}`,
			`{"taskId":1,"status":"working"}`, `{"taskId":"t","taskId":"t"}`, `{"elicitationId":null}`,
			`{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":1}}}`, `{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t","TaskId":"t"}}}`,
			`{"_meta":{"io.modelcontextprotocol/related-task":7}}`, `{"_meta":{},"_meta":{}}`} {
			for _, method := range []string{"progress", "cancelled", "resources/updated", "tasks/status", "elicitation/complete"} {
				s.say(`{"method":"notifications/` + method + `","params":` + params + `}`)
			}
			if strings.Contains(params, "_meta") {
				s.say(`{"method":"notifications/message","params":` + params + `}`)
			}
			a.say(`{"method":"notifications/progress","params":` + params + `}`)
		}
		s.say(`{"id":3,"result":{}}`, `{"id":"x","result":{}}`, `{"id":-1,"error":{}}`, `{"error":{}}`)
		a.hears()
		s.hears()
		a.lives(s)

		b := w.attach("b")
		b.say(`{"id":1,"method":"initialize","params":{"capabilities":{"roots":{},"Roots":{}}}}`)
		b.hears(`{"id":1,"error":{"code":-32602,"message":"Invalid params: key \"roots\" is not written that way"}}`)
		b.say(`{"id":1,"method":"initialize"}`)
		b.hears(`{"id":1,` + welcome + `}`)
	})
}

// What a server says while it does what one client asked for is that client's,
// though this side asks; what it says when this side asks of its own accord is attributed
// to nobody.
func TestSharedWhatIsAskedForAClient(t *testing.T) {
	inSharedWorld(t, Upstream{Relates: true}, func(w *sharedWorld) {
		const log = `{"method":"notifications/message","params":{"level":"error","data":"file:///a"}}`
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":"a1","method":"resources/subscribe","params":{"uri":"file:///a"}}`)
		s.heard()
		s.say(`@2 ` + log)
		a.hears(`@"a1" ` + log)
		b.hears()
		s.say(`{"id":2,"result":{}}`)
		a.hears(`{"id":"a1","result":{}}`)
		b.say(`{"id":"b1","method":"logging/setLevel","params":{"level":"debug"}}`)
		s.heard()
		s.say(`@3 ` + log)
		a.hears(log)
		b.hears()
	})
}
