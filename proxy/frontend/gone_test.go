package frontend

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A leaving is a session whose client comes and goes.
type leaving struct {
	*testClient
	*httpSession
	conn jsonrpc.Conn
	busy atomic.Bool // a task is unfinished
}

// inLeaving runs a test in a bubble, with a client that has just initialized.
func inLeaving(t *testing.T, setUp func(*HTTP), test func(*leaving)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var conns <-chan jsonrpc.Conn
		ts := newBubbleServer(t, func(h *HTTP) {
			conns = manual(h)
			if setUp != nil {
				setUp(h)
			}
		})
		ts.conns = conns
		l := &leaving{}
		l.testClient, l.conn = ts.connectManual("2025-11-25")
		l.httpSession = ts.only()
		l.KeepWhile(l.busy.Load)
		go io.Copy(io.Discard, neverEmpty{l.conn})
		test(l)
	})
}

// A neverEmpty answers the requests on a Conn, except for "never" and "slow".
type neverEmpty struct{ jsonrpc.Conn }

func (c neverEmpty) Read([]byte) (int, error) {
	m, err := c.Recv()
	if err == nil && m.IsRequest() && m.Method != "slow" {
		if reply := echoed(m); reply != nil {
			c.Send(reply)
		}
	}
	return 0, err
}

// listen opens the GET stream, which the returned function closes.
func (l *leaving) listen() (hangUp func()) {
	l.t.Helper()
	resp := l.get()
	if resp.StatusCode != http.StatusOK {
		l.t.Fatal(resp.Status)
	}
	go io.Copy(io.Discard, resp.Body)
	return func() {
		resp.Body.Close()
		synctest.Wait()
	}
}

// use sends a request that is answered.
func (l *leaving) use() {
	l.t.Helper()
	wantStatus(l.t, l.post(ping), http.StatusOK)
}

// lasts checks that the session ends just after d, with that cause.
func (l *leaving) lasts(d time.Duration, cause error) {
	l.t.Helper()
	start := time.Now()
	<-l.conn.(*endedConn).done
	if got := time.Since(start); got != d {
		l.t.Errorf("the session lasted %v, want %v", got, d)
	}
	if err := l.in.Err(); !errors.Is(err, cause) {
		l.t.Errorf("it ended because: %v, want: %v", err, cause)
	}
	wantRefusal(l.t, l.post(ping), http.StatusNotFound, -32600)
}

func TestSessionGone(t *testing.T) {
	const gone, idle = 5 * time.Minute, 30 * time.Minute
	for name, test := range map[string]func(*leaving){
		"stream closed": func(l *leaving) {
			l.listen()()
			l.lasts(gone, errGone)
		},
		"never had a stream": func(l *leaving) {
			l.use()
			l.lasts(idle, errIdle)
		},
		"stream open": func(l *leaving) {
			hangUp := l.listen()
			time.Sleep(24 * time.Hour)
			hangUp()
			l.lasts(gone, errGone)
		},
		"stream came back": func(l *leaving) {
			l.listen()()
			time.Sleep(gone - 1)
			hangUp := l.listen()
			time.Sleep(time.Hour)
			hangUp()
			l.lasts(gone, errGone)
		},
		"stream replaced": func(l *leaving) {
			first := l.listen()
			second := l.listen()
			first()
			time.Sleep(time.Hour)
			second()
			l.lasts(gone, errGone)
		},
		// The TypeScript client after two retries, while its user thinks.
		"goes on without a stream": func(l *leaving) {
			l.listen()()
			time.Sleep(gone - 1)
			l.use()
			time.Sleep(2 * gone)
			l.use()
			l.lasts(idle, errIdle)
		},
		"stream again after going on without": func(l *leaving) {
			l.listen()()
			l.use()
			time.Sleep(2 * gone)
			l.listen()()
			l.lasts(gone, errGone)
		},
		"response after the stream": func(l *leaving) {
			hangUp := l.listen()
			resp := l.post(`{"jsonrpc":"2.0","id":1,"method":"slow"}`)
			go io.Copy(io.Discard, resp.Body)
			hangUp()
			time.Sleep(gone + time.Minute)
			l.conn.Send(result(1))
			synctest.Wait()
			l.lasts(idle, errIdle)
		},
		"left during a call": func(l *leaving) {
			hangUp := l.listen()
			resp := l.post(`{"jsonrpc":"2.0","id":1,"method":"slow"}`)
			hangUp()
			resp.Body.Close()
			synctest.Wait()
			time.Sleep(gone + time.Minute)
			l.conn.Send(result(1))
			l.lasts(gone-time.Minute, errGone)
		},
		"left during a call that hangs": func(l *leaving) {
			hangUp := l.listen()
			resp := l.post(`{"jsonrpc":"2.0","id":1,"method":"slow"}`)
			resp.Body.Close()
			hangUp()
			l.lasts(idle, errGone)
		},
		"task": func(l *leaving) {
			l.busy.Store(true)
			l.listen()()
			time.Sleep(gone + time.Minute)
			l.busy.Store(false)
			l.lasts(gone-time.Minute, errGone)
		},
		"task that never ends": func(l *leaving) {
			l.busy.Store(true)
			l.listen()()
			l.lasts(idle, errGone)
		},
		"deleted": func(l *leaving) {
			l.listen()()
			wantStatus(l.t, l.delete(), http.StatusNoContent)
			l.lasts(0, errDeleted)
		},
	} {
		t.Run(name, func(t *testing.T) { inLeaving(t, nil, test) })
	}
}

func TestSessionGoneSettings(t *testing.T) {
	for _, tt := range []struct {
		gone, idle, want time.Duration
		cause            error
	}{
		{time.Second, 0, time.Second, errGone},
		{time.Hour, time.Minute, time.Minute, errGone},
		{-1, 0, 30 * time.Minute, errGone},
		{time.Minute, -1, time.Minute, errGone},
	} {
		inLeaving(t, func(h *HTTP) { h.SessionGone, h.SessionIdle = tt.gone, tt.idle }, func(l *leaving) {
			l.listen()()
			l.lasts(tt.want, tt.cause)
		})
	}
}

// A question whose POST has been dropped is asked on the GET stream: of a POST that is about to be given up, and of one
// that its client may resume, but need not.
func TestQuestionOfADroppedPOST(t *testing.T) {
	for _, open := range []time.Duration{0, time.Second} {
		inLeaving(t, nil, func(l *leaving) {
			ev := newEvents(l.t, l.get())
			ctx, leave := context.WithCancel(l.t.Context())
			l.send(l.request(http.MethodPost, `{"jsonrpc":"2.0","id":7,"method":"slow"}`).WithContext(ctx))
			synctest.Wait()
			time.Sleep(open)
			leave()
			synctest.Wait()
			question := jsonrpc.NewRequest(jsonrpc.IntID(70), "roots/list", nil)
			question.Related = jsonrpc.IntID(7)
			if err := l.conn.Send(question); err != nil {
				l.t.Fatal(err)
			}
			for {
				e := ev.one()
				if len(e.Data) == 0 {
					continue
				}
				wantText(l.t, e.message(l.t), `{"jsonrpc":"2.0","id":70,"method":"roots/list"}`)
				return
			}
		})
	}
}
