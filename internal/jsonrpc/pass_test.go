package jsonrpc_test

import (
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestQueuePass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine()
		var handled []string
		waits := false // the function would have to wait
		pass := func(name string, of jsonrpc.Leaving) bool {
			return l.Pass(jsonrpc.Queued{Message: notice(name), Of: of})
		}
		handle := func(m *jsonrpc.Message) bool {
			if !waits {
				handled = append(handled, m.Method)
			}
			return !waits
		}
		if pass("early", nil) {
			t.Error("passed without a function")
		}
		l.OnPass(handle)
		gone, stays := &request{cancelled: true}, &request{}
		if !pass("first", stays) || !pass("gone", gone) || !stays.sent || gone.sent || !slices.Equal(handled, []string{"first"}) {
			t.Errorf("handled %q; sent: %v, and what was cancelled: %v", handled, stays.sent, gone.sent)
		}

		l.locked(func() { _ = l.Force(jsonrpc.Queued{Message: notice("second")}) })
		if pass("overtakes", nil) {
			t.Error("passed by a message that is queued")
		}
		m, err := l.Next()
		if err != nil || m.Method != "second" {
			t.Fatal(m, err)
		}
		if pass("overtakes", nil) {
			t.Error("passed while the reader may handle the last message")
		}
		back := make(chan string)
		read := func() {
			m, err := l.Next()
			if err != nil {
				back <- err.Error()
				return
			}
			back <- m.Method
		}
		go read()
		synctest.Wait()
		if !pass("third", nil) || handled[len(handled)-1] != "third" {
			t.Errorf("handled %q while the reader waits", handled)
		}
		waits = true
		if !pass("fourth", nil) {
			t.Error("what would have to wait is still to be put")
		}
		if got := <-back; got != "fourth" {
			t.Errorf("took %s, want what would have to wait", got)
		}
		go read()
		synctest.Wait()

		// What follows a message waits until it has been handled, and so does the end.
		begun, goOn := make(chan struct{}), make(chan struct{})
		l.OnPass(func(m *jsonrpc.Message) bool {
			begun <- struct{}{}
			<-goOn
			return handle(m)
		})
		passed := make(chan bool)
		go func() { passed <- pass("slow", nil) }()
		<-begun
		if pass("overtakes", nil) {
			t.Error("two messages are handled at a time")
		}
		l.locked(func() { _ = l.Force(jsonrpc.Queued{Message: notice("behind")}) })
		synctest.Wait()
		select {
		case got := <-back:
			t.Fatalf("took %s while a message is being handled", got)
		default:
		}
		goOn <- struct{}{} // and it would have to wait
		if !<-passed || <-back != "slow" {
			t.Error("the message was overtaken")
		}
		go read()
		if got := <-back; got != "behind" {
			t.Errorf("took %s, want what came behind", got)
		}
		go read()
		synctest.Wait()
		waits = false
		go func() { passed <- pass("slow", nil) }()
		<-begun
		l.locked(func() { l.Finish(errors.New("over"), 0, nil) })
		off := make(chan struct{})
		go func() { l.OnPass(nil); close(off) }()
		synctest.Wait()
		select {
		case got := <-back:
			t.Errorf("took %s while a message is being handled", got)
		case <-off:
			t.Error("the function is still running")
		default:
		}
		goOn <- struct{}{}
		if !<-passed || handled[len(handled)-1] != "slow" {
			t.Errorf("handled %q", handled)
		}
		if got := <-back; got != "connection closed: over" {
			t.Errorf("took %q, want the end", got)
		}
		<-off
		if pass("late", nil) {
			t.Error("passed after the end")
		}
	})
}

// TestPipePass sends from several goroutines: each sees its messages handled in order, one at a time,
// whoever handles them.
func TestPipePass(t *testing.T) {
	near, far := jsonrpc.Pipe()
	const senders, each = 4, 2000
	var busy atomic.Int64
	next := make([]int, senders)
	handle := func(m *jsonrpc.Message) {
		if busy.Add(1) != 1 {
			t.Error("two messages are handled at a time")
		}
		n, _ := strconv.Atoi(m.Method)
		if next[n/each] != n%each {
			t.Errorf("sender %d: message %d, want %d", n/each, n%each, next[n/each])
		}
		next[n/each] = n%each + 1
		busy.Add(-1)
	}
	direct := 0
	far.HandleWith(func(m *jsonrpc.Message) bool {
		if n, _ := strconv.Atoi(m.Method); n%7 == 3 {
			return false // as if it had to wait
		}
		direct++
		handle(m)
		return true
	})
	for i := range senders {
		_ = near.Send(notice(strconv.Itoa(i * each)))
	}
	if direct == 0 {
		t.Error("no message was handled by its sender, though nothing else happens")
	}
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			for n := 1; n < each; n++ {
				m := notice(strconv.Itoa(i*each + n))
				if n%5 != 4 || !near.PutNow(jsonrpc.Queued{Message: m}) {
					_ = near.Send(m)
				}
			}
		})
	}
	var read sync.WaitGroup
	read.Go(func() {
		for {
			m, err := far.Recv()
			if err != nil {
				return
			}
			handle(m)
		}
	})
	wg.Wait()
	near.Close()
	read.Wait()
	far.HandleWith(nil)
	for i, n := range next {
		if n != each {
			t.Errorf("sender %d: %d messages came, want %d", i, n, each)
		}
	}
}

// TestPassPanic: a function that panics, which net/http recovers for a POST, leaves a Queue that goes on.
func TestPassPanic(t *testing.T) {
	l := newLine()
	l.OnPass(func(*jsonrpc.Message) bool { panic("a bug") })
	func() {
		defer func() { _ = recover() }()
		l.Pass(jsonrpc.Queued{Message: notice("bad")})
	}()
	l.OnPass(nil)
	l.locked(func() { _ = l.Force(jsonrpc.Queued{Message: notice("next")}) })
	l.wantTaken(t, "next")
}
