package remote

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// outDepth is how many notifications and responses wait to be posted; then
	// Send waits.
	outDepth = 64

	// maxOpen bounds the requests in flight. Those beyond are answered with an
	// error, since Send must not wait for a response.
	maxOpen = 4096
)

// A session is a jsonrpc.Conn to a Server: one HTTP session, or several one after
// the other when the server forgets. See the package's doc for its goroutines.
type session struct {
	// Static after construction.
	server   *Server
	log      *slog.Logger
	ctx      context.Context // done: all is given up at once
	cancel   context.CancelFunc
	work     context.Context // child of ctx, of calls and streams. Done: they are given up
	giveUp   context.CancelFunc
	hurry    context.Context // child of ctx, of notifications and responses
	stopTalk context.CancelFunc
	unhook   func() bool // from the ctx of Dial

	*inbox
	lane   chan item     // to talk; never closed
	opened chan struct{} // closed when the server answered initialize
	ready  chan struct{} // closed when it was told initialized
	left   chan struct{} // closed by Close: the lane gets no more
	talked chan struct{} // closed by talk at its end

	openOnce, readyOnce, closeOnce sync.Once

	// delivered: a request besides initialize may have reached the server.
	delivered atomic.Bool

	wg      sync.WaitGroup
	cancels cancellations

	mu        sync.Mutex      // guards the fields below
	begun     bool            // something was sent
	leaving   bool            // no goroutine may be started any more
	gate      <-chan struct{} // what messages that are sent now wait for; nil: nothing
	calls     map[jsonrpc.ID]*call
	questions map[jsonrpc.ID]*peer // of the server, not answered: whom the answer is for
	peer      *peer
	renewal   *renewal // under way; nil if none is
	state     state
}

func newSession(ctx context.Context, server *Server) *session {
	s := &session{
		server: server, log: server.tally.log,
		inbox: newInbox(), lane: make(chan item, outDepth),
		opened: make(chan struct{}), ready: make(chan struct{}),
		left: make(chan struct{}), talked: make(chan struct{}),
		calls:   make(map[jsonrpc.ID]*call),
		cancels: cancellations{slots: make(chan struct{}, maxCancels)},
	}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.work, s.giveUp = context.WithCancel(s.ctx)
	s.hurry, s.stopTalk = context.WithCancel(s.ctx)
	s.peer = s.newPeer(server.URL)
	s.unhook = context.AfterFunc(ctx, func() { s.fail(&jsonrpc.ClosedError{Cause: causeStopped, Err: context.Cause(ctx)}) })
	server.tally.join()
	return s
}

func (s *session) newPeer(url string) *peer {
	p := &peer{url: url}
	p.ctx, p.cancel = context.WithCancel(s.work)
	return p
}

// spawn runs fn in a goroutine that Close waits for. It does not when the
// session is being left.
func (s *session) spawn(fn func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return false
	}
	s.wg.Go(fn)
	return true
}

// current returns the peer that messages go to.
func (s *session) current() *peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer
}

// Send implements jsonrpc.Conn. It waits for room at most, never for a response.
func (s *session) Send(m *jsonrpc.Message) error {
	if m.Batch == nil {
		return s.send(m)
	}
	for _, e := range m.Batch { // versions since 2025-06-18 have no batches
		if err := s.send(e); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) send(m *jsonrpc.Message) error {
	select {
	case <-s.ended:
		return jsonrpc.Closed(s.err)
	default:
	}
	gate := s.begin(m)
	switch {
	case m.IsRequest():
		s.request(m, gate)
		return nil
	case m.Method == mcp.MethodCancelled:
		c, ok := s.cancelled(m)
		if !ok {
			return nil
		}
		return s.tell(item{m: m, gate: gate, cancels: c})
	}
	return s.tell(item{m: m, gate: gate})
}

// begin starts what the first message needs. It returns what m has to wait for:
// all after initialize for its answer, all after initialized for its being
// accepted.
func (s *session) begin(m *jsonrpc.Message) (gate <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.begun && !s.leaving {
		s.begun = true
		s.wg.Go(s.talk)
		if s.server.SSE {
			s.gate = s.opened
			s.wg.Go(s.openLegacy)
		}
	}
	gate = s.gate
	switch {
	case m.Method == mcp.MethodInitialize:
		s.gate = s.opened
	case m.Method == mcp.MethodInitialized:
		s.gate = s.ready
	case !m.IsRequest() && gate == s.ready: // they are in order anyway
		return nil
	}
	return gate
}

// fail ends the session because of what happened to it.
func (s *session) fail(end *jsonrpc.ClosedError) {
	end.Delivered = s.delivered.Load()
	s.end(end)
	s.cancel()
}

// failed ends the session because of how something failed that it cannot do
// without, unless it failed because the session ends.
func (s *session) failed(f *failure) {
	if s.work.Err() == nil {
		s.fail(f.end())
	}
}
