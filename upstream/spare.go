package upstream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// spares are processes that were started ahead, for commands that start slowly. Nothing was written
// to them yet. A stream takes one instead of starting its own, and then another one is started.
//
// A goroutine for each keeps it: it starts a process, waits until that is taken or has exited, and
// starts the next one, after a back-off if it had exited. So a spare is no server: its end is no
// failure and no restart.
type spares struct {
	// Static, set by the host.
	log    *slog.Logger
	limits jsonrpc.Limits // of one message from a process
	wg     *sync.WaitGroup
	forced context.Context // when it is done, processes end at once
	force  context.CancelFunc

	mu    sync.Mutex // guards the fields below
	on    bool       // since start, until end
	pools map[string]*sparePool
}

// A sparePool has the spares of one upstream.
type sparePool struct {
	in      *spares
	name    string
	command *process.Command
	size    int
	log     *slog.Logger
	ctx     context.Context
	end     context.CancelFunc

	ready []*spare // guarded by spares.mu
}

// A spare is a process that nobody has spoken to.
type spare struct {
	*process.Server
	taken chan struct{} // closed when a stream has it
}

// A Spare describes a process that was started ahead.
type Spare struct {
	Upstream string
	PID      int
	Started  time.Time
	Stderr   []string // its last lines
}

// follow makes the pools those of these upstreams. A pool whose command and size are unchanged
// continues.
func (sp *spares) follow(upstreams map[string]Upstream) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for name, p := range sp.pools {
		if up := upstreams[name]; !sp.on || p.command != up.Command || p.size != up.Spare {
			p.end()
			delete(sp.pools, name)
		}
	}
	if !sp.on {
		return
	}
	for name, up := range upstreams {
		if sp.pools[name] == nil && up.Command != nil && up.Spare > 0 {
			sp.pools[name] = sp.newPool(name, &up)
		}
	}
}

func (sp *spares) newPool(name string, up *Upstream) *sparePool {
	p := &sparePool{in: sp, name: name, command: up.Command, size: up.Spare}
	p.log = sp.log.With("upstream", name, "session", "spare")
	p.ctx, p.end = context.WithCancel(context.Background())
	for range p.size {
		sp.wg.Go(p.keep)
	}
	return p
}

// keep keeps one spare until the pool ends.
func (p *sparePool) keep() {
	pause := newBackOff()
	for p.ctx.Err() == nil {
		began := time.Now()
		if p.try() {
			pause.Reset()
			continue
		}
		if time.Since(began) >= stableAfter {
			pause.Reset()
		}
		select {
		case <-time.After(pause.NextBackOff()):
		case <-p.ctx.Done():
		}
	}
}

// try starts a spare and offers it. It returns true when it was taken. Otherwise nothing is left of
// it.
func (p *sparePool) try() bool {
	quiet := func() bool { return true }
	server, err := process.Start(p.command, process.Options{Limits: p.in.limits, Log: p.log, Quiet: quiet})
	if err != nil {
		p.log.Debug("spare process did not start", "err", errors.Unwrap(err))
		return false
	}
	s := &spare{server, make(chan struct{})}
	p.in.mu.Lock()
	p.ready = append(p.ready, s)
	p.in.mu.Unlock()
	select {
	case <-s.taken:
		return true
	case <-s.Exited():
		p.log.Debug("spare process exited")
	case <-p.ctx.Done():
	}
	if !p.withdraw(s) {
		return true
	}
	s.discard(p.in.forced)
	return false
}

// withdraw removes a spare, unless it was taken.
func (p *sparePool) withdraw(s *spare) bool {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	i := slices.Index(p.ready, s)
	if i >= 0 {
		p.ready = slices.Delete(p.ready, i, i+1)
	}
	return i >= 0
}

// discard ends a spare, by force when forced is done. It returns when nothing is left.
func (s *spare) discard(forced context.Context) {
	s.Abort()
	var read sync.WaitGroup
	read.Go(func() {
		for {
			_, err := s.Recv(nil)
			if _, invalid := errors.AsType[*jsonrpc.InvalidError](err); err != nil && !invalid {
				return
			}
		}
	})
	s.Stop(forced)
	read.Wait()
}

// take returns the oldest spare of a command that runs; nil if there is none. The caller owns it.
func (sp *spares) take(name string, command *process.Command) *process.Server {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	p := sp.pools[name]
	if p == nil || p.command != command {
		return nil
	}
	i := slices.IndexFunc(p.ready, func(s *spare) bool { return !s.HasExited() })
	if i < 0 {
		return nil
	}
	s := p.ready[i]
	p.ready = slices.Delete(p.ready, i, i+1)
	close(s.taken)
	return s.Server
}

// start starts the spares of these upstreams.
func (sp *spares) start(upstreams map[string]Upstream) {
	sp.mu.Lock()
	sp.on = true
	sp.mu.Unlock()
	sp.follow(upstreams)
}

// stop ends all spares, and starts no more. It does not wait.
func (sp *spares) stop() {
	sp.mu.Lock()
	sp.on = false
	sp.mu.Unlock()
	sp.follow(nil)
}

// StartSpares starts the spare processes of the upstreams, also of those that Replace brings. Before
// it there are none. [Host.Stop] ends them.
func (h *Host) StartSpares() {
	if !h.begin() {
		return
	}
	defer h.wg.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping.Err() == nil {
		h.spares.start(h.Upstreams)
	}
}

// Spares returns the spare processes, by upstream and age.
func (h *Host) Spares() (all []Spare) {
	h.once.Do(h.init)
	h.spares.mu.Lock()
	defer h.spares.mu.Unlock()
	for _, p := range h.spares.pools {
		for _, s := range p.ready {
			all = append(all, Spare{p.name, s.PID(), s.Started(), s.Stderr()})
		}
	}
	slices.SortFunc(all, func(a, b Spare) int {
		return cmp.Or(cmp.Compare(a.Upstream, b.Upstream), a.Started.Compare(b.Started))
	})
	return all
}
