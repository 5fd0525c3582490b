//go:build unix

package upstream

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// D01: who leaves cancels its own calls, once each; the server stays, and so do
// the others.
func TestD01_SharedClientLeaves(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`, `{"id":2,"method":"settled"}`, `{"id":3,"method":"x"}`, `{"id":4,"method":"cancelled"}`,
			`{"method":"notifications/cancelled","params":{"requestId":4}}`)
		b.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":3,"result":{}}`)
		a.hears(`{"id":2,"result":{}}`)
		a.leave()
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,`+goneReason+`}}`,
			`{"method":"notifications/cancelled","params":{"requestId":4,`+goneReason+`}}`)
		s.say(`{"id":2,"result":{"late":true}}`, `{"id":6,"result":{}}`)
		b.hears(`{"id":1,"result":{}}`)
		b.leave()
		s.hears()
		w.start("c").lives(s) // D01: "connection stays up"
		if warned := w.log.at(slog.LevelWarn); len(warned) > 0 {
			t.Errorf("warnings: %v", warned)
		}
	})
}

// D05: the questions get their error, and their call nothing: it is the server's to
// end. What could be about it is nobody else's until then.
func TestD05_SharedQuestionThenNothing(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":"q1","method":"elicitation/create","params":{}}`, `{"id":"q2","method":"roots/list"}`)
		a.hears(`@1 {"id":1,"method":"elicitation/create","params":{}}`, `@1 {"id":2,"method":"roots/list"}`)
		a.leave()
		s.hears(`{"id":"q1",`+closedError+`}`, `{"id":"q2",`+closedError+`}`)
		b.lives(s)
		b.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":"q3","method":"roots/list"}`, `{"method":"vendor/secret"}`)
		s.hears(`{"id":"q3",` + cannot + `}`)
		s.say(`{"id":2,"error":{"code":1,"message":"as it likes"}}`, `{"id":"q1","method":"roots/list"}`) // that id is free again
		b.hears(`@1 {"id":1,"method":"roots/list"}`)
		time.Sleep(fadeFor)
		s.hears() // it has ended: nothing is cancelled
	})
}

// D05: a call that does not end for want of an answer is cancelled later; calls that
// cannot have waited for one at once.
func TestD05_SharedQuestionThenCancelLate(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		s.say(`{"id":"q","method":"elicitation/create","params":{}}`)
		a.heard()
		a.say(`{"id":2,"method":"x"}`)
		s.heard()
		a.leave()
		s.hears(`{"id":"q",`+closedError+`}`, `{"method":"notifications/cancelled","params":{"requestId":3,`+goneReason+`}}`)
		time.Sleep(fadeFor - time.Millisecond)
		s.hears()
		time.Sleep(time.Millisecond)
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,` + goneReason + `}}`)
		b.lives(s)
	})
}

// D03, D05: an error that the proxy gives the server because of a half-close is the
// one stimulus, too; one that the client gives is not, and a call that the client
// cancels is not told besides that its question will not be answered.
func TestD05_SharedOneStimulus(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		for _, row := range []struct{ says, hears, end string }{
			{`{"id":1,` + closedError + `}`, `{"id":"q",` + closedError + `}`, ""},
			{`{"id":1,"error":{"code":-1,"message":"no"}}`, `{"id":"q","error":{"code":-1,"message":"no"}}`,
				`{"method":"notifications/cancelled","params":{"requestId":%d,` + goneReason + `}}`},
			{`{"method":"notifications/cancelled","params":{"requestId":1}}`,
				`{"method":"notifications/cancelled","params":{"requestId":%d}}`, ""},
		} {
			a := w.start("a")
			s := w.server()
			a.say(`{"id":1,"method":"x"}`)
			n := parse(t, s.heard()[0]).ID.String()
			named := func(text string) []string {
				if text == "" {
					return nil
				}
				return []string{strings.ReplaceAll(text, "%d", n)}
			}
			s.say(`{"id":"q","method":"elicitation/create","params":{}}`)
			a.heard()
			a.say(row.says)
			s.hears(named(row.hears)...)
			a.leave()
			s.hears(named(row.end)...)
			s.say(`{"id":` + n + `,"result":{}}`)
			time.Sleep(lingering)
		}
	})
}

// D07, D50: the crash of the server is told once to each, with what became of its
// requests; the next to come has a new server.
func TestD07_SharedServerDies(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b, c, idle := w.start("a"), w.start("b"), w.start("c"), w.start("idle")
		s := w.server()
		for _, x := range []*sharedClient{a, b, c} {
			x.say(`{"id":1,"method":"x"}`, `{"id":2,"method":"x"}`)
		}
		s.heard()
		s.sayText(`{"id":2,"result":{"last":"word"}}`) // delivered before the end
		s.die("signal: killed")
		a.ends("signal: killed", true)
		a.hears(`{"id":1,"result":{"last":"word"}}`)
		b.ends("signal: killed", true)
		c.ends("signal: killed", true)
		idle.ends("signal: killed", false)
		b.hears()
		warned := w.log.at(slog.LevelWarn)
		if len(warned) != 1 || warned[0]["in_flight"] != 5.0 || warned[0]["msg"] != "upstream ended unexpectedly" {
			t.Errorf("warnings: %v, want one with 5 calls", warned)
		}
		again := w.start("a")
		if w.server() == s {
			t.Fatal("no new session")
		}
		again.lives(w.server())
	})
}

func TestD50_SharedServerDiesWithAThousandCalls(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		var clients []*sharedClient
		for i := range 50 {
			c := w.start(fmt.Sprint("c", i))
			for id := range 20 {
				c.conn.Send(parse(t, fmt.Sprintf(`{"id":%d,"method":"x"}`, id)))
			}
			clients = append(clients, c)
		}
		if n := len(w.server().heard()); n != 1000 {
			t.Fatalf("the server got %d calls", n)
		}
		w.server().die("exit status 1")
		for _, c := range clients {
			c.ends("exit status 1", true)
		}
		if n := len(w.log.at(slog.LevelWarn)); n != 1 {
			t.Errorf("%d warnings", n)
		}
	})
}

// D16: a client and the server end in the same instant.
func TestD16_SharedBothEnd(t *testing.T) {
	for range 100 {
		inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
			a, b := w.start("a"), w.start("b")
			s := w.server()
			a.say(`{"id":1,"method":"x"}`)
			go a.conn.Close()
			go jsonrpc.CloseWith(s.conn, &jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(1), Delivered: true})
			<-a.done
			b.ends("exit status 1", false)
			a.hears()
		})
	}
}

// With a process: all clients use one, a kill is told to each, and the next is
// started at once.
func TestD07_SharedProcess(t *testing.T) {
	command := fakeCommand()
	r := newRigOf(t, Upstream{Command: &command, Shared: true})
	a, b := r.start("a"), r.start("b")
	pid := string(a.call("pid", 0).Result)
	if other := string(b.call("pid", 0).Result); other != pid {
		t.Fatalf("processes %s and %s", pid, other)
	}
	b.send("hang", 0)
	b.call("echo", 0) // the server has what was sent before it
	a.send("kill", 0)
	a.ends("signal: killed", true)
	b.ends("signal: killed", true)
	a.returned()
	b.returned()
	r.warned("upstream ended unexpectedly", 2)
	again := r.start("a")
	if string(again.call("pid", 0).Result) == pid {
		t.Error("the same process")
	}
	again.Close()
	again.returned()
	if c := r.start("c"); string(c.call("pid", 0).Result) == pid {
		t.Error("the same process")
	}
}

// The process outlives its clients and ends with the host.
func TestSharedProcessEndsWithTheHost(t *testing.T) {
	t.Parallel()
	command := fakeCommand("ignores-eof", "ignores-term")
	command.StopGrace = time.Minute
	r := newRigOf(t, Upstream{Command: &command, Shared: true})
	c := r.start("a")
	var pid int
	fmt.Sscan(string(c.call("pid", 0).Result), &pid)
	c.Close()
	c.returned()
	if !alive(pid) {
		t.Fatal("the process ended with its client")
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	r.host.Stop(ctx)
	if syscall.Kill(pid, 0) == nil {
		t.Error("the process is still there")
	}
	if w := r.log.at(slog.LevelWarn); len(w) > 0 {
		t.Errorf("warnings: %v", w)
	}
}

// Force reaches a server that has been replaced and is still on its way out.
func TestSharedStopForcesWhatWasReplaced(t *testing.T) {
	t.Parallel()
	command := fakeCommand("ignores-eof", "ignores-term")
	command.StopGrace = time.Minute
	r := newRigOf(t, Upstream{Command: &command, Shared: true})
	c := r.start("a")
	c.send("close-stdout", 0)
	c.ends("stdout closed", true)
	c.returned()
	again := r.start("a")
	again.Close()
	again.returned()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r.host.Stop(ctx) // it does not wait for a minute
}

func TestSharedStopEndsClients(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a, b := w.start("a"), w.start("b")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		w.host.Stop(context.Background())
		a.ends(jsonrpc.CauseHostStopped.String(), true)
		b.ends(jsonrpc.CauseHostStopped.String(), false)
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,` + goneReason + `}}`)
		if s.end == nil {
			t.Error("the session was not closed")
		}
		if err := <-w.attach("c").done; err == nil {
			t.Error("a client was served after Stop")
		}
	})
}

// What clients have said last reaches the server before Stop ends it.
func TestSharedStopComesBehindFarewells(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		a.conn.Send(parse(t, `{"method":"vendor/bye"}`))
		a.conn.Close()
		<-a.done
		w.host.Stop(context.Background())
		s.hears(`{"method":"vendor/bye"}`, `{"method":"notifications/cancelled","params":{"requestId":2,`+goneReason+`}}`)
	})
}

// A client that does not read loses its own stream, and nobody else notices.
func TestSharedSlowClient(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"many": 10, "large": 256 << 10} {
		t.Run(name, func(t *testing.T) {
			inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
				w.host.Limits.Message = 4 << 20
				a, slow := w.start("a"), w.attachDeaf("slow")
				slow.say(`{"id":1,"method":"initialize","params":{}}`, `{"id":2,"method":"x","params":{"_meta":{"progressToken":1}}}`)
				s := w.server()
				s.heard()
				chunk := parse(t, `{"method":"notifications/progress","params":{"progressToken":2,"pad":"`+strings.Repeat("x", size)+`"}}`)
				for range maxOut + 200 {
					s.conn.Send(chunk)
					if size > 1000 && len(w.log.at(slog.LevelWarn)) > 0 {
						break
					}
				}
				synctest.Wait()
				s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,` + goneReason + `}}`)
				slow.listen()
				slow.ends("client too slow", true)
				if warned := w.log.at(slog.LevelWarn); len(warned) != 1 || warned[0]["session"] != "slow" {
					t.Errorf("warnings: %v", warned)
				}
				a.lives(s)
				again := w.start("slow")
				again.lives(s)
			})
		})
	}
}

// Several that do not read end one after the other, in the middle of what goes to
// all, and let go of what they had.
func TestSharedSlowClients(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"logging/setLevel","params":{"level":"error"}}`)
		s.say(`{"id":2,"result":{}}`)
		s.heard()
		var slow []*sharedClient
		for i := range 3 {
			c := w.attachDeaf(fmt.Sprint("slow", i))
			c.say(`{"id":1,"method":"initialize","params":{}}`, subscribeTo(2, "x:1"))
			slow = append(slow, c)
		}
		s.hears(`{"id":3,"method":"logging/setLevel","params":{"level":"info"}}`, `{"id":4,"method":"resources/subscribe","params":{"uri":"x:1"}}`)
		s.say(`{"id":3,"result":{}}`, `{"id":4,"result":{}}`)
		for range maxOut/1000 + 2 {
			for range 1000 {
				s.sayText(`{"method":"notifications/tools/list_changed"}`)
			}
			a.heard()
		}
		s.hears(`{"id":5,"method":"resources/unsubscribe","params":{"uri":"x:1"}}`, `{"id":6,"method":"logging/setLevel","params":{"level":"error"}}`)
		for _, c := range slow {
			c.listen()
			c.ends("client too slow", true)
		}
		a.lives(s)
	})
}

// A client that is not reading when the server ends is not waited for for ever.
func TestSharedDeafClientAtTheEnd(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.attachDeaf("a")
		a.say(`{"id":1,"method":"initialize","params":{}}`)
		s := w.server()
		for range 200 {
			s.sayText(`{"method":"notifications/tools/list_changed"}`)
		}
		synctest.Wait()
		began := time.Now()
		s.die("exit status 1")
		<-a.done
		if d := time.Since(began); d != flushTime {
			t.Errorf("ended after %v", d)
		}
		a.listen()
		a.ends("exit status 1", false)
	})
}

func TestSharedDeafClientAtAForcedStop(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.attachDeaf("a")
		a.say(`{"id":1,"method":"initialize","params":{}}`)
		s := w.server()
		for range 200 {
			s.sayText(`{"method":"notifications/tools/list_changed"}`)
		}
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		began := time.Now()
		w.host.Stop(ctx)
		if d := time.Since(began); d > 0 {
			t.Errorf("stopped after %v", d)
		}
		a.listen()
	})
}

// A half-close is an end.
func TestSharedHalfClose(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		a := w.start("a")
		s := w.server()
		a.say(`{"id":1,"method":"x"}`)
		s.heard()
		a.conn.CloseWrite()
		<-a.done
		s.hears(`{"method":"notifications/cancelled","params":{"requestId":2,` + goneReason + `}}`)
	})
}

// What the inner stream says of an unusable answer is that call's.
func TestD43_SharedUnusableAnswer(t *testing.T) {
	command := fakeCommand()
	r := newRigOf(t, Upstream{Command: &command, Shared: true})
	a, b := r.start("a"), r.start("b")
	if m := a.call("broken", 0); !strings.Contains(string(m.Error), jsonrpc.ReasonInvalidResponse) {
		t.Errorf("got %s", m.Append(nil))
	}
	b.call("echo", 0)
}

// A client that comes when its upstream was replaced gets the new server at once, even if the old one does not read
// and so takes long to end.
func TestReplacedWhileDeaf(t *testing.T) {
	for _, idle := range []time.Duration{0, time.Hour} {
		inSharedWorld(t, Upstream{IdleStop: idle}, func(w *sharedWorld) {
			a, deaf := w.start("a"), make(chan struct{})
			reads := sync.OnceFunc(func() { close(deaf) })
			defer reads()
			w.server().hand = func(*jsonrpc.Message) { <-deaf }
			large := parse(t, `{"method":"large","params":{"a":"`+strings.Repeat("x", 1<<20)+`"}}`)
			go func() {
				for range 16 {
					_ = a.conn.Send(large)
				}
			}()
			synctest.Wait()
			w.host.Replace(map[string]Upstream{"u": {Shared: true, Dial: w.dial, IdleStop: idle}}, []string{"u"})
			began := time.Now()
			w.start("b").lives(w.server())
			if took := time.Since(began); took != 0 {
				t.Errorf("the new server was there after %v", took)
			}
			reads()
			a.ends("upstream changed", false)
		})
	}
}
