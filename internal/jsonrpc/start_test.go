package jsonrpc_test

import (
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// senders returns how many goroutines of Start there are, and receivers how many of Receive.
func senders() int   { return running("(*Queue).Start.func") }
func receivers() int { return running("jsonrpc.Receive.func") }

func running(function string) int {
	all := make([]byte, 1<<20)
	return strings.Count(string(all[:runtime.Stack(all, true)]), function+"1(")
}

// TestQueueStart starts a Queue whose Conn is in memory: a goroutine sends only what the Conn did not take
// at once, in order, and tells the end.
func TestQueueStart(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(l *line, far *jsonrpc.PipeConn)
		last string // received at the end
		err  bool
	}{
		"finished": {end: func(l *line, _ *jsonrpc.PipeConn) {
			l.Finish(errors.New("over"), time.Second, func() []*jsonrpc.Message { return []*jsonrpc.Message{notice("last")} })
		}, last: "last"},
		"paused": {end: func(l *line, _ *jsonrpc.PipeConn) { l.Pause(true) }},
		"closed": {end: func(l *line, _ *jsonrpc.PipeConn) { l.Close(errors.New("over")) }, err: true},
		"the Conn closed": {end: func(l *line, far *jsonrpc.PipeConn) {
			far.Close()
			_ = l.Force(jsonrpc.Queued{Message: notice("lost")})
		}, err: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine()
				near, far := jsonrpc.Pipe()
				p := &prompt{PipeConn: near}
				put := func(name string) { l.locked(func() { _ = l.Force(jsonrpc.Queued{Message: notice(name)}) }) }
				want := func(name string) {
					t.Helper()
					if m, err := far.Recv(); err != nil || m.Method != name {
						t.Errorf("received %v, %v, want %s", m, err, name)
					}
				}
				put("before")
				over := make(chan error, 1)
				l.Start(p, func(err error) { over <- err })
				want("before")
				put("now")
				want("now")
				synctest.Wait()
				if senders() != 0 {
					t.Error("a goroutine waits though nothing else does")
				}

				p.full = true // what is refused waits for a goroutine, and what follows must not overtake it
				put("first")
				p.full = false
				put("second")
				want("first")
				want("second")
				synctest.Wait()
				handed := p.now
				put("third")
				want("third")
				if p.now != handed+1 || senders() != 0 {
					t.Error("a goroutine still sends")
				}

				l.locked(func() { tt.end(l, far) })
				if err := <-over; (err != nil) != tt.err {
					t.Errorf("over with %v", err)
				}
				if tt.last != "" {
					want(tt.last)
				}
				synctest.Wait()
				if senders() != 0 {
					t.Error("a goroutine is left")
				}
			})
		})
	}
}

// TestQueueStartLate starts a Queue that is over, and one that is paused.
func TestQueueStartLate(t *testing.T) {
	near, far := jsonrpc.Pipe()
	defer far.Close()
	for _, end := range []func(*line){
		func(l *line) { l.Finish(errors.New("over"), time.Second, nil) },
		func(l *line) { l.Pause(true) },
	} {
		l := newLine()
		l.locked(func() { end(l) })
		over := make(chan error, 1)
		l.Start(&prompt{PipeConn: near}, func(err error) { over <- err })
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

// A socket is a Conn that is not a Prompt, as one over a network.
type socket struct{ jsonrpc.Conn }

// TestQueueRests: the goroutine that sends to a socket stays while messages come often, and for a while after that. Then
// there is none until the next message, or the end. Nor is there one after a message that comes alone.
func TestQueueRests(t *testing.T) {
	for name, end := range map[string]func(l *line){
		"finished": func(l *line) {
			l.Finish(errors.New("over"), time.Second, func() []*jsonrpc.Message { return []*jsonrpc.Message{notice("last")} })
		},
		"paused": func(l *line) { l.Pause(true) },
		"closed": func(l *line) { l.Close(errors.New("over")) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine()
				near, far := jsonrpc.Pipe()
				over := make(chan error, 1)
				l.Start(socket{near}, func(err error) { over <- err })
				send := func() {
					l.locked(func() { _ = l.Force(jsonrpc.Queued{Message: notice("a")}) })
					if m, err := far.Recv(); err != nil || m.Method != "a" {
						t.Errorf("received %v, %v", m, err)
					}
				}
				for range 2 {
					for range 3 {
						time.Sleep(jsonrpc.RestAfter / 2)
						send()
						synctest.Wait()
						if senders() != 0 {
							t.Error("a goroutine waits after a message that came alone")
						}
					}
					time.Sleep(jsonrpc.RestAfter / 2)
					send()
					synctest.Wait()
					send()
					for range 10 {
						time.Sleep(jsonrpc.RestAfter * 9 / 10)
						if senders() != 1 {
							t.Error("each message gets a goroutine of its own")
						}
						send()
					}
					time.Sleep(2 * jsonrpc.RestAfter)
					synctest.Wait()
					if senders() != 0 {
						t.Error("a goroutine waits though nothing comes")
					}
				}
				l.locked(func() { end(l) })
				if err := <-over; (err != nil) != (name == "closed") {
					t.Errorf("over with %v", err)
				}
				if name == "finished" {
					if m, err := far.Recv(); err != nil || m.Method != "last" {
						t.Errorf("received %v, %v, want the last message", m, err)
					}
				}
				synctest.Wait()
				if senders() != 0 {
					t.Error("a goroutine is left")
				}
			})
		})
	}
}

// A restingConn is a Conn in memory whose reader may rest.
type restingConn struct{ *jsonrpc.PipeConn }

func (c restingConn) RecvAll(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	return c.Take(batch)
}
func (c restingConn) Rest(resume func()) bool { return c.RestFor(jsonrpc.RestAfter, resume) }

// TestReceive: Receive returns when nothing has come for a while, and what comes later is handled all the same, in
// order, up to the end.
func TestReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := jsonrpc.Pipe()
		var got []string
		ended := make(chan error, 1)
		receive := func() {
			jsonrpc.Receive(restingConn{far}, nil, func(batch []*jsonrpc.Message, err error) bool {
				got = append(got, names(batch)...)
				if err != nil {
					ended <- err
				}
				return err == nil
			})
		}
		returned := make(chan struct{})
		go func() { receive(); close(returned) }()
		want := func(receiving int, messages ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(got, messages) || receivers() != receiving {
				t.Errorf("handled %q, and %d goroutines receive; want %q and %d", got, receivers(), messages, receiving)
			}
		}
		_ = near.Send(notice("first"))
		<-returned
		want(0, "first")
		_ = near.Send(notice("second"))
		time.Sleep(jsonrpc.RestAfter * 9 / 10)
		want(1, "first", "second")
		_ = near.Send(notice("third"))
		time.Sleep(jsonrpc.RestAfter * 9 / 10)
		want(1, "first", "second", "third")
		time.Sleep(2 * time.Second)
		want(0, "first", "second", "third")

		// What is passed on at once needs no goroutine, and does not keep one.
		far.HandleWith(func(m *jsonrpc.Message) bool {
			got = append(got, m.Method)
			return m.Method != "waits"
		})
		for range 5 {
			got = nil
			time.Sleep(jsonrpc.RestAfter * 9 / 10)
			_ = near.Send(notice("passed"))
		}
		want(0, "passed")
		got = nil
		_ = near.Send(notice("waits"))
		want(0, "waits", "waits")
		far.HandleWith(nil)
		time.Sleep(3 * time.Second)
		want(0, "waits", "waits")
		near.Close()
		if err := <-ended; !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("ended with %v", err)
		}
		want(0, "waits", "waits")
	})
}

// TestReceiveGathers: what comes while gather runs is handled together with what came before.
func TestReceiveGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := jsonrpc.Pipe()
		gathered := 0
		gather := func() {
			if gathered++; gathered == 1 {
				_ = near.Send(notice("second"))
			}
		}
		var got [][]string
		go jsonrpc.Receive(restingConn{far}, gather, func(batch []*jsonrpc.Message, err error) bool {
			if err == nil {
				got = append(got, names(batch))
			}
			return err == nil
		})
		synctest.Wait()
		if gathered != 0 {
			t.Errorf("gather was called %d times though nothing has come", gathered)
		}
		_ = near.Send(notice("first"))
		synctest.Wait()
		if len(got) != 1 || !slices.Equal(got[0], []string{"first", "second"}) {
			t.Errorf("handled %q, want both together", got)
		}
		near.Close()
		synctest.Wait()
	})
}

// An endlessConn always has a message.
type endlessConn struct{ jsonrpc.Conn }

func (endlessConn) Recv() (*jsonrpc.Message, error) { return notice("one of many"), nil }

// TestReceiveYields: while there is always a message, others get their turn on the only processor.
func TestReceiveYields(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for range 5 { // the runtime may have interrupted us meanwhile
		var turn atomic.Bool
		handled := 0
		go turn.Store(true)
		jsonrpc.Receive(endlessConn{}, nil, func(batch []*jsonrpc.Message, _ error) bool {
			handled += len(batch)
			return !turn.Load() && handled < 1000
		})
		if !turn.Load() {
			t.Fatalf("%d messages were handled before another goroutine had its turn", handled)
		}
	}
}
