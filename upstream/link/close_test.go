package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// wantEnd receives until the end of c and checks it, twice, and that Send fails.
func wantEnd(t *testing.T, c jsonrpc.Conn, cause string, delivered bool) {
	t.Helper()
	for range 2 {
		var err error
		for err == nil {
			_, err = c.Recv()
		}
		var end *jsonrpc.ClosedError
		if !errors.As(err, &end) || !errors.Is(err, jsonrpc.ErrClosed) || end.Cause.String() != cause || end.Delivered != delivered {
			t.Errorf("Recv returned %v, want cause %q, delivered %v", err, cause, delivered)
		}
	}
	if err := c.Send(numbered(0)); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send after the end: %v, want ErrClosed", err)
	}
	if err := jsonrpc.SendAll(c, []*jsonrpc.Message{numbered(0)}); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("SendAll after the end: %v, want ErrClosed", err)
	}
}

func numbered(n int) *jsonrpc.Message {
	return jsonrpc.NewResult(jsonrpc.IntID(int64(n)), []byte(`{"ok":true}`))
}

// padded returns a message of about size bytes.
func padded(size int) *jsonrpc.Message {
	return jsonrpc.NewNotification("n", []byte(`["`+strings.Repeat("x", size)+`"]`))
}

// noStreams waits until yamux holds no stream at either end.
func noStreams(t *testing.T, links ...*link) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for _, l := range links {
		for l.y.NumStreams() > 0 {
			if time.Now().After(deadline) {
				t.Fatalf("%d streams are left", l.y.NumStreams())
			}
			time.Sleep(time.Millisecond) // yamux tells nobody
		}
	}
}

// current returns the link of a client.
func current(t testing.TB, c *Client) *link {
	l, err := c.current.await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestEnds is the grid of who ends a stream, and how, and what each side hears.
func TestEnds(t *testing.T) {
	killed := &jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Delivered: true}
	unsent := &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
	type ends struct {
		p          *pair
		near, far  jsonrpc.Conn
		returnWith chan error // ends the handler
	}
	tests := []struct {
		name       string
		end        func(e ends)
		near, far  string // what each side hears
		unsent     bool   // near hears that nothing was delivered
		linkIsGone bool
	}{
		{"the proxy closes", func(e ends) { e.near.Close() }, "closed", "closed", false, false},
		{"the proxy closes with a cause", func(e ends) { jsonrpc.CloseWith(e.near, killed) }, "closed", "closed", false, false},
		{"the host closes", func(e ends) { e.far.Close() }, "closed", "closed", false, false},
		{"the host closes with a cause", func(e ends) { jsonrpc.CloseWith(e.far, killed) }, "signal: killed", "signal: killed", false, false},
		{"the host closes twice", func(e ends) { jsonrpc.CloseWith(e.far, killed); e.far.Close(); jsonrpc.CloseWith(e.far, unsent) }, "signal: killed", "signal: killed", false, false},
		{"the host closes with another error", func(e ends) { jsonrpc.CloseWith(e.far, errors.New("secret")) }, "closed", "closed", false, false},
		{"the handler returns a cause", func(e ends) { e.returnWith <- fmt.Errorf("attach: %w", unsent) }, "start failed", "start failed", true, false},
		{"the handler returns nothing", func(e ends) { e.returnWith <- nil }, "closed", "closed", false, false},
		{"the server is stopped", func(e ends) { e.p.stop() }, "stopped", "stopped", false, true},
		{"the proxy's carrier is cut", func(e ends) { e.p.near.Close() }, "link lost", "link lost", false, true},
		{"the host's carrier is cut", func(e ends) { e.p.far.Close() }, "link lost", "link lost", false, true},
	}
	for _, tt := range tests {
		for _, blocked := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/blocked=%v", tt.name, blocked), func(t *testing.T) {
				conns, returnWith := make(chan jsonrpc.Conn, 1), make(chan error, 1)
				p := join(t, &Client{}, &Server{Handle: handled(func(ctx context.Context, _ Hello, c jsonrpc.Conn) error {
					conns <- c
					select {
					case err := <-returnWith:
						return err
					case <-ctx.Done():
						return &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("stopped"), Delivered: true}
					}
				})})
				e := ends{p, open(t, p.client), await(t, conns), returnWith}
				l := current(t, p.client)
				hear := func() {
					var wg sync.WaitGroup
					wg.Go(func() { wantEnd(t, e.near, tt.near, !tt.unsent) })
					wg.Go(func() { wantEnd(t, e.far, tt.far, !tt.unsent) })
					wg.Wait()
				}
				if blocked {
					var wg sync.WaitGroup
					wg.Go(hear)
					tt.end(e)
					wg.Wait()
				} else {
					tt.end(e)
					hear()
				}
				if !tt.linkIsGone {
					onlyControl(t, l)
				}
			})
		}
	}
}

// TestClosingLineComesLast checks that whatever was sent before the closing line
// arrives before it. Run often, since the close overtakes if it can.
func TestClosingLineComesLast(t *testing.T) {
	const count = 50
	p := join(t, &Client{}, &Server{Handle: handled(func(_ context.Context, _ Hello, c jsonrpc.Conn) error {
		for n := range count {
			if err := c.Send(numbered(n)); err != nil {
				return err
			}
		}
		return &jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(3), Delivered: true}
	})})
	for range 200 {
		c := open(t, p.client)
		for want := range count {
			m, err := c.Recv()
			if err != nil || m.ID != jsonrpc.IntID(int64(want)) {
				t.Fatalf("message %d: %v, %v", want, m, err)
			}
		}
		wantEnd(t, c, "exit status 3", true)
	}
	onlyControl(t, current(t, p.client))
}

// TestCloseWhileBothSend closes streams whose two windows are full: nobody may
// stay blocked in Send, as long as both receive.
func TestCloseWhileBothSend(t *testing.T) {
	for _, who := range []string{"proxy", "host"} {
		t.Run(who, func(t *testing.T) {
			handle, conns := handOver()
			p := join(t, &Client{}, &Server{Handle: handle})
			near := open(t, p.client)
			far := await(t, conns)
			big := padded(3 << 20)
			var wg sync.WaitGroup
			started := make(chan struct{}, 2)
			for _, c := range []jsonrpc.Conn{near, far} {
				wg.Go(func() {
					started <- struct{}{}
					for err := error(nil); err == nil; {
						err = c.Send(big)
					}
				})
			}
			await(t, started)
			await(t, started)
			if who == "proxy" {
				near.Close()
			} else {
				far.Close()
			}
			for _, c := range []jsonrpc.Conn{near, far} {
				wg.Go(func() {
					for err := error(nil); err == nil; {
						if _, err = c.Recv(); errors.As(err, new(*jsonrpc.InvalidError)) {
							err = nil
						}
					}
				})
			}
			wg.Wait()
			onlyControl(t, current(t, p.client))
		})
	}
}

// TestRaces lets everything that can end a stream happen at once, 200 times.
func TestRaces(t *testing.T) {
	for range 200 {
		p := join(t, &Client{current: currentLink{blip: time.Millisecond}}, &Server{Handle: racing(t)})
		current(t, p.client)
		race(t, p.client.Open, func() { p.far.Close() }, func() { p.near.Close() }, p.stop)
	}
}

// racing returns a host that sends, receives and perhaps closes, all at once.
func racing(t *testing.T) Handler {
	return handled(func(_ context.Context, _ Hello, c jsonrpc.Conn) error {
		var wg sync.WaitGroup
		wg.Go(func() { untilClosed(t, func() error { return c.Send(numbered(1)) }) })
		wg.Go(func() { untilClosed(t, func() error { _, err := c.Recv(); return err }) })
		maybe(func() { jsonrpc.CloseWith(c, &jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(0)}) })
		maybe(func() { c.Close() })
		wg.Wait()
		return errClosed
	})
}

// race does the same at the proxy's end of four streams, while some of ends may happen.
func race(t *testing.T, open func(context.Context, Hello) (jsonrpc.Conn, error), ends ...func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c, err := open(t.Context(), hello)
			if err != nil {
				if !errors.Is(err, jsonrpc.ErrClosed) {
					t.Errorf("Open: %v, want ErrClosed", err)
				}
				return
			}
			wg.Go(func() { untilClosed(t, func() error { return c.Send(numbered(1)) }) })
			wg.Go(func() { untilClosed(t, func() error { _, err := c.Recv(); return err }) })
			maybe(func() { c.Close() })
			maybe(func() { c.Close() })
			<-ctx.Done()
			c.Close()
		})
	}
	for _, end := range ends {
		maybe(end)
	}
	cancel()
	wg.Wait()
}

func untilClosed(t *testing.T, do func() error) {
	for {
		err := do()
		switch {
		case errors.Is(err, jsonrpc.ErrClosed):
			return
		case err != nil:
			t.Errorf("%v, want ErrClosed", err)
			return
		}
	}
}

// maybe runs fn, or not.
func maybe(fn func()) {
	if rand.IntN(3) == 0 {
		fn()
	}
}

// TestSlowProxy reads what a host sent only when yamux, had the host closed its
// stream, would long have forgotten it.
func TestSlowProxy(t *testing.T) {
	config := newConfig(orDiscard(nil))
	config.StreamCloseTimeout = 50 * time.Millisecond
	near, far := rawPair(t, config)
	for n := range 500 {
		if err := far.Send(numbered(n)); err != nil {
			t.Fatal(err)
		}
	}
	far.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(3), Delivered: true})
	time.Sleep(4 * config.StreamCloseTimeout) // for what must not happen
	for n := range 500 {
		if _, err := near.Recv(); err != nil {
			t.Fatalf("message %d: %v", n, err)
		}
	}
	wantEnd(t, near, "exit status 3", true)
	noStreams(t, near.stream.link, far.stream.link)
}

// TestUnreadProxy closes towards a proxy that only sends: it gets closeTimeout.
func TestUnreadProxy(t *testing.T) {
	config := newConfig(orDiscard(nil))
	config.StreamCloseTimeout = 10 * time.Millisecond
	near, far := rawPair(t, config)
	far.Close()
	untilClosed(t, func() error { return near.Send(numbered(1)) })
	noStreams(t, near.stream.link, far.stream.link)
}

// rawPair returns both ends of one stream, without a Client and a Server.
func rawPair(t *testing.T, config *yamux.Config) (*conn, *conn) {
	a, b := net.Pipe()
	return rawPairOver(t, config, a, b)
}

func rawPairOver(t *testing.T, config *yamux.Config, a, b net.Conn) (*conn, *conn) {
	nearLink, err := newLink(a, yamux.Client, config)
	if err != nil {
		t.Fatal(err)
	}
	hostLink, err := newLink(b, yamux.Server, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nearLink.close(nil)
		hostLink.close(nil)
	})
	near, err := nearLink.y.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	far, err := hostLink.y.AcceptStream()
	if err != nil {
		t.Fatal(err)
	}
	host := newConn(hostLink, far, jsonrpc.Limits{})
	host.host = true
	return newConn(nearLink, near, jsonrpc.Limits{}), host
}
