package remote

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// lostAfter is how long calls of a lost session without a response may still get
	// their own 404, which shows that they did not run.
	lostAfter = time.Second

	// maxSubscriptions bounds the subscriptions that a new session repeats.
	maxSubscriptions = 4096

	// repeatedAtOnce bounds the requests that a new session repeats at a time. The client's calls
	// wait for all of them.
	repeatedAtOnce = 16

	// maxServerRequests bounds the requests of the server that are remembered. Further
	// ones are not cancelled when their session is lost.
	maxServerRequests = 4096
)

// A history is the state of a session that a new one must repeat.
type history struct {
	mu            sync.Mutex        // guards the fields below
	params        []byte            // of initialize
	level         []byte            // params of the last logging/setLevel
	subscriptions map[string][]byte // params of resources/subscribe, by the JSON text of the URI
}

// begin records the params of initialize.
func (h *history) begin(params []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.params = params
}

// keep records the change of state by a call that succeeded.
func (h *history) keep(m *jsonrpc.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m.Method {
	case mcp.MethodSetLevel:
		h.level = m.Params
	case mcp.MethodSubscribe:
		if h.subscriptions == nil {
			h.subscriptions = make(map[string][]byte)
		}
		if len(h.subscriptions) < maxSubscriptions {
			h.subscriptions[string(mcp.Read(m).Raw(mcp.Key))] = m.Params
		}
	case mcp.MethodUnsubscribe:
		delete(h.subscriptions, string(mcp.Read(m).Raw(mcp.Key)))
	}
}

// initialize returns the request that begins a session.
func (h *history) initialize() *jsonrpc.Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	return jsonrpc.NewRequest(ownID(mcp.MethodInitialize), mcp.MethodInitialize, h.params)
}

// replay returns the requests that repeat the rest of the state.
func (h *history) replay() []*jsonrpc.Message {
	h.mu.Lock()
	defer h.mu.Unlock()
	var requests []*jsonrpc.Message
	add := func(method string, params []byte) {
		requests = append(requests, jsonrpc.NewRequest(ownID(strconv.Itoa(len(requests))), method, params))
	}
	if h.level != nil {
		add(mcp.MethodSetLevel, h.level)
	}
	for _, params := range h.subscriptions {
		add(mcp.MethodSubscribe, params)
	}
	return requests
}

// meet begins a new session at an endpoint that has none, and repeats the state of the lost one.
// What the server sends outside calls passes once greeted is closed. meet returns notifications for
// the client, of everything that may have changed meanwhile.
func (s *serverSession) meet(ctx context.Context, at *endpoint, greeted <-chan struct{}) (news []*jsonrpc.Message, err error) {
	m := s.history.initialize()
	x := &exchange{t: s.t, at: at, id: m.ID, reach: newReach(nil), pass: s.passer(at)}
	defer x.close()
	reply, f := greet(ctx, x, m)
	if f == nil && reply.Result == nil {
		f = &failure{cause: jsonrpc.CauseRefused}
	}
	if f == nil {
		l := s.hear(at, greeted)
		l.wait(ctx.Done())
		f = s.confirm(ctx, at)
		l.accepted(ctx.Done())
	}
	if f != nil {
		return nil, fmt.Errorf("make a new session: %s", f.text())
	}
	capabilities := jsonrpc.Get(reply.Result, "capabilities")
	for _, list := range []struct{ capability, changed string }{
		{"tools", mcp.MethodToolsChanged}, {"prompts", mcp.MethodPromptsChanged}, {"resources", mcp.MethodResourcesChanged},
	} {
		if jsonrpc.Get(capabilities, list.capability) != nil {
			news = append(news, jsonrpc.NewNotification(list.changed, nil))
		}
	}
	return append(news, s.restore(ctx, at)...), nil
}

// restore repeats the rest of the state in a new session. It returns notifications for the
// resources that are subscribed to again.
func (s *serverSession) restore(ctx context.Context, at *endpoint) (news []*jsonrpc.Message) {
	requests := s.history.replay()
	accepted := make([]bool, len(requests))
	var repeating errgroup.Group
	repeating.SetLimit(repeatedAtOnce)
	for i, m := range requests {
		repeating.Go(func() error {
			accepted[i] = s.repeat(ctx, at, m)
			return nil
		})
	}
	_ = repeating.Wait()
	for i, m := range requests {
		if uri := mcp.Read(m).Raw(mcp.Key); accepted[i] && m.Method == mcp.MethodSubscribe && uri != nil {
			news = append(news, jsonrpc.NewNotification(mcp.MethodResourceUpdated, slices.Concat([]byte(`{"uri":`), uri, []byte{'}'})))
		}
	}
	return news
}

// confirm posts initialized.
func (s *serverSession) confirm(ctx context.Context, at *endpoint) *failure {
	ctx, cancel := context.WithTimeout(ctx, talkTimeout)
	defer cancel()
	return s.t.deliver(ctx, at, jsonrpc.NewNotification(mcp.MethodInitialized, nil), nil, newReach(nil))
}

// repeat posts a request of our own, and reports whether it succeeded.
func (s *serverSession) repeat(ctx context.Context, at *endpoint, m *jsonrpc.Message) (accepted bool) {
	ctx, cancel := context.WithTimeout(ctx, talkTimeout)
	defer cancel()
	x := &exchange{t: s.t, at: at, id: m.ID, reach: newReach(nil), pass: s.passer(at)}
	defer x.close()
	reply, f := x.run(ctx, m)
	if f != nil || reply.Error != nil {
		s.log.Debug("upstream's new session rejected state of the old one", "method", m.Method)
		return false
	}
	return true
}

// endpoints holds the endpoint in use, and replaces it when the server has forgotten its
// session.
type endpoints struct {
	mu      sync.Mutex // guards the fields below
	at      *endpoint
	renewal *renewal // in progress; nil for none
}

// A renewal makes a new session. All calls that found their session lost wait for it.
type renewal struct {
	done chan struct{} // closed at its end
	next *endpoint     // nil if it failed; written before done is closed, as is err
	err  error         // why it failed, for the log
}

// current returns the endpoint in use.
func (e *endpoints) current() *endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.at
}

// move sets the endpoint in use.
func (e *endpoints) move(at *endpoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.at = at
}

// renew returns the endpoint that replaces lost. If there is none, begin starts a renewal,
// unless one is in progress; begin returns false if it cannot.
func (e *endpoints) renew(ctx context.Context, lost *endpoint, begin func(*renewal) bool) (*endpoint, *failure) {
	e.mu.Lock()
	if e.at != lost {
		defer e.mu.Unlock()
		return e.at, nil
	}
	r := e.renewal
	if r == nil {
		r = &renewal{done: make(chan struct{})}
		if begin(r) {
			e.renewal = r
		} else {
			close(r.done)
		}
	}
	e.mu.Unlock()
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

// renewed records the result of a renewal. The caller closes its done channel.
func (e *endpoints) renewed(r *renewal, next *endpoint, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.renewal, r.err = nil, err
	if err == nil {
		e.at, r.next = next, next
	}
}

// serverRequests are the unanswered requests of the server, each with the endpoint that it
// came from.
type serverRequests struct {
	mu   sync.Mutex // guards open
	open jsonrpc.Table[jsonrpc.ID, *endpoint]
}

// note records a message of the server, if it is a request or cancels one.
func (r *serverRequests) note(m *jsonrpc.Message, at *endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case m.IsRequest() && r.open.Len() < maxServerRequests:
		r.open.TakeKey(m.ID) // a lost session may have used the id
		_ = r.open.Add(m.ID, at)
	case m.Method == mcp.MethodCancelled:
		id, _ := mcp.Read(m).ID(mcp.Key)
		r.open.TakeKey(id)
	}
}

// answer takes out an answered request, and reports whether it came from the endpoint at:
// a new session may use the ids of the lost one again.
func (r *serverRequests) answer(id jsonrpc.ID, at *endpoint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked, known := r.open.TakeKey(id)
	return !known || asked == at
}

// of returns the ids of the requests from an endpoint.
func (r *serverRequests) of(at *endpoint) (ids []jsonrpc.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, asked := range r.open.Each {
		if asked == at {
			ids = append(ids, id)
		}
	}
	return ids
}

// renew returns the endpoint that replaces one whose session the server has forgotten.
func (s *serverSession) renew(ctx context.Context, lost *endpoint) (*endpoint, *failure) {
	return s.endpoints.renew(ctx, lost, func(r *renewal) bool {
		return s.spawn(func() { s.replace(lost, r) })
	})
}

// replace makes a new session in place of a lost one, and finishes the renewal.
func (s *serverSession) replace(lost *endpoint, r *renewal) {
	next := s.newEndpoint(s.t.url)
	greeted := make(chan struct{})
	ctx, cancel := context.WithTimeout(s.work, s.t.startTimeout)
	defer cancel()
	news, err := s.meet(ctx, next, greeted)
	s.endpoints.renewed(r, next, err)
	if err != nil {
		next.cancel()
		close(r.done)
		s.takeLeave(next, time.Now())
		return
	}
	s.log.Info("upstream forgot the session; starting a new one")
	lost.cancel()
	s.forget(lost)
	for _, m := range news {
		s.put(m)
	}
	close(greeted)
	if next.id == "" {
		s.listen(next)
	}
	close(r.done)
}

// forget fails the calls of a lost session whose response has begun, and the others
// lostAfter later. It cancels the server's requests.
func (s *serverSession) forget(lost *endpoint) {
	silent := s.calls.lose(lost, false)
	for _, id := range s.asked.of(lost) {
		s.put(mcp.Cancellation(id, "session lost"))
	}
	if !silent {
		return
	}
	tried := s.t.failures.try() // all that are lost are one event
	late := func() {
		defer tried()
		if sleep(s.work, lostAfter) == nil {
			s.calls.lose(lost, true)
		}
	}
	if !s.spawn(late) {
		tried()
	}
}
