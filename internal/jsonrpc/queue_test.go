package jsonrpc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A line is a Queue with its lock, and the messages taken from it.
type line struct {
	sync.Mutex
	*jsonrpc.Queue
}

func newLine() *line {
	l := &line{}
	l.Queue = jsonrpc.NewQueue(l)
	return l
}

// locked runs fn with the lock held.
func (l *line) locked(fn func()) {
	l.Lock()
	defer l.Unlock()
	fn()
}

// run starts the Queue and returns how it ended.
func (l *line) run(c jsonrpc.Conn) error {
	over := make(chan error)
	l.Start(c, func(err error) { over <- err })
	return <-over
}

func notice(method string) *jsonrpc.Message { return jsonrpc.NewNotification(method, nil) }

func names(messages []*jsonrpc.Message) (all []string) {
	for _, m := range messages {
		all = append(all, m.Method)
	}
	return all
}

func (l *line) wantTaken(t *testing.T, want ...string) {
	t.Helper()
	got, err := l.Take(nil)
	if !slices.Equal(names(got), want) {
		t.Errorf("taken: %v, %v, want %v", names(got), err, want)
	}
}

func TestQueueRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		mine, other := &jsonrpc.Room{Messages: 2}, &jsonrpc.Room{Bytes: 300}
		waited := 0
		wait := func(times int) {
			l.locked(func() { _ = l.Wait(mine, times) })
			waited++
		}
		l.locked(func() {
			for i, want := range []error{nil, nil, jsonrpc.ErrFull} {
				if err := l.Put(jsonrpc.Queued{Message: notice(fmt.Sprint(i)), Room: mine}); err != want {
					t.Errorf("Put %d: %v, want %v", i, err, want)
				}
			}
			large := jsonrpc.NewNotification("large", make([]byte, 1000))
			if l.Put(jsonrpc.Queued{Message: large, Room: other}) != nil {
				t.Error("a message that is alone may be larger than its room, and another's room is its own")
			}
			if l.Put(jsonrpc.Queued{Message: notice("small"), Room: other}) != jsonrpc.ErrFull {
				t.Error("there is room behind a large message")
			}
			_ = l.Force(jsonrpc.Queued{Message: notice("forced"), Room: mine})
		})
		go wait(1)
		wait(2) // spare room: at once
		synctest.Wait()
		if waited != 1 {
			t.Error("who waits for room did not wait")
		}
		l.wantTaken(t, "0", "1", "large", "forced")
		synctest.Wait()
		if waited != 2 {
			t.Error("who waits for room waits for ever")
		}
	})
}

func TestQueueHold(t *testing.T) {
	l := newLine()
	const rest, questions jsonrpc.Class = 1, 2
	l.locked(func() {
		_ = l.Force(jsonrpc.Queued{Message: notice("early"), Class: rest})
		l.Hold(rest | questions)
		_ = l.Force(jsonrpc.Queued{Message: notice("initialize")})
		_ = l.Force(jsonrpc.Queued{Message: notice("ask"), Class: questions})
		_ = l.Force(jsonrpc.Queued{Message: notice("call"), Class: rest})
	})
	l.wantTaken(t, "initialize")
	l.locked(func() { l.Release(rest, notice("initialized")) })
	l.wantTaken(t, "initialized", "early", "call")
	l.locked(func() { l.Release(questions) })
	l.wantTaken(t, "ask")
}

// A request is a message that may be cancelled before it is sent.
type request struct{ cancelled, sent bool }

func (r *request) Leave() bool {
	r.sent = !r.cancelled
	return r.sent
}

func TestQueueLeave(t *testing.T) {
	l := newLine()
	room := &jsonrpc.Room{Messages: 3}
	gone, stays := &request{cancelled: true}, &request{}
	l.locked(func() {
		_ = l.Force(jsonrpc.Queued{Message: notice("gone"), Of: gone, Room: room})
		_ = l.Force(jsonrpc.Queued{Message: notice("stays"), Of: stays, Room: room})
		_ = l.Force(jsonrpc.Queued{Message: notice("dropped"), Room: room})
		l.Drop(func(m jsonrpc.Queued) bool { return m.Method == "dropped" })
		if l.Len() != 2 {
			t.Errorf("%d wait", l.Len())
		}
	})
	l.wantTaken(t, "stays")
	if gone.sent || !stays.sent {
		t.Error("what leaves is marked sent, and nothing else is")
	}
	l.locked(func() {
		for range room.Messages {
			if l.Put(jsonrpc.Queued{Message: notice("again"), Room: room}) != nil {
				t.Error("what is gone takes room")
			}
		}
	})
}

func TestQueueFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		a, b := jsonrpc.Pipe()
		l.locked(func() {
			l.Hold(1)
			_ = l.Force(jsonrpc.Queued{Message: notice("held"), Class: 1})
			_ = l.Force(jsonrpc.Queued{Message: notice("queued")})
		})
		done := make(chan error, 1)
		go func() { done <- l.run(a); a.CloseWrite() }()
		l.locked(func() {
			l.Finish(nil, time.Second, func() []*jsonrpc.Message { return []*jsonrpc.Message{notice("last")} })
			_ = l.Force(jsonrpc.Queued{Message: notice("too late")})
			if err := l.Put(jsonrpc.Queued{Message: notice("too late")}); err != jsonrpc.ErrClosed {
				t.Errorf("Put after Finish: %v", err)
			}
		})
		var got []*jsonrpc.Message
		for {
			m, err := b.Recv()
			if err != nil {
				break
			}
			got = append(got, m)
		}
		if want := []string{"queued", "last"}; !slices.Equal(names(got), want) {
			t.Errorf("received %v, want %v", names(got), want)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := b.Send(notice("answer")); err != nil {
			t.Errorf("the Conn is closed, not half-closed: %v", err)
		}
	})
}

// TestQueueFinishBound uses a Conn that is not read: its end is bounded nevertheless.
func TestQueueFinishBound(t *testing.T) {
	for _, before := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLine()
			a, _ := jsonrpc.Pipe()
			began := time.Now()
			finish := func() { l.locked(func() { l.Finish(nil, time.Second, nil) }) }
			l.locked(func() {
				for range 200 {
					_ = l.Force(jsonrpc.Queued{Message: notice("unread")})
				}
			})
			if before {
				finish()
			} else {
				go func() { time.Sleep(0); finish() }()
			}
			err := l.run(a)
			if !errors.Is(err, jsonrpc.ErrClosed) || time.Since(began) != time.Second {
				t.Errorf("over: %v after %v", err, time.Since(began))
			}
		})
	}
}

func TestQueueClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		room := &jsonrpc.Room{Messages: 1}
		why := errors.New("why")
		l.locked(func() {
			l.Hold(1)
			_ = l.Force(jsonrpc.Queued{Message: notice("held"), Class: 1, Room: room})
		})
		ends := make(chan error, 3)
		go func() { l.locked(func() { ends <- l.Wait(room, 1) }) }()
		go func() { _, err := l.Take(nil); ends <- err }()
		synctest.Wait()
		l.locked(func() {
			l.Close(why)
			l.Close(errors.New("other"))
			ends <- l.Put(jsonrpc.Queued{Message: notice("too late")})
		})
		for range cap(ends) {
			if err := <-ends; !errors.Is(err, why) || !errors.Is(err, jsonrpc.ErrClosed) {
				t.Errorf("the end is %v", err)
			}
		}
	})
}

// TestQueueSend uses a Conn that breaks: it is over, and the Queue can serve another.
func TestQueueSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		a, b := jsonrpc.Pipe()
		b.Close()
		l.locked(func() { _ = l.Force(jsonrpc.Queued{Message: notice("lost")}) })
		if err := l.run(a); !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("over: %v", err)
		}
		a, b = jsonrpc.Pipe()
		l.locked(func() { _ = l.Force(jsonrpc.Queued{Message: notice("kept")}) })
		done := make(chan error, 1)
		go func() { done <- l.run(a) }()
		if m, err := b.Recv(); err != nil || m.Method != "kept" {
			t.Errorf("received %v, %v", m, err)
		}
		l.locked(func() { l.Pause(true) })
		l.locked(func() { _ = l.Force(jsonrpc.Queued{Message: notice("next")}) })
		if err := <-done; err != nil {
			t.Errorf("paused: %v", err)
		}
		if err := l.run(a); err != nil {
			t.Errorf("still paused: %v", err)
		}
		l.locked(func() { l.Pause(false) })
		go func() { done <- l.run(a) }()
		if m, err := b.Recv(); err != nil || m.Method != "next" {
			t.Errorf("received %v, %v", m, err)
		}
		l.locked(func() { l.Close(nil) })
		if err := <-done; !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// A prompt is the end of a pipe that takes messages at once, unless it is full.
type prompt struct {
	*jsonrpc.PipeConn
	full bool
	now  int // messages that came by SendNow
}

func (p *prompt) SendNow(m jsonrpc.Queued) bool {
	if p.full || !p.PutNow(m) {
		return false
	}
	p.now++
	return true
}

// TestQueuePrompt puts messages into the Queue of a Conn in memory: whoever puts one hands it over
// himself, but only while none waits, and none of a class that is held back.
func TestQueuePrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		near, far := jsonrpc.Pipe()
		p := &prompt{PipeConn: near}
		done := make(chan error, 1)
		go func() { done <- l.run(p) }()
		synctest.Wait()
		put := func(name string, of jsonrpc.Leaving, class jsonrpc.Class) {
			l.locked(func() { _ = l.Force(jsonrpc.Queued{Message: notice(name), Of: of, Class: class}) })
		}
		want := func(names ...string) {
			t.Helper()
			for _, name := range names {
				if m, err := far.Recv(); err != nil || m.Method != name {
					t.Errorf("received %v, %v, want %s", m, err, name)
				}
			}
		}
		gone, stays := &request{cancelled: true}, &request{}
		put("gone", gone, 0)
		put("first", stays, 0)
		if p.now != 2 || !stays.sent || gone.sent {
			t.Errorf("%d handed over; sent: %v, and what was cancelled: %v", p.now, stays.sent, gone.sent)
		}
		want("first")

		p.full = true
		put("second", nil, 0) // a goroutine sends it
		p.full = false
		put("third", nil, 0) // must not overtake it
		if p.now != 2 {
			t.Error("a message was handed over while another waits")
		}
		want("second", "third")

		l.locked(func() { l.Hold(1) })
		put("held", nil, 1)
		put("free", nil, 2)
		want("free")
		l.locked(func() { l.Release(1, notice("before")) })
		want("before", "held")

		l.locked(func() { l.Pause(true) })
		put("paused", nil, 0)
		if err := <-done; err != nil {
			t.Error(err)
		}
		put("without a Conn", nil, 0)
		l.locked(func() { l.Pause(false) })
		go func() { done <- l.run(p) }()
		want("paused", "without a Conn")
		synctest.Wait()
		far.Close()
		put("lost", nil, 0)
		if err := <-done; !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("over: %v", err)
		}
	})
}

// TestPipePrompt fills a pipe: what finds no room waits, and its owner is not asked yet.
func TestPipePrompt(t *testing.T) {
	near, far := jsonrpc.Pipe()
	n := 0
	for near.PutNow(jsonrpc.Queued{Message: notice("note")}) {
		n++
	}
	late := &request{}
	if near.PutNow(jsonrpc.Queued{Message: notice("late"), Of: late}) || late.sent || n == 0 {
		t.Errorf("%d fit, and one more was sent: %v", n, late.sent)
	}
	far.Close()
	if near.PutNow(jsonrpc.Queued{Message: notice("late"), Of: late}) || late.sent {
		t.Error("sent to a closed pipe")
	}
}

func BenchmarkQueue(b *testing.B) {
	l := newLine()
	room := &jsonrpc.Room{Messages: 256, Bytes: 1 << 20}
	m, r := notice("notifications/progress"), &request{}
	var batch []*jsonrpc.Message
	b.ReportAllocs()
	for b.Loop() {
		l.Lock()
		for range 8 {
			_ = l.Put(jsonrpc.Queued{Message: m, Room: room, Of: r})
		}
		l.Unlock()
		batch, _ = l.Take(batch[:0])
	}
}

// TestQueueNext takes one message at a time: the others stay queued, and can be dropped.
func TestQueueNext(t *testing.T) {
	l := newLine()
	l.locked(func() {
		for i := range 3 {
			_ = l.Force(jsonrpc.Queued{Message: notice(fmt.Sprint(i))})
		}
	})
	if m, err := l.Next(); err != nil || m.Method != "0" {
		t.Fatalf("Next: %v, %v", m, err)
	}
	l.locked(func() { l.Drop(func(m jsonrpc.Queued) bool { return m.Method == "1" }) })
	l.wantTaken(t, "2")
	why := errors.New("why")
	l.locked(func() { l.Close(why) })
	if _, err := l.Next(); !errors.Is(err, why) {
		t.Errorf("Next after Close: %v", err)
	}
}

// TestQueueWaitContext stops waiting for room.
func TestQueueWaitContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, room := newLine(), &jsonrpc.Room{Messages: 1}
		why := errors.New("why")
		ctx, cancel := context.WithCancel(t.Context())
		wait := func(ctx context.Context) (err error) {
			l.locked(func() { err = l.WaitContext(ctx, room, 1) })
			return err
		}
		if err := wait(ctx); err != nil {
			t.Errorf("there is room: %v", err)
		}
		l.locked(func() { _ = l.Put(jsonrpc.Queued{Message: notice("full"), Room: room}) })
		go func() {
			time.Sleep(time.Second)
			cancel()
			time.Sleep(time.Second)
			l.wantTaken(t, "full")
			time.Sleep(time.Second)
			l.locked(func() { l.Close(why) })
		}()
		start := time.Now()
		for i, want := range []error{context.Canceled, nil} {
			if err := wait([]context.Context{ctx, t.Context()}[i]); err != want || time.Since(start) != time.Duration(i+1)*time.Second {
				t.Errorf("%d: %v after %v, want %v", i, err, time.Since(start), want)
			}
		}
		l.locked(func() { _ = l.Put(jsonrpc.Queued{Message: notice("full"), Room: room}) })
		if err := wait(t.Context()); !errors.Is(err, why) {
			t.Errorf("after Close: %v", err)
		}
	})
}
