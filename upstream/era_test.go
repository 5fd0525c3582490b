//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A toldBridge ends what it is given with the name of the method.
type toldBridge struct{ unattributed atomic.Int32 }

func (b *toldBridge) Unattributed(string) { b.unattributed.Add(1) }

func (b *toldBridge) Legacy(_ context.Context, _, _ string, c jsonrpc.Conn) error {
	return b.end(c, "bridged from legacy")
}

func (b *toldBridge) Modern(_ context.Context, _, _ string, c jsonrpc.Conn) error {
	return b.end(c, "bridged from modern")
}

func (b *toldBridge) end(c jsonrpc.Conn, cause string) error {
	err := &jsonrpc.ClosedError{Cause: jsonrpc.ParseCause(cause), Event: jsonrpc.NewEvent()}
	jsonrpc.CloseWith(c, err)
	return err
}

const hello = `{"id":1,"method":"initialize","params":{}}`

// A prober answers Upstream.Probe.
type prober struct {
	modern atomic.Bool
	fails  atomic.Bool
	asked  atomic.Int32
	takes  time.Duration
	other  atomic.Pointer[mcp.VersionError]
}

func (p *prober) probe(ctx context.Context) (bool, error) {
	p.asked.Add(1)
	select {
	case <-time.After(p.takes):
	case <-ctx.Done():
		return false, ctx.Err()
	}
	if p.fails.Load() {
		return false, &jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused, Delivered: true}
	}
	if other := p.other.Load(); other != nil {
		return false, other
	}
	return p.modern.Load(), nil
}

// inProbedWorld runs test with a remote upstream of unknown era.
func inProbedWorld(t *testing.T, test func(w *sharedWorld, p *prober)) {
	p := &prober{}
	inWorld(t, &sharedWorld{welcome: welcome, discover: modernDiscover}, Upstream{Probe: p.probe}, func(w *sharedWorld) {
		w.host.Bridge = &toldBridge{}
		test(w, p)
	})
}

func TestModernClientOfAModernServer(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		p.modern.Store(true)
		for i := range 3 {
			w.attachIn(fmt.Sprint(i), mcp.Modern).lives(w.server())
		}
		if p.asked.Load() != 1 || len(w.servers) != 1 {
			t.Errorf("%d probes, %d sessions", p.asked.Load(), len(w.servers))
		}
		if st := w.host.Status(); len(st) != 1 || !slices.Equal(st[0].Speaks, []mcp.Era{mcp.Modern}) {
			t.Errorf("status %+v", st)
		}
	})
}

// However many come at once, the server is asked once; not being modern is believed
// for a while only.
func TestModernClientOfALegacyServer(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		p.takes = time.Second
		for i := range 8 {
			w.attachIn(fmt.Sprint(i), mcp.Modern)
		}
		time.Sleep(p.takes)
		for _, c := range w.clients {
			c.ends("bridged from modern", false)
		}
		time.Sleep(believed - time.Second)
		w.attachIn("later", mcp.Modern).ends("bridged from modern", false)
		if p.asked.Load() != 1 {
			t.Errorf("%d probes", p.asked.Load())
		}
		time.Sleep(time.Second)
		p.modern.Store(true)
		c := w.attachIn("last", mcp.Modern)
		time.Sleep(p.takes)
		c.lives(w.server())
	})
}

// What could not be told is not remembered, and the stream has not been delivered.
func TestModernClientOfAServerOutOfReach(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		p.fails.Store(true)
		w.attachIn("a", mcp.Modern).ends("connection refused", false)
		p.fails.Store(false)
		p.modern.Store(true)
		w.attachIn("b", mcp.Modern).lives(w.server())
	})
}

// A client that leaves, or is forced to, does not wait for a probe; the end of the
// host is that of the probe.
func TestProbeIsNotWaitedFor(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		p.takes = time.Hour
		a := w.attachIn("a", mcp.Modern)
		synctest.Wait()
		a.cancel(nil)
		a.ends(jsonrpc.CauseHostStopped.String(), false)
		b := w.attachIn("b", mcp.Modern)
		synctest.Wait()
		began := time.Now()
		w.host.Stop(context.Background())
		b.ends(jsonrpc.CauseConnectionLost.String(), false)
		if d := time.Since(began); d > 0 {
			t.Errorf("the host stopped after %v", d)
		}
	})
}

// A legacy client is tried in its own era; only if that is refused, the server is
// asked for the other one, and the stream ends as if it had never been.
func TestLegacyClientOfAModernServer(t *testing.T) {
	for name, refuse := range map[string]func(*sharedServer){
		"refuses": func(s *sharedServer) { s.say(`{"id":1,"error":{"code":-32601,"message":"Method not found"}}`) },
		"odd":     func(s *sharedServer) { s.say(`{"id":1,"result":"hello"}`) },
		"leaves":  func(s *sharedServer) { s.die("HTTP 404") },
	} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprint(name, shared), func(t *testing.T) {
				inProbedWorld(t, func(w *sharedWorld, p *prober) {
					up := w.host.Upstreams["u"]
					up.Shared = shared
					w.host.Upstreams["u"] = up
					w.welcome = ""
					p.modern.Store(true)
					for range 2 { // who came first finds it out for all
						w.attachIn(fmt.Sprint("c", len(w.clients)), mcp.Legacy).say(hello)
					}
					for _, s := range w.sessions() {
						refuse(s)
					}
					for _, c := range w.clients {
						c.ends("bridged from legacy", false)
						c.hears()
					}
					w.attachIn("again", mcp.Legacy).ends("bridged from legacy", false)
					w.attachIn("modern", mcp.Modern).lives(w.server())
					if warned, told := w.log.at(slog.LevelWarn), w.log.at(slog.LevelInfo); len(warned) != 0 || len(told) != 1 {
						t.Errorf("warnings %v, info %v", warned, told)
					}
					if p.asked.Load() != 1 {
						t.Errorf("%d probes", p.asked.Load())
					}
					if i := slices.IndexFunc(w.host.Status(), func(st Status) bool { return st.Failures > 0 }); i >= 0 {
						t.Errorf("status %+v", w.host.Status()[i])
					}
				})
			})
		}
	}
}

// D21: that a client leaves while the server is asked is no failure of anybody.
func TestD21_LeavesWhileTheEraIsFound(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		p.takes, w.welcome = time.Second, ""
		p.modern.Store(true)
		a := w.attachIn("a", mcp.Legacy)
		a.say(hello)
		w.server().say(`{"id":1,"error":{"code":-32601,"message":"Method not found"}}`)
		a.leave()
		if warned := w.log.at(slog.LevelWarn); len(warned) != 0 || p.asked.Load() != 1 {
			t.Errorf("%d probes, warnings %v", p.asked.Load(), warned)
		}
	})
}

func (w *sharedWorld) sessions() []*sharedServer {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.servers)
}

// Without a bridge there is nobody who translates.
func TestWrongEra(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		w.host.Bridge = nil
		w.attachIn("a", mcp.Modern).ends(jsonrpc.CauseWrongEra.String(), false)
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			w.host.Replace(map[string]Upstream{"u": {Era: era, Dial: w.dial, DialModern: w.dial}}, []string{"u"})
			w.attachIn("b", era.Other()).ends(jsonrpc.CauseWrongEra.String(), false)
			w.host.Replace(map[string]Upstream{"u": {Era: era}}, []string{"u"})
			w.attachIn("c", era).ends(jsonrpc.CauseWrongEra.String(), false)
		}
		if len(w.servers) != 0 {
			t.Errorf("%d sessions", len(w.servers))
		}
	})
}

// A stream that waits for a probe when its upstream is replaced is refused: it reaches neither what was replaced, which
// nobody would end, nor what has replaced it.
func TestReplacedWhileProbed(t *testing.T) {
	for name, relates := range map[string]bool{"one session": false, "a session for each stream": true} {
		t.Run(name, func(t *testing.T) {
			for _, modern := range []bool{true, false} {
				inProbedWorld(t, func(w *sharedWorld, p *prober) {
					p.modern.Store(modern)
					p.takes = time.Second
					old := w.host.Upstreams["u"]
					old.Relates = relates
					w.host.Replace(map[string]Upstream{"u": old}, []string{"u"})
					waiting := w.attachIn("a", mcp.Modern)
					waiting.say(`{"id":1,"method":"tools/call","params":{"name":"x"}}`)
					next := &sharedWorld{t: w.t, log: w.log, discover: modernDiscover}
					w.host.Replace(map[string]Upstream{"u": {Era: mcp.Modern, Relates: relates, Dial: next.dial, DialModern: next.dial}}, []string{"u"})
					later := w.attachIn("b", mcp.Modern)
					later.lives(next.server())
					time.Sleep(p.takes)
					waiting.ends("upstream changed", false)
					w.attachIn("c", mcp.Modern).lives(next.server())
					if n := len(w.sessions()); n != 0 {
						t.Errorf("%d sessions with what was replaced", n)
					}
					for _, s := range next.sessions() {
						s.hears()
					}
				})
			}
		})
	}
}

// A legacy server that refuses initialize is told of as it is.
func TestLegacyRefusalOfALegacyServer(t *testing.T) {
	const refusal = `{"id":1,"error":{"code":-1,"message":"no"}}`
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		w.welcome = ""
		for range 2 {
			c := w.attachIn("a", mcp.Legacy)
			c.say(hello)
			w.server().say(refusal)
			c.hears(refusal)
			c.leave()
		}
		if warned := w.log.at(slog.LevelWarn); len(warned) != 2 || warned[0]["cause"] != jsonrpc.CauseRefused.String() || p.asked.Load() != 1 {
			t.Errorf("%d probes, warnings %v", p.asked.Load(), warned)
		}
		time.Sleep(doubted) // neither of the eras: it may be down rather than old
		c := w.attachIn("b", mcp.Modern)
		c.ends("bridged from modern", false)
		if p.asked.Load() != 2 {
			t.Errorf("%d probes", p.asked.Load())
		}
	})
}

// The end of a stream to a server of other versions names them, from the probe or from the refusal itself, but not if the
// server speaks the legacy era even so.
func TestServerOfOtherVersions(t *testing.T) {
	const refusal, versions = `{"id":1,"error":{"code":-1,"message":"no"}}`, `{"id":1,"error":{"code":-32022,"message":"no","data":{"supported":["2032-01-01"]}}}`
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		w.welcome = ""
		refuses := func(name, with, says string) {
			t.Helper()
			c := w.attachIn(name, mcp.Legacy)
			c.say(hello)
			w.server().say(with)
			c.hears(with)
			c.ends(jsonrpc.CauseRefused.String(), false)
			warned := w.log.at(slog.LevelWarn)
			why, _ := warned[len(warned)-1]["why"].(string)
			if end, _ := errors.AsType[*jsonrpc.ClosedError](c.end); end.Says != says || why != says {
				t.Errorf("%s: %q, in the log %q, want %q", name, end.Says, why, says)
			}
		}
		refuses("a", versions, "speaks only 2032-01-01, and this proxy speaks 2024-11-05 to 2026-07-28")
		p.other.Store(mcp.OtherVersions(&jsonrpc.Message{Result: json.RawMessage(`{"supportedVersions":["2031-01-01"]}`)}))
		time.Sleep(believed)
		refuses("b", refusal, "speaks only 2031-01-01, and this proxy speaks 2024-11-05 to 2026-07-28")
		c := w.attachIn("c", mcp.Legacy)
		c.say(hello)
		w.server().say(`{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
		c.leave()
		p.other.Store(nil)
		refuses("d", refusal, "")
	})
}

// Another proxy speaks both eras, also while it has no upstream that could answer.
func TestProxyWithoutItsUpstreamIsNotOfTheOtherEra(t *testing.T) {
	const lost = `{"id":1,"error":{"code":-32603,"message":"Connection closed","data":{"reason":"connection_closed","phase":"not_sent","retryable":true}}}`
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		w.welcome = ""
		p.modern.Store(true)
		a := w.attachIn("a", mcp.Legacy)
		a.say(hello)
		w.server().say(lost)
		a.hears(lost)
		a.leave()
		w.welcome = welcome
		b := w.attachIn("b", mcp.Legacy)
		b.say(hello)
		b.hears(`{"id":1,` + welcome + `}`)
		if p.asked.Load() != 0 {
			t.Errorf("%d probes", p.asked.Load())
		}
	})
}

// A server of both eras serves each client in its own, and a start that fails says
// nothing about that.
func TestServerOfBothEras(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		p.modern.Store(true)
		a := w.attachIn("a", mcp.Legacy)
		a.say(hello)
		a.hears(`{"id":1,` + welcome + `}`)
		a.lives(w.server())
		w.attachIn("b", mcp.Modern).lives(w.server())
		if st := w.host.Status(); len(st) != 2 || !slices.Equal(st[0].Speaks, []mcp.Era{mcp.Legacy, mcp.Modern}) {
			t.Errorf("status %+v", st)
		}
		w.welcome = ""
		c := w.attachIn("c", mcp.Legacy)
		c.say(hello)
		w.server().die("HTTP 502")
		c.ends("HTTP 502", false)
		w.welcome = welcome
		d := w.attachIn("d", mcp.Legacy)
		d.say(hello)
		d.hears(`{"id":1,` + welcome + `}`)
	})
}

// A server that cannot be reached is not asked for its era.
func TestStartFailureIsNoSign(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		w.dialErr = &jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused}
		c := w.attachIn("a", mcp.Legacy)
		c.say(hello)
		c.ends("connection refused", false)
		if p.asked.Load() != 0 {
			t.Errorf("%d probes", p.asked.Load())
		}
	})
}

// What is remembered of a server is forgotten when it is another one.
func TestReplaceForgetsTheEra(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		p.modern.Store(true)
		a := w.attachIn("a", mcp.Modern)
		a.lives(w.server())
		p.modern.Store(false)
		w.host.Replace(w.host.Upstreams, []string{"u"})
		a.ends(jsonrpc.CauseChanged.String(), true)
		w.attachIn("b", mcp.Modern).ends("bridged from modern", false)
	})
}

// A hookedContext calls a function the first time that it is asked whether it has ended.
type hookedContext struct {
	context.Context
	hook func()
}

func (c hookedContext) Err() error {
	c.hook()
	return c.Context.Err()
}

// A stream that is attached just as its upstream is replaced ends like the others: nothing is left with what was
// replaced.
func TestReplacedWhileAttached(t *testing.T) {
	for _, shared := range []bool{true, false} {
		t.Run(fmt.Sprintf("shared %v", shared), func(t *testing.T) {
			inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
				next := &sharedWorld{t: w.t, log: w.log, welcome: welcome}
				old := w.host.Upstreams["u"]
				old.Shared = shared
				w.host.Replace(map[string]Upstream{"u": old}, []string{"u"})
				replaced := sync.OnceFunc(func() {
					w.host.Replace(map[string]Upstream{"u": {Shared: shared, Dial: next.dial}}, []string{"u"})
				})
				near, far := jsonrpc.Pipe()
				a := &sharedClient{w: w, name: "a", conn: near, done: make(chan error, 1)}
				w.clients = append(w.clients, a)
				a.listen()
				go func() {
					a.done <- attach(hookedContext{context.Background(), replaced}, w.host, "u", "a", mcp.Legacy, far)
					close(a.done)
				}()
				a.ends("upstream changed", false)
				w.start("b").lives(next.server())
				if n := len(w.sessions()); shared && n != 0 {
					t.Errorf("%d sessions with what was replaced", n)
				}
			})
		})
	}
}

// A server that has changed its mind while nobody looked is asked again.
func TestStaleModernVerdict(t *testing.T) {
	for name, then := range map[string]func(*sharedWorld){
		"refuses": func(w *sharedWorld) { w.server().say(`{"id":1,"error":{"code":-32601,"message":"Method not found"}}`) },
		"exits":   func(w *sharedWorld) { w.server().die("exit status 1") },
	} {
		t.Run(name, func(t *testing.T) {
			inProbedWorld(t, func(w *sharedWorld, p *prober) {
				p.modern.Store(true)
				w.attachIn("a", mcp.Modern).leave()
				time.Sleep(modernIdle)
				synctest.Wait()
				p.modern.Store(false)
				w.discover = ""
				b := w.attachIn("b", mcp.Modern)
				b.say(`{"id":1,"method":"tools/call"}`)
				then(w)
				if name == "refuses" {
					b.ends("bridged from modern", false)
				} else {
					b.ends("exit status 1", false)
				}
				w.attachIn("c", mcp.Modern).ends("bridged from modern", false)
			})
		})
	}
}

// Open is Attach without a question.
func TestOpen(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			var reader sync.WaitGroup
			ctx, cancel := context.WithCancel(context.Background())
			c := w.host.Open(ctx, "u", "key", era)
			c.Send(parse(t, `{"id":5,"method":"x"}`))
			if s := w.server(); len(s.heard()) != 1 {
				t.Errorf("%s: the server got nothing", era)
			}
			reader.Go(func() {
				if _, err := c.Recv(); !errors.Is(err, jsonrpc.ErrClosed) {
					t.Errorf("%s: received %v", era, err)
				}
			})
			cancel()
			reader.Wait()
			c.Close()
		}
		c := w.host.Open(context.Background(), "nobody", "key", mcp.Legacy)
		var closed *jsonrpc.ClosedError
		if _, err := c.Recv(); !errors.As(err, &closed) || closed.Delivered {
			t.Errorf("received %v", err)
		}
		if p.asked.Load() != 0 {
			t.Errorf("%d probes", p.asked.Load())
		}
	})
}

// A server without sessions can ask a legacy client nothing, but a modern one. A client that nobody can ask keeps
// its own era, whoever came before.
func TestSessionlessServer(t *testing.T) {
	const asked = `{"id":1,"method":"initialize","params":{"capabilities":{"sampling":{}}}}`
	for _, modern := range []bool{true, false} {
		inProbedWorld(t, func(w *sharedWorld, p *prober) {
			p.modern.Store(modern)
			up := w.host.Upstreams["u"]
			dial := up.Dial
			up.Dial = func(ctx context.Context) (jsonrpc.Conn, error) {
				c, err := dial(ctx)
				return withoutSession{c}, err
			}
			w.host.Upstreams["u"] = up
			for _, name := range []string{"a", "b"} {
				a := w.attachIn(name, mcp.Legacy)
				a.say(asked)
				if modern {
					a.ends("bridged from legacy", false)
				} else if len(a.heard()) != 1 {
					t.Error("initialize is not answered")
				}
				own := w.attachIn("own "+name, mcp.Legacy)
				own.say(hello)
				if len(own.heard()) != 1 {
					t.Error("initialize of the client that cannot be asked is not answered")
				}
			}
		})
	}
}

type withoutSession struct{ jsonrpc.Conn }

func (withoutSession) Sessionless() bool { return true }

// A server that answered initialize once and refuses it now is another one.
func TestStaleLegacyVerdict(t *testing.T) {
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		w.attachIn("m", mcp.Modern).ends("bridged from modern", false)
		a := w.attachIn("a", mcp.Legacy)
		a.say(hello)
		a.heard()
		a.leave()
		p.modern.Store(true)
		w.welcome = ""
		b := w.attachIn("b", mcp.Legacy)
		b.say(hello)
		w.server().say(`{"id":1,"error":{"code":-32601,"message":"Method not found"}}`)
		b.ends("bridged from legacy", false)
		w.attachIn("c", mcp.Legacy).ends("bridged from legacy", false)
	})
}
