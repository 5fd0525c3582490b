package link

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// newLocal returns a Local, which the end of the test ends by force.
func newLocal(t testing.TB, handle Handler) *Local {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Local{Handle: handle, Known: func(upstream string) bool { return upstream == hello.Upstream }, Linked: ctx, Forced: ctx}
	t.Cleanup(func() { cancel(); l.Wait() })
	return l
}

func openLocal(t testing.TB, l *Local) jsonrpc.Conn {
	t.Helper()
	c, err := l.Open(t.Context(), hello)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestLocalConn(t *testing.T) {
	conntest.Run(t, func(*testing.T) (a, b jsonrpc.Conn) { return localPair(func() {}) })
}

// TestLocalEnds is the grid of who ends a stream within a process, and how, and what each side
// hears: the same as on a link.
func TestLocalEnds(t *testing.T) {
	killed := &jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Delivered: true, Event: "k3v9x2ma", Says: "was killed", Err: errors.New("secret")}
	unsent := &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed}
	type ends struct {
		near, far  jsonrpc.Conn
		returnWith chan error // ends the handler
		stop, cut  context.CancelFunc
	}
	for name, tt := range map[string]struct {
		end       func(e ends)
		near, far string // what each side hears
		unsent    bool
	}{
		"the proxy closes":                     {func(e ends) { e.near.Close() }, "closed", "closed", false},
		"the proxy closes with a cause":        {func(e ends) { jsonrpc.CloseWith(e.near, killed) }, "closed", "closed", false},
		"the host closes":                      {func(e ends) { e.far.Close() }, "closed", "closed", false},
		"the host closes with a cause":         {func(e ends) { jsonrpc.CloseWith(e.far, killed) }, "signal: killed", "signal: killed", false},
		"the host closes twice":                {func(e ends) { jsonrpc.CloseWith(e.far, killed); e.far.Close(); jsonrpc.CloseWith(e.far, unsent) }, "signal: killed", "signal: killed", false},
		"the host closes with another error":   {func(e ends) { jsonrpc.CloseWith(e.far, errors.New("secret")) }, "closed", "closed", false},
		"the handler returns a cause":          {func(e ends) { e.returnWith <- fmt.Errorf("attach: %w", unsent) }, "start failed", "start failed", true},
		"the handler returns nothing":          {func(e ends) { e.returnWith <- nil }, "closed", "closed", false},
		"the handlers end by force":            {func(e ends) { e.stop() }, "stopped", "stopped", false},
		"the link ends while streams are open": {func(e ends) { e.cut() }, "link lost", "link lost", false},
	} {
		for _, blocked := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/blocked=%v", name, blocked), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					conns, returnWith := make(chan jsonrpc.Conn, 1), make(chan error, 1)
					l := &Local{Known: func(string) bool { return true }}
					var e ends
					l.Linked, e.cut = context.WithCancel(t.Context())
					l.Forced, e.stop = context.WithCancel(t.Context())
					defer e.stop()
					defer e.cut()
					l.Handle = handled(func(ctx context.Context, _ Hello, c jsonrpc.Conn) error {
						conns <- c
						select {
						case err := <-returnWith:
							return err
						case <-ctx.Done():
							return &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("stopped"), Delivered: true}
						}
					})
					e.near, e.returnWith = openLocal(t, l), returnWith
					e.far = <-conns
					hear := func() {
						conntest.During(t, func() { wantEnd(t, e.near, tt.near, !tt.unsent) }, func() { wantEnd(t, e.far, tt.far, !tt.unsent) })
					}
					if blocked {
						conntest.During(t, func() { synctest.Wait(); tt.end(e) }, hear)
					} else {
						tt.end(e)
						synctest.Wait()
						hear()
					}
					e.stop()
					l.Wait()
				})
			})
		}
	}
}

// What the host says about the end of a server reaches the proxy, but not the error that is for its log.
func TestLocalCause(t *testing.T) {
	near, far := localPair(func() {})
	sent := &jsonrpc.ClosedError{
		Cause: jsonrpc.ExitCause(3), Event: "k3v9x2ma", Says: strings.Repeat("/", maxCause+1) + "\x00", Lasting: true, Err: errors.New("secret"),
	}
	if err := far.Send(numbered(1)); err != nil {
		t.Fatal(err)
	}
	jsonrpc.CloseWith(far, sent)
	if m, err := near.Recv(); err != nil || m.ID != jsonrpc.IntID(1) {
		t.Errorf("what was sent before: %v, %v", m, err)
	}
	_, err := near.Recv()
	want := *sent
	want.Says, want.Err = sent.Says[:maxCause], nil
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); !ok || !reflect.DeepEqual(*end, want) {
		t.Errorf("the proxy received %+v, want %+v", err, want)
	}
}

// The two ends share no message: each may change its own. What never travels stays behind, and
// headers come with their message alone.
func TestLocalOwnership(t *testing.T) {
	near, far := localPair(func() {})
	to := map[string][]string{"X-Request-Id": {"7"}}
	sent := &jsonrpc.Message{
		ID: jsonrpc.IntID(1), Method: "tools/call", Params: []byte(`{}`), Related: jsonrpc.IntID(9), Notes: 1,
		Forwarded: &jsonrpc.Forwarded{From: to, To: to},
	}
	array := &jsonrpc.Message{Batch: []*jsonrpc.Message{sent}}
	without := numbered(2)
	without.Forwarded = &jsonrpc.Forwarded{From: to}
	if err := near.SendAll([]*jsonrpc.Message{sent, array, without}); err != nil {
		t.Fatal(err)
	}
	got, err := far.Recv()
	if err != nil {
		t.Fatal(err)
	}
	all, err := far.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*jsonrpc.Message{got, all.Batch[0]} {
		if m == sent || !bytes.Equal(m.Append(nil), sent.Append(nil)) || m.Related != sent.Related || m.Notes != nil ||
			!reflect.DeepEqual(m.Forwarded, &jsonrpc.Forwarded{To: to}) {
			t.Errorf("received %+v, want a copy of %+v", m, sent)
		}
	}
	if m, err := far.Recv(); err != nil || m.ID != without.ID || m.Forwarded != nil {
		t.Errorf("received %+v, %v; want no headers", m, err)
	}
}

// TestLocalRaces is TestRaces within a process.
func TestLocalRaces(t *testing.T) {
	for range 200 {
		l := newLocal(t, racing(t))
		var cut, stop context.CancelFunc
		l.Linked, cut = context.WithCancel(t.Context())
		l.Forced, stop = context.WithCancel(t.Context())
		race(t, l.Open, cut, stop)
		cut()
		stop()
	}
}

// The host gets the hello of a stream and the headers with it, and refuses upstreams that have gone.
// The ctx of Open ends no stream. Once the link waits for its end, it opens no more streams.
func TestLocalOpen(t *testing.T) {
	headers := map[string][]string{"Authorization": {"secret"}}
	heard, hellos := make(chan context.Context, 1), make(chan Hello, 1)
	l := newLocal(t, handled(func(ctx context.Context, h Hello, c jsonrpc.Conn) error {
		heard <- ctx
		hellos <- h
		return echoing(ctx, h, c)
	}))
	ctx, cancel := context.WithCancel(t.Context())
	c, err := l.Open(jsonrpc.WithForwarded(ctx, headers), hello)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	call(t, c, numbered(1))
	if got := await(t, hellos); got != hello {
		t.Errorf("the host got %+v, want %+v", got, hello)
	}
	ctx = await(t, heard)
	if got := jsonrpc.ForwardedIn(ctx); !reflect.DeepEqual(got, headers) {
		t.Errorf("the hello had %v, want %v", got, headers)
	}
	if ctx.Err() != nil {
		t.Error("the ctx of Open has ended the handler's")
	}
	_, err = l.Open(t.Context(), Hello{Upstream: "gone"})
	wantNotOpened(t, err, jsonrpc.CauseChanged.String())
	c.Close()
	l.Wait()
	_, err = l.Open(t.Context(), hello)
	wantNotOpened(t, err, jsonrpc.CauseLinkLost.String())
}

// TestLocalStreams goes one step beyond the bound: the host does not hear of it, and the log does
// once.
func TestLocalStreams(t *testing.T) {
	const most = 10
	var log syncBuffer
	var served atomic.Int64
	l := newLocal(t, handled(func(ctx context.Context, h Hello, c jsonrpc.Conn) error {
		served.Add(1)
		return echoing(ctx, h, c)
	}))
	l.Log = slog.New(slog.NewTextHandler(&log, nil))
	l.SetStreams(most)
	conns := make([]jsonrpc.Conn, most)
	for i := range conns {
		conns[i] = openLocal(t, l)
	}
	refused := func() {
		t.Helper()
		_, err := l.Open(t.Context(), hello)
		wantNotOpened(t, err, jsonrpc.CauseOverloaded.String())
	}
	for range 100 {
		refused()
	}
	conns[0].Close()
	conns[0] = openLocal(t, l) // there is room again
	refused()
	if lines := strings.Count(log.String(), "too many streams"); lines != 1 {
		t.Errorf("%d lines, want 1:\n%s", lines, log.String())
	}
	for _, c := range conns {
		call(t, c, numbered(1))
		c.Close()
	}
	for range most {
		call(t, openLocal(t, l), numbered(1)) // its handler runs
	}
	if n := served.Load(); n != 2*most+1 {
		t.Errorf("the host has served %d streams, want %d", n, 2*most+1)
	}
	refused()
	if lines := strings.Count(log.String(), "too many streams"); lines != 2 {
		t.Errorf("%d lines, want another for another crowd:\n%s", lines, log.String())
	}
	l.SetStreams(most + 1)
	openLocal(t, l)
	if got := l.Streams(); got != most+1 {
		t.Errorf("the bound is %d", got)
	}
}

// TestLocalUnbounded has more streams at once than a host takes on a socket.
func TestLocalUnbounded(t *testing.T) {
	t.Parallel()
	l := newLocal(t, echo)
	var g sync.WaitGroup
	for n := range 4200 {
		g.Go(func() { call(t, openLocal(t, l), numbered(n)) })
	}
	g.Wait()
}

// A side that does not read slows the other one down: no more than 256 KiB and one message wait.
func TestLocalRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := localPair(func() {})
		var sent atomic.Int64
		over := make(chan struct{})
		go func() {
			defer close(over)
			for far.Send(padded(100<<10)) == nil {
				sent.Add(1)
			}
		}()
		synctest.Wait()
		if n := sent.Load(); n != 3 {
			t.Errorf("%d messages of 100 KiB wait, want 3", n)
		}
		if _, err := near.Recv(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := sent.Load(); n != 4 {
			t.Errorf("one was read, and %d were sent in all, want 4", n)
		}
		near.Close()
		<-over
	})
}
