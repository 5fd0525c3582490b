package oauth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A person is prompted for more scopes maxStepUps times, with less than stepUpPause in between.
const (
	maxStepUps  = 3
	stepUpPause = 10 * time.Minute
)

var (
	// errPointless is the error of a login that cannot help: the server refuses what was just granted, or it does not
	// ask for OAuth.
	errPointless = errors.New("a login does not help")
	errNoIssuer  = fmt.Errorf("the server has no authorization server that lets us register: %w", errPointless)
	errNobody    = errors.New("nobody logged in within 5 minutes")
)

// A Prompt asks a person to open a page, in order to log in.
type Prompt struct {
	Host   string // of the server
	URL    string
	Code   string // to type there; "" for none
	Opened bool   // we opened a browser with it
}

// An attempt is one try to have a person log in.
type attempt struct {
	challenge challenge
	used      string // the token that the server refused; "" for none
	more      bool   // the token lacks scopes
	explicit  bool   // the person wants to log in now, even with a valid token
	place     *place
	scopes    []string
}

// ask prompts a person to log in, and waits for that as long as a request can wait.
func (l *Login) ask(ctx context.Context, a attempt) (again bool, err error) {
	done := l.start("login", func(ctx context.Context) error { return l.interact(ctx, a) })
	late := time.NewTimer(l.config.Wait)
	defer late.Stop()
	select {
	case r := <-done:
		if errors.Is(r.Err, errPointless) {
			return false, nil
		}
		return r.Err == nil, l.failure(ctx, r.Err)
	case <-late.C:
		err = &jsonrpc.ClosedError{Cause: jsonrpc.CauseLogin, Says: "waits for you to log in: see your browser, or the log"}
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Another token comes from the login if that has ended, and had not been missed by then. While the login goes on,
	// another token is a refreshed one, which the server may refuse, too.
	if !l.asking && l.token != nil && l.token.Access != a.used {
		return true, nil
	}
	l.missed = true
	return false, err
}

// Asks reports whether a person is being prompted to log in.
func (l *Login) Asks() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asking
}

// interact has a person log in, unless another process has done so meanwhile.
func (l *Login) interact(ctx context.Context, a attempt) error {
	l.mu.Lock()
	l.asking = true
	l.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, loginTimeout, errNobody)
	defer cancel()
	var t *token
	err := l.prepare(ctx, &a)
	if err == nil {
		t, err = l.browse(ctx, a)
	}
	l.mu.Lock()
	l.asking = false
	missed := l.missed
	if err == nil {
		l.token, l.missed = t, false
	}
	l.mu.Unlock()
	if err == nil && missed && l.config.Done != nil {
		l.config.Done()
	}
	return err
}

// prepare finds out where to log in, and decides whether that can help.
func (l *Login) prepare(ctx context.Context, a *attempt) (err error) {
	if a.place, err = discover(ctx, l.config.Client, l.config.Server, a.challenge); err != nil {
		return err
	}
	r, err := l.config.Store.load(l.key)
	if err != nil {
		return err
	}
	old := r.Token
	if old == nil || !r.of(a.place) {
		old = &token{}
	}
	var before []string
	if r.of(a.place) && !l.config.OnlyScopes {
		before = r.granted()
	}
	a.scopes = scopesFor(l.config.Scopes, a.challenge, a.place, before)
	switch {
	case a.more:
		a.scopes = union(old.Asked, old.Scopes, a.scopes, a.challenge.Scopes)
		return l.stepUp(a.scopes)
	case a.used != "" && old.Access == a.used && time.Since(old.Granted) < pause:
		return errPointless
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.lastAsked = [][]string{a.scopes}, time.Now()
	return nil
}

// stepUp decides whether to ask for scopes: once for each set of them, and at most maxStepUps times (2025-11-25
// basic/authorization, "Step-Up Authorization Flow").
func (l *Login) stepUp(scopes []string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.lastAsked) > stepUpPause {
		l.asked = nil
	}
	sorted := slices.Sorted(slices.Values(scopes))
	for _, asked := range l.asked {
		if slices.Equal(slices.Sorted(slices.Values(asked)), sorted) {
			return errPointless
		}
	}
	if len(l.asked) > maxStepUps {
		return errPointless
	}
	l.asked, l.lastAsked = append(l.asked, scopes), time.Now()
	return nil
}
