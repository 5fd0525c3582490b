package shared

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Servers holds the servers that many streams share. Its fields must not change after the first Attach.
type Servers struct {
	Log        *slog.Logger // nil discards
	MaxMessage int          // bytes of the largest message from a server

	// Ambiguous is called when a request of an upstream could belong to any of several clients.
	// It may be nil.
	Ambiguous func(upstream string)

	// Slow is called when a client's stream was ended, with open calls, since the client did not
	// read. It may be nil.
	Slow func(upstream, session string, end *jsonrpc.ClosedError, open int)

	wg sync.WaitGroup // sessions and their servers, and Attach

	mu      sync.Mutex                   // guards the fields below
	open    map[sessionID]*sharedSession // a session that has ended is replaced by the next client
	stopped bool                         // no more sessions are opened
	forced  context.Context              // of all; nil before the first
	force   context.CancelFunc
}

// A sessionID names a session: the upstream has one in each era.
type sessionID struct {
	upstream string
	era      mcp.Era
}

// Attach begins to serve one stream of a client on a shared server, and owns c. At the end of the stream over is called;
// the server stays. session names the stream in the log.
func (p *Servers) Attach(
	ctx context.Context, up Upstream, era mcp.Era, holder mcp.Holder, session string, c jsonrpc.Conn, over func(error),
) {
	if ctx.Err() != nil {
		over(jsonrpc.Refuse(c, jsonrpc.CauseStartFailed, context.Cause(ctx)))
		return
	}
	m := newMember(c, up.Name, p.MaxMessage, p.logger().With("upstream", up.Name, "session", session))
	m.holder = holder
	if p.Slow != nil {
		m.slow = func(end *jsonrpc.ClosedError, open int) { p.Slow(up.Name, session, end, open) }
	}
	if !p.join(up, era, m) {
		over(jsonrpc.Refuse(c, jsonrpc.CauseStartFailed, errStops))
		return
	}
	m.serve(ctx, func(err error) {
		p.wg.Done()
		over(err)
	})
}

// join makes m a member of the session with an upstream's server, and starts the server if necessary: once, so
// that m gets the error of a start that fails at once. It adds one to p.wg. It reports false after Stop.
func (p *Servers) join(up Upstream, era mcp.Era, m *member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	p.wg.Add(1)
	if s := p.open[sessionID{up.Name, era}]; s != nil && s.join(m) {
		return true
	}
	s, start := p.newLocked(up, era, false)
	s.join(m)
	start()
	return true
}

// newLocked makes the session with an upstream. The caller adds the first member and then calls start. A session
// on trial finds out whether the server speaks the era.
func (p *Servers) newLocked(up Upstream, era mcp.Era, trial bool) (s *sharedSession, start func()) {
	if p.open == nil {
		p.open = make(map[sessionID]*sharedSession)
		p.forced, p.force = context.WithCancel(context.Background())
	}
	near, far := jsonrpc.Pipe()
	s = newSharedSession(p.forced, up, p.logger())
	s.ambiguous = p.Ambiguous
	var onTrial func() bool
	if era == mcp.Modern {
		s.modern = newModernServer(trial)
		onTrial = s.modern.trial.Load
		s.discover()
	} else {
		s.initialize(s.initialized)
	}
	before := p.open[sessionID{up.Name, era}]
	p.open[sessionID{up.Name, era}] = s
	return s, func() {
		p.wg.Go(func() {
			if before != nil && before.rests() {
				<-before.ends // now its server is being stopped, and Serve can wait for that
			}
			_ = up.Serve(p.forced, era, far, onTrial) // near.Recv returns it, too
		})
		p.wg.Go(func() { s.run(near) })
	}
}

// Try starts a server to find out whether it speaks modern. A modern server is kept and used from then on. Others
// are stopped, since some do not survive a request before initialize. told is false if no answer decided.
func (p *Servers) Try(up Upstream) (modern, told bool, err error) {
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return false, false, &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Err: errStops}
	}
	s, start := p.newLocked(up, mcp.Modern, true)
	start()
	p.mu.Unlock()
	<-s.modern.decided
	return s.modern.modern, s.modern.told, s.modern.err
}

// End ends the sessions with some upstreams for a cause, which their clients get. It does not wait: later clients get
// new ones.
func (p *Servers) End(upstreams []string, cause jsonrpc.Cause) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, s := range p.open {
		if slices.Contains(upstreams, id.upstream) {
			s.retire(cause)
		}
	}
}

// EndIdle ends the modern servers without a stream before their idle time is over.
func (p *Servers) EndIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.open {
		s.endIdle()
	}
}

// Unattributed returns how many messages of an upstream's server were dropped since its start because they could
// concern any of several clients.
func (p *Servers) Unattributed(upstream string, era mcp.Era) int {
	p.mu.Lock()
	s := p.open[sessionID{upstream, era}]
	p.mu.Unlock()
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// Stop ends all sessions: gracefully, and by force when ctx is done. It returns when all sessions and streams have
// ended. Attach fails from then on.
func (p *Servers) Stop(ctx context.Context) {
	p.mu.Lock()
	p.stopped = true
	open, force := p.open, p.force // neither changes from here on
	p.mu.Unlock()
	for _, s := range open {
		s.stop(jsonrpc.CauseHostStopped)
	}
	if force != nil { // also for servers that are still stopping
		unhook := context.AfterFunc(ctx, force)
		defer unhook()
	}
	p.wg.Wait()
}

func (p *Servers) logger() *slog.Logger { return cmp.Or(p.Log, slog.New(slog.DiscardHandler)) }
