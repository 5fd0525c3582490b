// Package conntest has the tests that every [jsonrpc.Conn] must pass, and helpers for tests that
// wait.
//
//	makePair ──► a ═════ b     what one sends the other receives
//
// It checks the contract of Conn, and makes the rest precise:
//
//   - Messages arrive whole and in the order of Send, also from concurrent senders, and in both
//     directions at once.
//   - Messages sent before Close still arrive, if the other side receives.
//   - Related arrives unchanged or not at all, and is never text of the message.
//   - After Close on this side, every Recv and Send here, blocked or later, returns an error wrapping
//     [jsonrpc.ErrClosed]; Recv may first return messages that had arrived. It does not return io.EOF,
//     because the other side has not finished.
//   - After Close on the other side, Recv returns an error wrapping ErrClosed, or io.EOF if the Conn
//     cannot distinguish the end from a half-close. Send may succeed for a while, because of buffers;
//     then it returns an error wrapping ErrClosed, also if it was blocked.
//   - Close returns, may be repeated, and may be called concurrently. Its error is ignored.
//
// All messages are notifications of at most 1 MiB, so that none needs a response and none exceeds a
// sensible limit.
package conntest

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// patience bounds every wait. It is long because some carriers end a blocked write only after a
// timeout of their own.
const patience = 30 * time.Second

// Run tests the Conns of makePair. Each call must return a new pair; Run closes both. It leaves no
// goroutines behind.
func Run(t *testing.T, makePair func(t *testing.T) (a, b jsonrpc.Conn)) {
	tests := []struct {
		name string
		run  func(t *testing.T, a, b jsonrpc.Conn)
	}{
		{"Order", testOrder},
		{"SendAll", testSendAll},
		{"ConcurrentSend", testConcurrentSend},
		{"Huge", testHuge},
		{"Verbatim", testVerbatim},
		{"Related", testRelated},
		{"Flush", testFlush},
		{"CloseConcurrent", testCloseConcurrent},
		{"Close/This/Recv", func(t *testing.T, a, _ jsonrpc.Conn) { testCloseRecv(t, a, a) }},
		{"Close/This/Send", func(t *testing.T, a, _ jsonrpc.Conn) { testCloseSend(t, a, a) }},
		{"Close/This/Idle", func(t *testing.T, a, _ jsonrpc.Conn) { testCloseIdle(t, a, a) }},
		{"Close/Other/Recv", testCloseRecv},
		{"Close/Other/Send", testCloseSend},
		{"Close/Other/Idle", testCloseIdle},
	}
	var making sync.Mutex // pairs are made one at a time, because they may share a listener
	pair := func(t *testing.T) (a, b jsonrpc.Conn) {
		making.Lock()
		defer making.Unlock()
		return makePair(t)
	}
	// Both ends take each part, because the two sides of a front end are different code.
	t.Run("Conn", func(t *testing.T) { // ends when all parts have
		for _, end := range []string{"A", "B"} {
			for _, tt := range tests {
				t.Run(tt.name+"/"+end, func(t *testing.T) {
					t.Parallel() // many wait until a carrier times out
					a, b := pair(t)
					if end == "B" {
						a, b = b, a
					}
					defer closeBoth(a, b)
					tt.run(t, a, b)
				})
			}
		}
	})
}

// Parallel sets how many parallel tests run at a time, for a TestMain, unless the command line does.
// The default is one for each processor: too few for tests that wait more than they compute.
func Parallel(n int) {
	if err := flag.Set("test.parallel", strconv.Itoa(max(n, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
}

// closeBoth closes both ends concurrently, so that a closing handshake need not wait.
func closeBoth(a, b jsonrpc.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { a.Close() })
	wg.Go(func() { b.Close() })
	wg.Wait()
}

// note returns a distinguishable notification with about size bytes of params.
func note(n, size int) *jsonrpc.Message {
	params := `{"n":` + strconv.Itoa(n) + `,"pad":"` + strings.Repeat("x", size) + `"}`
	return jsonrpc.NewNotification("notifications/test", []byte(params))
}

// number returns the n of a note.
func number(t *testing.T, m *jsonrpc.Message) int {
	t.Helper()
	raw, err := jsonrpc.Member(m.Params, "n")
	n, convErr := strconv.Atoi(string(raw))
	if err != nil || convErr != nil {
		t.Errorf("received params %.100s: not what was sent", m.Params)
	}
	return n
}

// within runs fn and panics if it does not return in time, because the stacks of all goroutines
// then show most.
func within(t *testing.T, what string, fn func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		debug.SetTraceback("all")
		panic(fmt.Sprintf("conntest: %s: %s: still blocked after %v", t.Name(), what, patience))
	}
}

// sendAll sends notes from..to-1 from a goroutine of wg.
func sendAll(t *testing.T, wg *sync.WaitGroup, c jsonrpc.Conn, from, to int) {
	wg.Go(func() {
		for n := from; n < to; n++ {
			if err := c.Send(note(n, 0)); err != nil {
				t.Errorf("Send of note %d: %v", n, err)
				return
			}
		}
	})
}

// receiveAll receives notes 0..count-1.
func receiveAll(t *testing.T, c jsonrpc.Conn, count int) {
	for want := range count {
		m, err := c.Recv()
		if err != nil {
			t.Errorf("Recv of note %d: %v", want, err)
			return
		}
		if got := number(t, m); got != want {
			t.Errorf("received note %d, want %d", got, want)
			return
		}
	}
}

func testOrder(t *testing.T, a, b jsonrpc.Conn) {
	const count = 300
	within(t, "notes in both directions", func() {
		var wg sync.WaitGroup
		sendAll(t, &wg, a, 0, count)
		sendAll(t, &wg, b, 0, count)
		wg.Go(func() { receiveAll(t, a, count) })
		wg.Go(func() { receiveAll(t, b, count) })
		wg.Wait()
	})
}

func testSendAll(t *testing.T, a, b jsonrpc.Conn) {
	notes := make([]*jsonrpc.Message, 100)
	for n := range notes {
		notes[n] = note(n, 1000)
	}
	within(t, "many notes at once", func() {
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := jsonrpc.SendAll(a, notes); err != nil {
				t.Errorf("SendAll: %v", err)
			}
		})
		receiveAll(t, b, len(notes))
		wg.Wait()
		a.Close()
		wantClosed(t, "SendAll", jsonrpc.SendAll(a, notes))
	})
}

func testConcurrentSend(t *testing.T, a, b jsonrpc.Conn) {
	const senders, each = 8, 40
	within(t, "notes of concurrent senders", func() {
		var wg sync.WaitGroup
		for s := range senders {
			sendAll(t, &wg, a, s*each, (s+1)*each)
		}
		var next [senders]int // the next number of each sender
		for range senders * each {
			m, err := b.Recv()
			if err != nil {
				t.Errorf("Recv: %v", err)
				break
			}
			n := number(t, m)
			s := n / each
			if s < 0 || s >= senders || n%each != next[s] {
				t.Errorf("received note %d out of order", n)
				break
			}
			next[s]++
		}
		wg.Wait()
	})
}

// transfer sends m over a and returns what b receives.
func transfer(t *testing.T, a, b jsonrpc.Conn, m *jsonrpc.Message) (got *jsonrpc.Message) {
	t.Helper()
	within(t, "one message", func() {
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.Send(m); err != nil {
				t.Errorf("Send: %v", err)
			}
		})
		var err error
		if got, err = b.Recv(); err != nil {
			t.Errorf("Recv: %v", err)
		}
		wg.Wait()
	})
	if t.Failed() {
		t.FailNow()
	}
	return got
}

func testHuge(t *testing.T, a, b jsonrpc.Conn) {
	huge := note(1, 1<<20-1000)
	if got := transfer(t, a, b, huge); string(got.Params) != string(huge.Params) {
		t.Errorf("1 MiB of params arrived as %d bytes, want the %d that were sent", len(got.Params), len(huge.Params))
	}
	if got := transfer(t, a, b, note(2, 0)); number(t, got) != 2 {
		t.Errorf("the message after the huge one is %s", got.Append(nil))
	}
}

// testVerbatim sends text that careless transports change: escapes, duplicate keys, big numbers,
// characters that HTML or SSE would escape, and unknown members.
func testVerbatim(t *testing.T, a, b jsonrpc.Conn) {
	m := jsonrpc.NewNotification("notifications/\"é\u2028",
		[]byte(`{ "u":"\u0041\ud800 <&>","n":[9007199254740993,1e2,-0.0,1.50],"d":{"k":1,"k":2},"s":"é\u2028 `+"\u2028"+`😀" , "e":{}}`))
	m.Extra = []byte(`,"x-unknown":{"deep":[null,true]}`)
	want := string(m.Append(nil))
	if got := string(transfer(t, a, b, m).Append(nil)); got != want {
		t.Errorf("received %s\nwant     %s", got, want)
	}
}

func testRelated(t *testing.T, a, b jsonrpc.Conn) {
	related := note(1, 0)
	related.Related = jsonrpc.IntID(77)
	got := transfer(t, a, b, related)
	if !got.Related.IsZero() && got.Related != related.Related {
		t.Errorf("received Related %s, want 77 or none", got.Related)
	}
	if got, want := string(got.Append(nil)), string(note(1, 0).Append(nil)); got != want {
		t.Errorf("received %s, want %s", got, want)
	}
	if got := transfer(t, a, b, note(2, 0)); !got.Related.IsZero() {
		t.Errorf("the next message has Related %s, but was sent without", got.Related)
	}
}

func testFlush(t *testing.T, a, b jsonrpc.Conn) {
	const count = 20
	within(t, "receiving what was sent before Close", func() {
		var wg sync.WaitGroup
		wg.Go(func() {
			for n := range count {
				if err := a.Send(note(n, 100)); err != nil {
					t.Errorf("Send of note %d: %v", n, err)
				}
			}
			a.Close()
		})
		receiveAll(t, b, count)
		wg.Wait()
		wantEnd(t, b, false)
	})
}

func testCloseConcurrent(t *testing.T, a, b jsonrpc.Conn) {
	within(t, "closing both ends at once, repeatedly", func() {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { a.Close() })
			wg.Go(func() { b.Close() })
		}
		wg.Wait()
		a.Close()
		b.Close()
	})
	within(t, "use after Close", func() {
		wantEnd(t, a, true)
		wantSendFails(t, a, true)
	})
}

// testCloseRecv closes closer, which is a or its other side, while a receives.
func testCloseRecv(t *testing.T, a, closer jsonrpc.Conn) {
	within(t, "Recv during Close", func() {
		var wg sync.WaitGroup
		wg.Go(func() { wantEnd(t, a, closer == a) })
		time.Sleep(10 * time.Millisecond) // usually Recv is blocked by now; the outcome does not depend on it
		closer.Close()
		wg.Wait()
	})
}

// testCloseSend closes closer, which is a or its other side, while a sends and the other side does
// not receive.
func testCloseSend(t *testing.T, a, closer jsonrpc.Conn) {
	var sent atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		m := note(0, 32<<10)
		for {
			if err := a.Send(m); err != nil {
				wantClosed(t, "Send", err)
				return
			}
			sent.Add(1)
		}
	})
	awaitStall(&sent)
	within(t, "Close during Send", func() { closer.Close() })
	within(t, "Send during Close", wg.Wait)
}

// awaitStall returns when sent no longer grows, or when the Conn evidently drops messages instead
// of blocking.
func awaitStall(sent *atomic.Int64) {
	const enough = 2000
	for last := int64(-1); ; {
		now := sent.Load()
		if now == last || now > enough {
			return
		}
		last = now
		time.Sleep(50 * time.Millisecond)
	}
}

func testCloseIdle(t *testing.T, a, closer jsonrpc.Conn) {
	within(t, "use after Close", func() {
		closer.Close()
		wantEnd(t, a, closer == a)
		wantSendFails(t, a, closer == a)
		a.Close()
		wantEnd(t, a, true)
		wantSendFails(t, a, true)
	})
}

// wantEnd receives the end of c. It may be io.EOF only if the other side closed c.
func wantEnd(t *testing.T, c jsonrpc.Conn, own bool) {
	t.Helper()
	m, err := c.Recv()
	switch {
	case err == nil:
		t.Errorf("Recv returned a message after the end: %.100s", m.Append(nil))
	case err == io.EOF && !own:
	default:
		wantClosed(t, "Recv", err)
	}
}

// wantSendFails sends until Send fails, which must be at once if this side has closed c.
func wantSendFails(t *testing.T, c jsonrpc.Conn, own bool) {
	t.Helper()
	for {
		err := c.Send(note(0, 1000))
		if err == nil && !own {
			time.Sleep(time.Millisecond) // let the close travel
			continue
		}
		wantClosed(t, "Send", err)
		return
	}
}

func wantClosed(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("%s returned %v, want an error wrapping ErrClosed", what, err)
	}
}
