package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// dying makes the next n streams end like those of a server that crashes at its start. It returns
// how many streams there were.
func (w *world) dying(n int) (opened func() int) {
	return w.ending(func(stream int) *jsonrpc.ClosedError {
		if stream > n {
			return nil
		}
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
	})
}

// ending ends the streams that how selects, at once. They count from 1.
func (w *world) ending(how func(stream int) *jsonrpc.ClosedError) (opened func() int) {
	streams := 0
	w.proxy.Dial = DialFunc(func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error) {
		c, err := w.open(ctx, upstream, key, era)
		w.mu.Lock()
		defer w.mu.Unlock()
		streams++
		if end := how(streams); end != nil {
			of := w.conns[stream(upstream, era)]
			of[len(of)-1].conn.CloseCause(end)
		}
		return c, err
	})
	return func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return streams
	}
}

// A sole upstream that cannot start has no capabilities: after two starts the client gets the
// error, and may try again.
func TestSoleUpstreamCannotStart(t *testing.T) {
	inEras(t, &Router{}, []string{"a"}, func(w *world) {
		for _, c := range []struct {
			dies, opened int
			ok           bool
		}{{2, 2, false}, {1, 2, true}} {
			w.leave()
			w.connect()
			opened := w.dying(c.dies)
			d, got := w.took(w.hello())
			wantTook(t, "the answer", d, 0)
			if want := cc(0, -32603, "a", "start failed", "not_sent"); c.ok != strings.Contains(got, `"result"`) || !c.ok && got != want {
				t.Errorf("%d deaths: got %s", c.dies, got)
			}
			if n := opened(); n != c.opened {
				t.Errorf("%d deaths: %d starts", c.dies, n)
			}
		}
	})
}

// An error that another start cannot fix is reported at once.
func TestSoleUpstreamIsMissing(t *testing.T) {
	inEras(t, &Router{}, []string{"a"}, func(w *world) {
		w.leave()
		w.connect()
		opened := w.ending(func(int) *jsonrpc.ClosedError {
			return &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("command not found"), Lasting: true}
		})
		if _, got := w.took(w.hello()); !strings.Contains(got, "command not found") || opened() != 1 {
			t.Errorf("got %s after %d starts", got, opened())
		}
	})
}

// During a back-off a host ends all streams with one event. The session waits for its end, but not
// for ever.
func TestSoleUpstreamInBackOff(t *testing.T) {
	for _, c := range []struct {
		lasts, took time.Duration
		ok          bool
	}{{3 * time.Second, 3 * time.Second, true}, {time.Minute, 8*time.Second - lookAgain, false}} {
		inEras(t, &Router{}, []string{"a"}, func(w *world) {
			w.leave()
			w.connect()
			began := time.Now()
			w.ending(func(int) *jsonrpc.ClosedError {
				if time.Since(began) >= c.lasts {
					return nil
				}
				return &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Event: "e1"}
			})
			d, got := w.took(w.hello())
			if wantTook(t, "the answer", d, c.took); strings.Contains(got, `"result"`) != c.ok {
				t.Error("got", got)
			}
		})
	}
}

// After such an error the client may initialize again, and earlier messages do not count.
func TestInitializeAgain(t *testing.T) {
	inWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.leave()
		w.connect()
		w.dying(2)
		w.took(w.hello())
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"Invalid request: not initialized"}}`)
		if _, got := w.took(w.hello()); !strings.Contains(got, `"serverInfo":{"name":"a"`) {
			t.Error("the second initialize got", got)
		}
		if _, got := w.took(w.hello()); !strings.Contains(got, "already initialized") {
			t.Error("the third initialize got", got)
		}
	})
}

// An upstream whose link is down, or that is slow, may still offer anything.
func TestSoleUpstreamAway(t *testing.T) {
	inEras(t, &Router{}, []string{"a"}, func(w *world) {
		w.leave()
		w.dial["a"] = &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}
		w.connect()
		d, got := w.took(w.hello())
		if wantTook(t, "the answer", d, 0); !strings.Contains(got, `"completions":{}`) {
			t.Error("without a link:", got)
		}
		w.leave()
		delete(w.dial, "a")
		w.silent("a", "")
		w.connect()
		d, got = w.took(w.hello())
		if wantTook(t, "the answer", d, 8*time.Second); !strings.Contains(got, `"completions":{}`) {
			t.Error("while it starts:", got)
		}
	})
}

// Among several upstreams, one that cannot start costs the others nothing.
func TestOneOfSeveralCannotStart(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.leave()
		w.connect()
		w.dying(1)
		if _, got := w.took(w.hello()); !strings.Contains(got, `"completions":{}`) {
			t.Error("got", got)
		}
	})
}

// A start that may help is tried again, at most twice; waiting for a back-off does not count as a
// start.
func TestFailedStarts(t *testing.T) {
	wire := func(retryable bool, event string) []byte {
		return fmt.Appendf(nil, `{"code":-32603,"message":"m","data":{"reason":"connection_closed","retryable":%v,"event":%q}}`, retryable, event)
	}
	var lasting failedStarts
	if _, again := lasting.next(wire(false, "a")); again {
		t.Error("tried again though it is not retryable")
	}
	var t2 failedStarts
	for i, step := range []struct {
		event string
		pause time.Duration
		again bool
	}{{"a", 0, true}, {"a", lookAgain, true}, {"a", lookAgain, true}, {"b", 0, false}} {
		if pause, again := t2.next(wire(true, step.event)); pause != step.pause || again != step.again {
			t.Errorf("step %d: %v %v", i, pause, again)
		}
	}
	var nameless failedStarts
	_, first := nameless.next(wire(true, ""))
	if _, second := nameless.next(wire(true, "")); !first || second {
		t.Error("without events:", first, second)
	}
}
