package eras

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A stormClient counts the messages that it got. One goroutine owns it.
type stormClient struct {
	t         *testing.T
	c         jsonrpc.Conn
	rng       *rand.Rand
	open      map[int64]bool // calls that are not answered
	cancelled map[int64]bool
	questions map[int64]bool // that are not answered and not withdrawn
	settled   int
}

// handle handles a message like a client. It answers most questions, some with an error, and
// cancels the calls of some.
func (s *stormClient) handle(m *jsonrpc.Message) {
	n, _ := m.ID.Int()
	switch {
	case m.IsRequest():
		call, _ := m.Related.Int()
		if !s.open[call] && !s.cancelled[call] {
			s.t.Errorf("asked for call %d, which is over", call)
		}
		s.questions[n] = true
		s.answer(n, m.ID, call)
	case m.Method == "notifications/cancelled":
		text, _ := jsonrpc.Member(m.Params, "requestId")
		id, _ := jsonrpc.ParseID(text)
		q, _ := id.Int()
		delete(s.questions, q) // it may have been answered meanwhile
	case m.Method == "notifications/progress":
	default:
		if !s.open[n] && !s.cancelled[n] {
			s.t.Errorf("call %d was answered twice", n)
		}
		delete(s.open, n)
		delete(s.cancelled, n)
		s.settled++
	}
}

func (s *stormClient) answer(n int64, id jsonrpc.ID, call int64) {
	switch s.rng.IntN(10) {
	case 0:
		delete(s.questions, n)
		_ = s.c.Send(jsonrpc.NewError(id, &jsonrpc.Error{Code: -1, Message: "rejected"}))
	case 1:
		if s.open[call] {
			delete(s.open, call)
			s.cancelled[call] = true
			_ = s.c.Send(jsonrpc.NewNotification("notifications/cancelled", fmt.Appendf(nil, `{"requestId":%d}`, call)))
		}
	default:
		delete(s.questions, n)
		_ = s.c.Send(jsonrpc.NewResult(id, []byte(`{"roots":[]}`)))
	}
}

// stormServer answers each request in one of the possible ways.
func stormServer(c jsonrpc.Conn, rng *rand.Rand) {
	for {
		m, err := c.Recv()
		if err != nil {
			return
		}
		if !m.IsRequest() {
			continue
		}
		var answers []*jsonrpc.Message
		switch rng.IntN(6) {
		case 0:
			answers = append(answers, jsonrpc.NewResult(m.ID, []byte(`{"resultType":"input_required","requestState":"s"}`)))
		case 1, 2:
			answers = append(answers, jsonrpc.NewResult(m.ID,
				[]byte(`{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"},"b":{"method":"roots/list"}}}`)))
		case 3:
			answers = append(answers, jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -5, Message: "x"}))
		default:
			progress := jsonrpc.NewNotification("notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":1}`, m.ID))
			answers = append(answers, progress, jsonrpc.NewResult(m.ID, []byte(`{"resultType":"complete","content":[]}`)))
		}
		if jsonrpc.SendAll(c, answers) != nil {
			return
		}
	}
}

// Many calls at once, in all possible ways: each is answered once, and no question stays open.
func TestLegacyStorm(t *testing.T) {
	const calls = 2000
	synctest.Test(t, func(t *testing.T) {
		seed := rand.Uint64()
		t.Log("seed", seed)
		k := newTalk(t)
		k.hello(`{"roots":{}}`, `{}`, "2025-11-25")
		go func() {
			served, far := jsonrpc.Pipe()
			go stormServer(far, rand.New(rand.NewPCG(seed, 1)))
			go func() {
				for {
					m, err := served.Recv()
					if err != nil || k.server.c.Send(m) != nil {
						return
					}
				}
			}()
			defer served.Close()
			for m := range k.server.in {
				if m == nil || served.Send(m) != nil {
					return
				}
			}
		}()
		s := &stormClient{t: t, c: k.client.c, rng: rand.New(rand.NewPCG(seed, 2)),
			open: make(map[int64]bool), cancelled: make(map[int64]bool), questions: make(map[int64]bool)}
		for i := range int64(calls) {
			s.open[10+i] = true
			call := jsonrpc.NewRequest(jsonrpc.IntID(10+i), "tools/call", fmt.Appendf(nil, `{"name":"a","_meta":{"progressToken":%d}}`, i))
			if err := s.c.Send(call); err != nil {
				t.Fatal(err)
			}
			for len(k.client.in) > 0 {
				s.handle(<-k.client.in)
			}
		}
		for len(s.open) > 0 {
			s.handle(<-k.client.in)
		}
		synctest.Wait()
		for len(k.client.in) > 0 {
			s.handle(<-k.client.in)
		}
		if len(s.questions) > 0 || s.settled+len(s.cancelled) != calls {
			t.Errorf("%d questions are open, %d calls are settled, %d cancelled", len(s.questions), s.settled, len(s.cancelled))
		}
		k.server.in <- nil
	})
}
