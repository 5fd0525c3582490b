package proxy

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

// ErrForced is returned by Shutdown when its ctx was cancelled before the end.
var ErrForced = errors.New("shutdown was forced")

const (
	// forceTime is what it takes to end upstreams by force.
	forceTime = time.Second

	// A server that was busy until the end of the drain has its whole stopGrace before
	// SIGTERM; tellTime is what it takes to tell clients that do not read, and stopMargin
	// is kept for the end of servers that ignore SIGTERM.
	tellTime   = time.Second
	stopMargin = 500 * time.Millisecond

	// hangUpTime is more than sessions need to hang up when they are forced to end.
	hangUpTime = 300 * time.Millisecond
)

// A budget is the time of one shutdown. It is that until the deadline of a ctx, if
// there is one: first requests drain, and what is left then belongs to the servers.
// What has not ended when the time is nearly used up ends by force, and so it does
// soon after the ctx is cancelled.
type budget struct {
	drain    context.Context // done when nothing may drain any more
	endDrain context.CancelFunc
	force    *time.Timer
	stop     func() bool // of what watches the ctx
	ctx      context.Context
}

// newBudget returns the budget until ctx is done. It keeps the time stop for upstreams that stop by themselves,
// and calls force when the time is used up, but not before sessions had the time hangUp.
func newBudget(ctx context.Context, stop, hangUp time.Duration, force func()) *budget {
	b := &budget{ctx: ctx}
	left, reserve := time.Duration(math.MaxInt64), time.Duration(0)
	if deadline, ok := ctx.Deadline(); ok {
		left, reserve = time.Until(deadline), max(stop, tellTime)+stopMargin
	}
	b.drain, b.endDrain = context.WithTimeout(ctx, max(left-reserve, 0))
	b.force = time.AfterFunc(max(left-forceTime, hangUp), force)
	b.stop = context.AfterFunc(ctx, func() {
		if b.cancelled() {
			b.force.Reset(hangUp)
		}
	})
	return b
}

func (b *budget) cancelled() bool { return errors.Is(b.ctx.Err(), context.Canceled) }

// over ends the budget when all is over. It returns ErrForced if the ctx was cancelled
// before.
func (b *budget) over() error {
	inTime := b.stop()
	b.force.Stop()
	b.endDrain()
	if !inTime && b.cancelled() {
		return ErrForced
	}
	return nil
}

// closeNow is what Close does: a shutdown without any time.
func closeNow(shutdown func(context.Context) error) error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = shutdown(now) // forced, as it was told to be
	return nil
}

// A gate counts those in who must be waited for, until it is shut.
type gate struct {
	mu   sync.Mutex // guards shut, and the entering of wg
	shut bool
	wg   sync.WaitGroup
}

// enter counts somebody in, unless the gate is shut.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		g.wg.Add(1)
	}
	return !g.shut
}

func (g *gate) leave() { g.wg.Done() }

// run runs f in a goroutine that is counted in, unless the gate is shut.
func (g *gate) run(f func()) bool {
	if !g.enter() {
		return false
	}
	go func() {
		defer g.leave()
		f()
	}()
	return true
}

// wait shuts the gate and waits for all who are in.
func (g *gate) wait() {
	g.mu.Lock()
	g.shut = true
	g.mu.Unlock()
	g.wg.Wait()
}

// rest sleeps for d, or until ctx is done.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
