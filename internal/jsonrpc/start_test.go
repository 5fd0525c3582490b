package jsonrpc_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// senders returns how many goroutines of Start there are.
func senders() int {
	all := make([]byte, 1<<20)
	return strings.Count(string(all[:runtime.Stack(all, true)]), "(*Queue).Start.func")
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
