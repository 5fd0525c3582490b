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
	forceTime = time.Second // to end upstreams by force

	// A server that was busy until the end of the drain keeps its whole stopGrace before SIGTERM.
	// Sessions need tellTime to close clients that do not read; stopMargin is for servers that
	// ignore SIGTERM.
	tellTime   = time.Second
	stopMargin = 500 * time.Millisecond

	hangUpTime = 300 * time.Millisecond // more than sessions need to end by force
)

// A budget is the time of one shutdown, until the deadline of a ctx if it has one. First requests
// drain, and the servers have the rest to stop. Everything that remains shortly before the
// deadline, or soon after a cancellation of the ctx, ends by force.
type budget struct {
	drain    context.Context // done at the end of the drain
	endDrain context.CancelFunc
	force    *time.Timer
	stop     func() bool // stops watching ctx
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

// over ends the budget. It returns ErrForced if the ctx was cancelled before.
func (b *budget) over() error {
	inTime := b.stop()
	b.force.Stop()
	b.endDrain()
	if !inTime && b.cancelled() {
		return ErrForced
	}
	return nil
}

// closeNow shuts down without any time.
func closeNow(shutdown func(context.Context) error) error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = shutdown(now) // ErrForced
	return nil
}

// A gate is a WaitGroup that admits no more once somebody waits for it.
type gate struct {
	mu   sync.Mutex // guards shut, and wg.Add
	shut bool
	wg   sync.WaitGroup
}

// enter reports whether the gate is open. If so the caller calls leave.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.shut {
		g.wg.Add(1)
	}
	return !g.shut
}

func (g *gate) leave() { g.wg.Done() }

// run runs f in a goroutine that wait waits for. It reports false if the gate is shut.
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

// wait shuts the gate and waits until everybody has left.
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
