package oauth

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/singleflight"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// fetchTimeout bounds how long it may take to get a token, discovery included. Who
	// needs it may stop waiting before.
	fetchTimeout = 20 * time.Second

	// unsaidLifetime is that of a token whose server does not say (RFC 6749, 5.1).
	unsaidLifetime = 5 * time.Minute

	minLifetime = time.Second
	maxLifetime = 24 * time.Hour
)

// An access is the token that requests carry.
type access struct {
	header  string   // the value of the header Authorization
	scopes  []string // that were asked for
	born    time.Time
	refresh time.Time // another one is fetched from here on, while this one is in use
	expires time.Time

	refused atomic.Bool // by the server
}

// newAccess returns a token that was issued now. A lifetime of zero is one that was not
// said. Many programs that got theirs at the same time do not renew them at the same time.
func newAccess(text string, scopes []string, lifetime time.Duration) *access {
	if lifetime == 0 {
		lifetime = unsaidLifetime
	}
	lifetime = min(max(lifetime, minLifetime), maxLifetime)
	early := time.Duration(float64(lifetime) * (0.8 + 0.1*rand.Float64()))
	now := time.Now()
	return &access{header: "Bearer " + text, scopes: scopes, born: now, refresh: now.Add(early), expires: now.Add(lifetime)}
}

// good reports whether requests may carry the token.
func (t *access) good(now time.Time) bool {
	return t != nil && !t.refused.Load() && now.Before(t.expires)
}

// tokens keep one token, and fetch the next one: once, however many need it, and whoever
// of them stops waiting. After a failure there is a pause, in which all get the same error.
// One goroutine runs while a token is fetched; close waits for it.
type tokens struct {
	// Static after construction.
	log   *slog.Logger
	fetch func(ctx context.Context) (*access, error)
	ctx   context.Context // of fetches
	stop  context.CancelFunc

	current atomic.Pointer[access] // nil before the first
	flight  singleflight.Group

	mu     sync.Mutex // guards the fields below
	failed error      // of the last fetch; nil if it succeeded
	next   time.Time  // no fetch before
	wait   backoff.ExponentialBackOff
}

func newTokens(log *slog.Logger, fetch func(context.Context) (*access, error)) *tokens {
	ts := &tokens{log: log, fetch: fetch, wait: backoff.ExponentialBackOff{
		InitialInterval: 500 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 30 * time.Second,
	}}
	ts.ctx, ts.stop = context.WithCancel(context.Background())
	return ts
}

// get returns a token that is good. It waits for one, as long as ctx, if there is none; one
// that is soon to expire is renewed meanwhile.
func (ts *tokens) get(ctx context.Context) (*access, error) {
	t, now := ts.current.Load(), time.Now()
	switch {
	case !t.good(now):
		return ts.renew(ctx, t)
	case now.After(t.refresh) && ts.pausing() == nil:
		ts.begin(t)
	}
	return t, nil
}

// renew returns the token that follows old, and waits for it as long as ctx.
func (ts *tokens) renew(ctx context.Context, old *access) (*access, error) {
	if err := ts.pausing(); err != nil {
		return nil, err
	}
	select {
	case r := <-ts.begin(old):
		t, _ := r.Val.(*access)
		return t, r.Err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// pausing returns why there is no token, while nobody is to ask for one again.
func (ts *tokens) pausing() error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if time.Now().Before(ts.next) {
		return ts.failed
	}
	return nil
}

// begin fetches the token that follows old, unless that is under way or was done.
func (ts *tokens) begin(old *access) <-chan singleflight.Result {
	return ts.flight.DoChan("", func() (any, error) {
		if t := ts.current.Load(); t != old {
			return t, nil
		}
		ctx, cancel := context.WithTimeout(ts.ctx, fetchTimeout)
		defer cancel()
		t, err := ts.fetch(ctx)
		if ts.ctx.Err() != nil {
			return nil, errClosed
		}
		ts.fetched(old, err)
		if err != nil {
			return nil, err
		}
		ts.current.Store(t)
		return t, nil
	})
}

// fetched notes how a fetch went. The log hears here of one that nobody waits for: while
// the old token is good no request fails.
func (ts *tokens) fetched(old *access, err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	first := ts.failed == nil
	if ts.failed = err; err == nil {
		ts.next = time.Time{}
		ts.wait.Reset()
		return
	}
	ts.next = time.Now().Add(ts.wait.NextBackOff())
	if first && old.good(time.Now()) {
		ts.log.Warn("token could not be renewed, the old one stays in use while it is good", "until", old.expires, "err", err)
	}
}

// close ends what is under way, and waits for it.
func (ts *tokens) close() {
	ts.stop()
	<-ts.flight.DoChan("", func() (any, error) { return nil, nil })
}

var errClosed = errors.New("the upstream was closed")

// noToken returns the error of who needs a token and gets none: because of what, in words
// that follow "did not let us in:". With lasting, only a change of the configuration helps.
// err is for the log.
func noToken(what string, lasting bool, err error) error {
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseNoToken, Says: "did not let us in: " + what, Lasting: lasting, Err: err}
}

// told are the errors of token endpoints (RFC 6749, 5.2; RFC 8707, 2) that clients hear of,
// and nothing else that these say.
var told = []string{
	"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope",
	"invalid_target", "temporarily_unavailable", "server_error",
}

// withoutToken is noToken for an error of client.request.
func withoutToken(err error) error {
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); ok {
		return end
	}
	r, answered := errors.AsType[*refusal](err)
	var network net.Error
	switch {
	case answered:
		said := jsonrpc.HTTPCause(r.status)
		if slices.Contains(told, r.code) {
			said += " " + r.code
		}
		if r.status >= 500 || r.status == http.StatusTooManyRequests || refusedWith(err, "temporarily_unavailable", "server_error") {
			return noToken("its authorization server answered with "+said, false, err)
		}
		return noToken("its authorization server refuses our credentials ("+said+")", true, err)
	case errors.Is(err, errUnusable):
		return noToken("its authorization server gives us no token that can be used (no token)", true, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return noToken("its authorization server is out of reach (connection refused)", false, err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return noToken("its authorization server is out of reach (timeout)", false, err)
	}
	return noToken("its authorization server is out of reach (no token)", false, err)
}
