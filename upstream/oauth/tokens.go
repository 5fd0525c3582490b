package oauth

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	fetchTimeout    = 20 * time.Second // bounds a fetch of a token, discovery included, and of each document for a login
	defaultLifetime = 5 * time.Minute  // of a token of unknown lifetime (RFC 6749, 5.1)
	minLifetime     = time.Second
	maxLifetime     = 24 * time.Hour
)

var errClosed = errors.New("the upstream was closed")

// A token is an access token, and what belongs to it.
type token struct {
	Access  string    `json:"access"`
	Refresh string    `json:"refresh,omitempty"`
	Granted time.Time `json:"granted"`
	Expires time.Time `json:"expires,omitzero"` // zero: unknown
	Asked   []string  `json:"asked,omitempty"`  // the scopes that we asked for
	Scopes  []string  `json:"scopes,omitempty"` // the scopes that were granted
	renewAt time.Time // zero: computed from Expires
}

// newToken returns the token of a login that asked for some scopes. A refresh keeps what the answer does not renew
// (RFC 6749, 6); old is nil for a login.
func newToken(t *oauth2.Token, asked []string, old *token) *token {
	n := &token{
		Access: t.AccessToken, Refresh: t.RefreshToken, Granted: time.Now(), Expires: t.Expiry, Asked: asked, Scopes: asked,
	}
	if old != nil {
		n.Asked, n.Scopes = old.Asked, old.Scopes
		if n.Refresh == "" {
			n.Refresh = old.Refresh
		}
	}
	if scope, ok := t.Extra("scope").(string); ok && scope != "" {
		n.Scopes = union(strings.Fields(scope))
	}
	return n
}

// newProgramToken returns a token for a program. A lifetime of zero is unknown. The time of its renewal is random, so
// that many programs that started at the same time do not renew at the same time.
func newProgramToken(access string, asked []string, lifetime time.Duration) *token {
	if lifetime == 0 {
		lifetime = defaultLifetime
	}
	lifetime = min(max(lifetime, minLifetime), maxLifetime)
	early := time.Duration(float64(lifetime) * (0.8 + 0.1*rand.Float64()))
	now := time.Now()
	return &token{Access: access, Asked: asked, Granted: now, Expires: now.Add(lifetime), renewAt: now.Add(early)}
}

// good reports whether the token has not expired.
func (t *token) good() bool {
	return t != nil && (t.Expires.IsZero() || time.Now().Before(t.Expires))
}

// due reports whether to renew the token: by default a minute before it expires, or in the last fifth of a short life.
func (t *token) due() bool {
	switch {
	case !t.renewAt.IsZero():
		return time.Now().After(t.renewAt)
	case t.Expires.IsZero():
		return false
	}
	return time.Until(t.Expires) < min(time.Minute, t.Expires.Sub(t.Granted)/5)
}

// tokens hold one token, and fetch the next one. Concurrent callers share one fetch, which does not end when a caller
// stops waiting. A failed fetch is followed by a pause, in which all callers get its error. One goroutine runs during
// a fetch; close waits for it.
type tokens struct {
	// Static after construction.
	log   *slog.Logger
	fetch func(ctx context.Context) (*token, error)
	ctx   context.Context // of fetches
	stop  context.CancelFunc

	current atomic.Pointer[token] // nil: none, or the server refused it
	flight  singleflight.Group

	mu     sync.Mutex // guards the fields below
	failed error      // of the last fetch; nil if it succeeded
	next   time.Time  // no fetch before
	wait   backoff.ExponentialBackOff
}

func newTokens(log *slog.Logger, fetch func(context.Context) (*token, error)) *tokens {
	ts := &tokens{log: log, fetch: fetch, wait: backoff.ExponentialBackOff{
		InitialInterval: 500 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 30 * time.Second,
	}}
	ts.ctx, ts.stop = context.WithCancel(context.Background())
	return ts
}

// get returns a valid token. If there is none it waits for one until ctx ends. It renews a token early, in the
// background.
func (ts *tokens) get(ctx context.Context) (*token, error) {
	t := ts.current.Load()
	switch {
	case !t.good():
		return ts.renew(ctx, t)
	case t.due() && ts.pausing() == nil:
		ts.begin(t)
	}
	return t, nil
}

// renew waits for the token that follows old until ctx ends.
func (ts *tokens) renew(ctx context.Context, old *token) (*token, error) {
	if err := ts.pausing(); err != nil {
		return nil, err
	}
	select {
	case r := <-ts.begin(old):
		t, _ := r.Val.(*token)
		return t, r.Err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// pausing returns the error of the last fetch during the pause after it.
func (ts *tokens) pausing() error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if time.Now().Before(ts.next) {
		return ts.failed
	}
	return nil
}

// begin fetches the token that follows old, unless another caller does so, or has done so.
func (ts *tokens) begin(old *token) <-chan singleflight.Result {
	return ts.flight.DoChan("", func() (any, error) {
		if t := ts.current.Load(); t != old && t.good() {
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

// fetched records the result of a fetch. It logs a failure that fails no request, because the old token is still valid.
func (ts *tokens) fetched(old *token, err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	first := ts.failed == nil
	if ts.failed = err; err == nil {
		ts.next = time.Time{}
		ts.wait.Reset()
		return
	}
	ts.next = time.Now().Add(ts.wait.NextBackOff())
	if first && old.good() {
		ts.log.Warn("cannot renew the token; using the old one until it expires", "until", old.Expires, "err", err)
	}
}

// close ends a fetch and waits for it.
func (ts *tokens) close() {
	ts.stop()
	<-ts.flight.DoChan("", func() (any, error) { return nil, nil })
}

// noToken returns the error of a request that needs a token and gets none. With lasting, only a change of the
// configuration helps. err is for the log.
func noToken(why string, lasting bool, err error) error {
	why = "authentication failed: " + why
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseNoToken, Says: why, Lasting: lasting, Err: err}
}

// publicCodes are the error codes of token endpoints (RFC 6749, 5.2; RFC 8707, 2) that clients may see.
var publicCodes = []string{
	"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type", "invalid_scope",
	"invalid_target", "temporarily_unavailable", "server_error",
}

// requestFailed turns an error of client.request into the error of the MCP request that needed the token.
func requestFailed(err error) error {
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); ok {
		return end
	}
	r, answered := errors.AsType[*refusal](err)
	var network net.Error
	switch {
	case answered:
		answer := jsonrpc.HTTPCause(r.status).String()
		if slices.Contains(publicCodes, r.code) {
			answer += " " + r.code
		}
		if r.status >= 500 || r.status == http.StatusTooManyRequests ||
			refusedWith(err, "temporarily_unavailable", "server_error") {
			return noToken("the authorization server answered "+answer, false, err)
		}
		return noToken("the authorization server rejected our credentials ("+answer+")", true, err)
	case errors.Is(err, errUnusable):
		return noToken("no token from the authorization server (no token)", true, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return noToken("the authorization server is unreachable (connection refused)", false, err)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return noToken("the authorization server is unreachable (timeout)", false, err)
	}
	return noToken("the authorization server is unreachable (no token)", false, err)
}
