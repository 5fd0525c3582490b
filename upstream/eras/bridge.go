package eras

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Bridge lets modern clients use upstreams that speak legacy, and keeps what they need
// of these between their requests. Its exported fields must not change once it serves.
type Bridge struct {
	// Open returns a stream to an upstream, in an era that it speaks. It does not
	// wait for the upstream to start; what goes wrong is the end of the stream, a
	// [*jsonrpc.ClosedError]. An answer to initialize that is no result is followed by
	// such an end. Whoever opens it closes it.
	Open func(ctx context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn

	// Relates reports whether the Related of what a legacy upstream sends is
	// certain, as it is over HTTP, and not a guess. Nil: of none.
	Relates func(upstream string) bool

	Idle       time.Duration // without use, of a session that is kept; zero means 5 min
	SuspendFor time.Duration // for an answer to what a suspended call asks; zero means 10 min

	Log *slog.Logger // nil discards

	lifetime
	accounts map[accountID]*account // guarded by mu
	force    context.CancelFunc     // ends all sessions by force; nil before the first account
}

func (b *Bridge) logger() *slog.Logger {
	if b.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return b.Log
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// account returns the account of a key on an upstream, held; nil after Stop.
func (b *Bridge) account(id accountID) *account {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return nil
	}
	if b.accounts == nil {
		b.accounts = make(map[accountID]*account)
		b.begun()
	}
	a := b.accounts[id]
	if a == nil {
		a = newAccount(&b.lifetime, id)
		b.accounts[id] = a
	}
	a.uses++
	return a
}

// begun prepares what accounts have in common.
func (b *Bridge) begun() {
	var forced context.Context
	forced, b.force = context.WithCancel(context.Background())
	b.lifetime.open = func(upstream, key string) jsonrpc.Conn { return b.Open(forced, upstream, key, mcp.Legacy) }
	b.relates = func(upstream string) bool { return b.Relates != nil && b.Relates(upstream) }
	b.idle, b.suspendFor = orElse(b.Idle, 5*time.Minute), orElse(b.SuspendFor, 10*time.Minute)
	b.lifetime.logger = b.logger
	b.forget = func(id accountID) { delete(b.accounts, id) }
}

// each calls fn with all accounts, with the lock of each held.
func (b *Bridge) each(fn func(a *account)) {
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.accounts))
	b.mu.Unlock()
	for _, a := range all {
		a.mu.Lock()
		fn(a)
		a.mu.Unlock()
	}
}

// Stop ends what outlives the streams of modern clients: their listens with the
// result of a graceful end, and the sessions by closing their
// streams, so that each server ends as it wishes. When ctx is done it ends them by
// force, also after it has returned: it does so when nothing is left here, and
// servers may still take their leave, for which whoever opened the streams waits
// (Host.Stop). Streams that are still served end on their own, and what they ask for
// is refused.
func (b *Bridge) Stop(ctx context.Context) {
	b.mu.Lock()
	b.stopped = true
	force := b.force
	b.mu.Unlock()
	if force == nil {
		return // nobody was ever here
	}
	context.AfterFunc(ctx, force) // of servers that still take their leave, too
	b.timers.End()
	b.each((*account).stopLocked)
	b.wg.Wait()
	b.timers.Wait()
}

// Forget ends all that is kept for the principals of a proxy, which is gone for good as
// far as anybody can tell: nobody else has their keys.
func (b *Bridge) Forget(proxy string) {
	b.each(func(a *account) {
		if a.holder.Proxy == proxy {
			a.endAllLocked()
		}
	})
}

// Unattributed is told that an upstream whose one server is shared by all sessions asked
// something that could belong to calls of more than one of them. Then a call ends that has
// long waited for its client, the oldest of each key: one that nobody comes back to would
// keep the server from asking anybody. It calls nothing of the host's, so that locks may be
// held.
func (b *Bridge) Unattributed(upstream string) {
	b.each(func(a *account) {
		if a.id.upstream == upstream {
			a.giveUpOldestLocked((*suspension).isAtServer)
		}
	})
}

// Suspended returns how many calls legacy servers have not answered, but no client waits for
// either: each was told to come back with what its server asks.
func (b *Bridge) Suspended() (n int) {
	for _, of := range b.SuspendedBy() {
		n += of
	}
	return n
}

// SuspendedBy is Suspended for each upstream that has any.
func (b *Bridge) SuspendedBy() map[string]int {
	by := make(map[string]int)
	b.each(func(a *account) {
		if n := a.suspendedLocked(); n > 0 {
			by[a.id.upstream] += n
		}
	})
	return by
}

// Legacy serves a legacy client whose upstream speaks modern. It owns client until
// it returns, and closes it with the end of the upstream's stream. The error is the
// cause of the end. All that was started has ended then.
func (b *Bridge) Legacy(ctx context.Context, upstream, key string, client jsonrpc.Conn) error {
	return newLegacy(upstream, b.logger().With("upstream", upstream)).serve(ctx, client, b.Open(ctx, upstream, key, mcp.Modern))
}

// Modern serves one stream of modern clients, for an upstream that speaks legacy.
// It owns c. The sessions that it uses are the key's: they outlive the stream.
//
// When c ends, or ctx is done, the calls that came on it are cancelled. What is
// suspended waits for whoever comes back with its requestState, if the key is a
// principal's; that of one connection has nothing from the end of its last stream on, or
// if this side ended that, 30 s later. If the upstream turns
// out to speak modern, the stream ends with [mcp.ErrOtherEra]. Modern returns
// when everything that it started is gone; its error is an [jsonrpc.ErrClosed].
func (b *Bridge) Modern(ctx context.Context, upstream, key string, c jsonrpc.Conn) error {
	a := b.account(accountID{upstream, key})
	if a == nil {
		end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped}
		jsonrpc.CloseWith(c, end)
		return end
	}
	defer a.release()
	return a.serve(ctx, c)
}
