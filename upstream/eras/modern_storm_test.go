package eras

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A storm is one modern client with more calls than there are sessions, on servers that answer late, ask, die, and
// go on with what was cancelled. Its time is virtual.
type storm struct {
	t    *testing.T
	rng  *rand.Rand // guarded by mu, as what follows
	mu   sync.Mutex
	last int64            // id
	open map[int64]string // name of each call that is not answered

	c  jsonrpc.Conn
	wg sync.WaitGroup
}

func (s *storm) random(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.IntN(n)
}

// id returns another id.
func (s *storm) id() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// rest waits for a random time.
func (s *storm) rest(most time.Duration) { time.Sleep(time.Duration(s.random(int(most)))) }

// serve is a server. It works on each request in a goroutine.
func (s *storm) serve(c jsonrpc.Conn) {
	defer c.Close()
	var asked sync.Map // channels of questions, by id
	var working sync.WaitGroup
	defer working.Wait()
	over := make(chan struct{})
	defer close(over)
	for {
		m, err := c.Recv()
		switch {
		case err != nil:
			return
		case m.Method == "initialize":
			_ = c.Send(jsonrpc.NewResult(m.ID, []byte(benchWelcome)))
		case m.IsResponse():
			if heard, ok := asked.LoadAndDelete(m.ID); ok {
				close(heard.(chan struct{}))
			}
		case !m.IsRequest():
		case s.random(200) == 0:
			return
		default:
			working.Go(func() { s.work(c, m, &asked, over) })
		}
	}
}

func (s *storm) work(c jsonrpc.Conn, m *jsonrpc.Message, asked *sync.Map, over chan struct{}) {
	s.rest(40 * time.Second)
	if s.random(3) == 0 {
		id, heard := jsonrpc.IntID(s.id()), make(chan struct{})
		asked.Store(id, heard)
		_ = c.Send(jsonrpc.NewRequest(id, "elicitation/create", []byte(`{"message":"m"}`)))
		select {
		case <-heard:
		case <-over:
			return
		}
		s.rest(20 * time.Second)
	}
	name, _ := jsonrpc.Member(m.Params, "name")
	_ = c.Send(jsonrpc.NewResult(m.ID, []byte(`{"of":`+string(name)+`}`)))
}

// call sends a call; more are members of its params.
func (s *storm) call(name, more string) {
	n := s.id()
	s.mu.Lock()
	s.open[n] = name
	s.mu.Unlock()
	params := fmt.Appendf(nil, `{"name":%q,"_meta":{%q:{"elicitation":{},"experimental":{"%c":{}}}}%s}`, name, mcp.KeyCapabilities, name[0], more)
	if err := s.c.Send(jsonrpc.NewRequest(jsonrpc.IntID(n), "tools/call", params)); err != nil {
		s.t.Error(err)
	}
	if s.random(6) == 0 {
		s.rest(30 * time.Second)
		s.mu.Lock()
		_, open := s.open[n]
		delete(s.open, n)
		s.mu.Unlock()
		if open {
			_ = s.c.Send(jsonrpc.NewNotification("notifications/cancelled", fmt.Appendf(nil, `{"requestId":%d}`, n)))
		}
	}
}

// hear handles what the client gets.
func (s *storm) hear() {
	for {
		m, err := s.c.Recv()
		if err != nil {
			return
		}
		n, _ := m.ID.Int()
		s.mu.Lock()
		name, open := s.open[n]
		delete(s.open, n)
		cancelled := !open && n <= s.last
		s.mu.Unlock()
		of, _ := jsonrpc.Member(m.Result, "of")
		state, _ := jsonrpc.Member(m.Result, "requestState")
		switch {
		case cancelled, m.Error != nil: // its answer was on its way; its session has ended, or others needed that
		case state != nil && s.random(2) == 0:
			s.wg.Go(func() {
				s.rest(50 * time.Second)
				s.call(name, `,"requestState":`+string(state)+`,"inputResponses":{"q1":{"action":"accept"}}`)
			})
		case state != nil: // it does not come back
		case string(of) != `"`+name+`"`:
			s.t.Errorf("%s received %s", name, m.Result)
		}
	}
}

// Sessions get full, calls wait, and suspended calls get old enough to make room. Each call is answered with its own
// answer or an error, or cancelled, and nothing is left behind.
func TestModernStorm(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			s := &storm{t: t, rng: rand.New(rand.NewPCG(seed, 1)), open: make(map[int64]string)}
			b := &Bridge{Idle: time.Minute, SuspendFor: 2 * time.Minute,
				Open: func(context.Context, string, string, mcp.Era) jsonrpc.Conn {
					near, far := jsonrpc.Pipe()
					s.wg.Go(func() { s.serve(far) })
					return near
				}}
			b.asking.Store("up", true)
			near, far := jsonrpc.Pipe()
			s.c = near
			ended := make(chan error, 1)
			go func() { ended <- b.Modern(t.Context(), "up", "p-key", far) }()
			s.wg.Go(s.hear)
			for i := range 300 {
				s.wg.Go(func() { s.call(fmt.Sprintf("%c%d", 'a'+s.random(4), i), "") })
				s.rest(time.Second)
			}
			time.Sleep(time.Hour)
			s.mu.Lock()
			if len(s.open) > 0 {
				t.Errorf("seed %d: %d calls are not answered: %v", seed, len(s.open), s.open)
			}
			s.mu.Unlock()
			near.Close()
			<-ended
			b.Stop(context.Background())
			s.wg.Wait()
			if len(b.accounts) > 0 {
				t.Errorf("seed %d: %d accounts are left", seed, len(b.accounts))
			}
		})
	}
}
