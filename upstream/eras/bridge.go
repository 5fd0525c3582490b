package eras

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Bridge serves clients of one era on upstreams of the other. It keeps the legacy sessions that modern clients
// need between their requests. Its exported fields must not change after the first call.
type Bridge struct {
	// Open returns a stream to an upstream in an era that it speaks, without waiting for
	// the upstream to start. Every failure is the end of the stream, a
	// [*jsonrpc.ClosedError]; a refused initialize is followed by such an end. The
	// caller closes the stream.
	Open func(ctx context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn

	// Relates reports whether the Related of a legacy upstream's messages is certain, as
	// over HTTP, rather than a guess. Nil means that it is a guess for all.
	Relates func(upstream string) bool

	Idle       time.Duration                       // how long an unused session is kept; zero means 5 min
	IdleOf     func(upstream string) time.Duration // the same for one upstream, if it is shorter; zero means Idle. May be nil
	SuspendFor time.Duration                       // how long a suspended call waits for its client; zero means 10 min

	Log *slog.Logger // nil discards

	lifetime
	force context.CancelFunc // ends all sessions by force; nil before the first account
}

func (b *Bridge) logger() *slog.Logger { return cmp.Or(b.Log, slog.New(slog.DiscardHandler)) }

func orElse(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// account returns the account of a key on an upstream with one more use; nil after Stop. headers say
// who the user of the key is.
func (b *Bridge) account(id accountID, headers map[string][]string) *account {
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
		a = newAccount(&b.lifetime, id, headers)
		b.accounts[id] = a
	}
	a.uses++
	return a
}

// begun initializes the lifetime of the accounts.
func (b *Bridge) begun() {
	var forced context.Context
	forced, b.force = context.WithCancel(context.Background())
	b.lifetime.open = func(headers map[string][]string, upstream, key string) jsonrpc.Conn {
		return b.Open(jsonrpc.WithForwarded(forced, headers), upstream, key, mcp.Legacy)
	}
	b.relates = func(upstream string) bool { return b.Relates != nil && b.Relates(upstream) }
	b.suspendFor = orElse(b.SuspendFor, 10*time.Minute)
	b.idle = func(upstream string) time.Duration {
		idle := orElse(b.Idle, 5*time.Minute)
		if b.IdleOf != nil {
			idle = min(idle, orElse(b.IdleOf(upstream), idle))
		}
		return idle
	}
	b.log = b.logger()
}

// each calls fn with each account, whose lock is held.
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

// Stop ends what outlives the streams of modern clients: their subscriptions with the result of a graceful end,
// and the sessions by closing their streams, so that each server stops gracefully. When ctx is done, even after
// Stop has returned, it stops the servers by force. Stop does not wait for the servers: the opener of the streams
// does (Host.Stop). Client streams that are still served end on their own, and their requests are refused.
func (b *Bridge) Stop(ctx context.Context) {
	b.mu.Lock()
	b.stopped = true
	force := b.force
	b.mu.Unlock()
	if force == nil {
		return // there was never an account
	}
	context.AfterFunc(ctx, force) // also for servers that are still stopping
	b.timers.End()
	b.each((*account).stopLocked)
	b.wg.Wait()
	b.timers.Wait()
}

// Forget ends all that is kept for the principals of a proxy that is gone for good. Their keys belong to that
// proxy alone. Those that have streams again stay: the proxy has just returned.
func (b *Bridge) Forget(proxy string) {
	b.each(func(a *account) {
		if a.holder.Proxy == proxy && len(a.streams) == 0 {
			a.endAllLocked()
		}
	})
}

// Changed ends what modern clients have on upstreams that are removed or replaced, with that as the cause. It may be
// called before the host replaces them, and must be called after that: no call on the old streams may reach the new
// servers.
func (b *Bridge) Changed(upstreams []string) {
	b.each(func(a *account) {
		if slices.Contains(upstreams, a.id.upstream) {
			a.changedLocked()
		}
	})
}

// Unattributed handles a request of an upstream's shared server that could belong to calls of several sessions.
// For each key it ends the oldest call that has been suspended for long: if its client never returned, the server
// could not ask anything any more. It calls nothing of the host, so that the caller may hold locks.
func (b *Bridge) Unattributed(upstream string) {
	b.each(func(a *account) {
		if a.id.upstream == upstream {
			a.giveUpOldestLocked((*suspension).isAtServer)
		}
	})
}

// Suspended returns the number of calls that wait for their client to come back with an answer to a question of
// the legacy server.
func (b *Bridge) Suspended() (n int) {
	for _, of := range b.SuspendedBy() {
		n += of
	}
	return n
}

// SuspendedBy returns Suspended by upstream, without those that have none.
func (b *Bridge) SuspendedBy() map[string]int {
	by := make(map[string]int)
	b.each(func(a *account) {
		if n := a.suspendedLocked(); n > 0 {
			by[a.id.upstream] += n
		}
	})
	return by
}

// Legacy serves a legacy client of a modern upstream. It owns client until it returns, and closes it with the end
// of the upstream's stream. The error is the cause of the end. Everything that it started has ended when it
// returns.
func (b *Bridge) Legacy(ctx context.Context, upstream, key string, client jsonrpc.Conn) error {
	return newLegacy(upstream, b.logger().With("upstream", upstream)).serve(ctx, client, b.Open(ctx, upstream, key, mcp.Modern))
}

// Modern serves one stream of modern clients of a legacy upstream. It owns c. The sessions that it uses belong to
// the key and outlive the stream.
//
// When c ends or ctx is done, the calls that came on it are cancelled. Suspended calls wait for a client with
// their requestState if the key is a principal's. If the key is one connection's, they end with its last stream,
// or 30 s later if this side ended that. If the upstream turns out to speak modern, the stream ends with
// [mcp.ErrOtherEra]. When Modern returns everything that it started has ended. Its error is a [jsonrpc.ErrClosed].
func (b *Bridge) Modern(ctx context.Context, upstream, key string, c jsonrpc.Conn) error {
	a := b.account(accountID{upstream, key}, jsonrpc.ForwardedIn(ctx))
	if a == nil {
		return jsonrpc.Refuse(c, jsonrpc.CauseHostStopped, &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped})
	}
	defer a.release()
	return a.serve(ctx, c)
}
