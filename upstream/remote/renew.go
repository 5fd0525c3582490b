package remote

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// lostAfter is how long requests of a lost session that have no response
	// yet may still get their own 404, which says that they did not run.
	lostAfter = time.Second

	// maxSubscriptions bounds those that a new session is given back.
	maxSubscriptions = 4096

	maxQuestions = 4096 // that are remembered; others lose their session unnoticed
)

// A state is what a new session must be told to be what the old one was.
type state struct {
	params        []byte            // of initialize
	level         []byte            // params of the last logging/setLevel
	subscriptions map[string][]byte // params of resources/subscribe, by the JSON text of the URI
}

// keep notes what a request that succeeded changed.
func (s *session) keep(m *jsonrpc.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.Method {
	case mcp.MethodSetLevel:
		s.state.level = m.Params
	case mcp.MethodSubscribe:
		if s.state.subscriptions == nil {
			s.state.subscriptions = make(map[string][]byte)
		}
		if len(s.state.subscriptions) < maxSubscriptions {
			s.state.subscriptions[string(member(m.Params, "uri"))] = m.Params
		}
	case mcp.MethodUnsubscribe:
		delete(s.state.subscriptions, string(member(m.Params, "uri")))
	}
}

// replay returns the requests that repeat a state.
func (s *session) replay() []*jsonrpc.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	var requests []*jsonrpc.Message
	add := func(method string, params []byte) {
		requests = append(requests, jsonrpc.NewRequest(ownID(strconv.Itoa(len(requests))), method, params))
	}
	if s.state.level != nil {
		add(mcp.MethodSetLevel, s.state.level)
	}
	for _, params := range s.state.subscriptions {
		add(mcp.MethodSubscribe, params)
	}
	return requests
}

// A renewal is the making of a new session for one that the server has
// forgotten. All requests that found that out wait for it.
type renewal struct {
	done chan struct{} // closed at its end
	next *peer         // nil if it failed; written before done is closed, as is err
	err  error         // why it failed, for the log
}

// renew returns the peer to use in place of lost, which it finds or makes.
func (s *session) renew(ctx context.Context, lost *peer) (*peer, *failure) {
	s.mu.Lock()
	if s.peer != lost {
		defer s.mu.Unlock()
		return s.peer, nil
	}
	r := s.renewal
	if r == nil && !s.leaving {
		r = &renewal{done: make(chan struct{})}
		s.renewal = r
		s.wg.Go(func() { s.make(r, lost) })
	}
	s.mu.Unlock()
	if r == nil {
		return nil, refused(http.StatusNotFound)
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return nil, broken(ctx, ctx.Err(), true)
	}
	if r.next == nil {
		f := refused(http.StatusNotFound)
		f.err = r.err
		return nil, f
	}
	return r.next, nil
}

// make brings a renewal to its end.
func (s *session) make(r *renewal, lost *peer) {
	next, capabilities, subscribed, err := s.meet()
	s.mu.Lock()
	s.renewal, r.next, r.err = nil, next, err
	if next != nil {
		s.peer = next
	}
	s.mu.Unlock()
	if next == nil {
		close(r.done)
		return
	}
	s.log.Info("upstream forgot the session, a new one is made")
	lost.cancel()
	s.forget(lost)
	for _, kind := range []string{"tools", "prompts", "resources"} {
		if member(capabilities, kind) != nil { // it may have changed while we were deaf
			s.put(received{m: jsonrpc.NewNotification("notifications/"+kind+"/list_changed", nil)})
		}
	}
	for _, uri := range subscribed { // likewise
		s.put(received{m: jsonrpc.NewNotification(mcp.MethodResourceUpdated, slices.Concat([]byte(`{"uri":`), uri, []byte{'}'}))})
	}
	s.hear(next, func() { close(r.done) })
}

// meet makes a new session like the lost one, and returns what it has subscribed to
// there. The peer is nil if it cannot.
func (s *session) meet() (next *peer, capabilities []byte, subscribed [][]byte, err error) {
	s.mu.Lock()
	params := s.state.params
	s.mu.Unlock()
	x, reply, f := s.greet(s.work, jsonrpc.NewRequest(ownID(mcp.MethodInitialize), mcp.MethodInitialize, params), jsonrpc.ID{})
	defer x.close()
	if f == nil && reply.Result == nil {
		f = &failure{cause: "initialize refused"}
	}
	if f == nil {
		ctx, cancel := context.WithTimeout(s.work, talkTimeout)
		defer cancel()
		f = s.server.deliver(ctx, x.p, jsonrpc.NewNotification(mcp.MethodInitialized, nil), nil)
	}
	if f != nil {
		x.p.cancel()
		return nil, nil, nil, fmt.Errorf("make a new session: %s", f.cause)
	}
	for _, m := range s.replay() {
		if uri := member(m.Params, "uri"); s.repeat(x.p, m) && uri != nil {
			subscribed = append(subscribed, uri)
		}
	}
	return x.p, member(reply.Result, "capabilities"), subscribed, nil
}

// repeat posts a request of our own.
func (s *session) repeat(p *peer, m *jsonrpc.Message) (accepted bool) {
	ctx, cancel := context.WithTimeout(s.work, talkTimeout)
	defer cancel()
	x := &exchange{server: s.server, to: s, p: p, id: m.ID, reach: newReach(nil)}
	defer x.close()
	reply, f := x.run(ctx, m)
	if f != nil || reply.Error != nil {
		s.log.Debug("upstream's new session refuses what the old one had", "method", m.Method)
		return false
	}
	return true
}

// forget gives up what belongs to a lost session: calls whose response has
// begun, others if they hear nothing for a while, and the server's questions.
func (s *session) forget(lost *peer) {
	s.mu.Lock()
	var silent []*call
	for _, c := range s.calls {
		if c.peer == lost && c.stream {
			c.cancel(errSessionLost)
		} else if c.peer == lost {
			silent = append(silent, c)
		}
	}
	var questions []jsonrpc.ID
	for id, p := range s.questions {
		if p == lost {
			questions = append(questions, id)
		}
	}
	s.mu.Unlock()
	for _, id := range questions {
		s.put(received{m: mcp.Cancellation(id, "session lost")})
	}
	if len(silent) > 0 {
		s.spawn(func() { s.giveUpSilent(silent, lost) })
	}
}

// giveUpSilent gives up calls that still wait for a response of a lost session.
func (s *session) giveUpSilent(calls []*call, lost *peer) {
	if sleep(s.work, lostAfter) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range calls {
		if c.peer == lost && s.calls[c.m.ID] == c {
			c.cancel(errSessionLost)
		}
	}
}

// pass implements receiver.
func (s *session) pass(m *jsonrpc.Message, from *peer) bool {
	s.asked(m, from)
	return s.put(received{m: m})
}

// asked notes a message of the server if it is a question.
func (s *session) asked(m *jsonrpc.Message, p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case m.IsRequest() && len(s.questions) < maxQuestions:
		if s.questions == nil {
			s.questions = make(map[jsonrpc.ID]*peer)
		}
		s.questions[m.ID] = p
	case m.Method == mcp.MethodCancelled:
		id, _ := jsonrpc.ParseID(member(m.Params, "requestId"))
		delete(s.questions, id)
	}
}

// answersFor reports whether the answer to a question is for p, and forgets the
// question. The lost session's ids may be in use again.
func (s *session) answersFor(id jsonrpc.ID, p *peer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked, known := s.questions[id]
	delete(s.questions, id)
	return !known || asked == p
}
