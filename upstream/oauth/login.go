package oauth

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

const (
	loginTimeout = 5 * time.Minute

	// pause follows a failed login: within it no process prompts again. A token must have been valid for as long
	// before the server's refusal is a reason to get another one.
	pause = time.Minute

	lookPause = time.Second // between looks whether the store has changed
)

// A LoginConfig says which server a login is for, and how to prompt a person.
type LoginConfig struct {
	Server           string   // URL of the MCP server
	ClientID         string   // an https URL is that of a client id metadata document; "": we register
	ClientSecretFile string   // "" for none
	GivenID          string   // as ClientID, where that is empty; later logins and processes use it without being told
	Scopes           []string // to ask for; nil: those that the server names
	OnlyScopes       bool     // do not ask for scopes that were granted before, too
	Store            *Store
	Client           *http.Client // for metadata and authorization servers

	// Command is the command that logs in, for errors: "mcp-proxy login docs".
	Command string

	// Implicit means that nothing is configured: the server may need no login.
	Implicit bool

	// Show prompts a person; nil: requests that need a login fail.
	Show func(Prompt)

	// NoBrowser leaves it to the person to open a browser.
	NoBrowser bool

	// Wait is how long a request waits for the person; zero means 20 s. The login goes on.
	Wait time.Duration

	// Done is called after a successful login that a request stopped waiting for. May be nil.
	Done func()

	Log *slog.Logger // nil discards
}

// A Login authenticates a person to a server. It implements the Credentials of package remote. At most three goroutines
// run: for a refresh, for a login that a server asked for, and to save a record again. Close waits for them.
type Login struct {
	// Static after construction.
	config LoginConfig
	key    key
	ctx    context.Context // of the goroutines
	cancel context.CancelFunc
	flight singleflight.Group // "refresh", "login" and "save"

	mu        sync.Mutex
	token     *token      // as last read from the store; nil: none, or not a valid one
	looked    bool        // the store was read, and has not changed since
	lookedAt  time.Time   // when look last looked
	stamp     fs.FileInfo // of the record as last read
	renewed   string      // the token that a refresh returned after the server refused one
	asking    bool        // a login is in progress
	asked     [][]string  // the scopes of the last login and of the step-ups after it
	lastAsked time.Time
	missed    bool // a request stopped waiting for the login

	stalled time.Time // time of the last failed refresh; owned by the refresh
}

// NewLogin returns the login at a server. It starts nothing.
func NewLogin(c LoginConfig) *Login {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Wait = cmp.Or(c.Wait, 20*time.Second)
	server := c.Server
	if u, err := serverURL(server); err == nil {
		server = strings.TrimRight(u.String(), "/")
	}
	l := &Login{config: c, key: key{server, c.ClientID}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// start runs a refresh, login or save on a goroutine, or joins the one in progress.
func (l *Login) start(what string, run func(context.Context) error) <-chan singleflight.Result {
	return l.flight.DoChan(what, func() (any, error) {
		if err := l.ctx.Err(); err != nil {
			return nil, err
		}
		return nil, run(l.ctx)
	})
}

func wait(ctx context.Context, done <-chan singleflight.Result) error {
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends the goroutines. It gives a refresh and the store a moment, and waits for the answer to a refresh token
// that was sent.
func (l *Login) Close() {
	idle := func() (any, error) { return nil, nil }
	ctx, cancel := context.WithTimeout(context.Background(), closePause)
	defer cancel()
	_ = wait(ctx, l.flight.DoChan("refresh", idle))
	if l.config.Store.isUnsaved(l.key) {
		_ = wait(ctx, l.start("save", l.save))
	}
	l.cancel()
	for _, what := range []string{"refresh", "save", "login"} {
		<-l.flight.DoChan(what, idle)
	}
}

// Authorize implements Credentials. Without a login it sets nothing: the server then says what it wants. It notices
// within a second that another process has logged in or out.
func (l *Login) Authorize(ctx context.Context, header http.Header) error {
	t, err := l.current(ctx)
	switch {
	case err != nil:
		return l.failure(ctx, err)
	case t != nil:
		header.Set("Authorization", "Bearer "+t.Access)
	}
	return nil
}

// current returns the token to send, nil for none. It refreshes a token that is due, and waits for the new one only
// if the old one has expired.
func (l *Login) current(ctx context.Context) (*token, error) {
	l.look()
	l.mu.Lock()
	t, looked := l.token, l.looked
	l.mu.Unlock()
	if looked && (t == nil || t.good() && !t.due()) { // without a token the store is read again if the server refuses us
		return t, nil
	}
	r, err := l.config.Store.load(l.key)
	switch {
	case err != nil && l.config.Implicit: // most servers need no login
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch t = r.Token; {
	case t.good() && (!t.due() || t.Refresh == ""):
		return l.remember(r, t), nil
	case t == nil || t.Refresh == "":
		return l.remember(r, nil), nil
	}
	refresh := l.renew(t)
	if t.good() {
		return t, nil
	}
	if err := wait(ctx, refresh); err != nil && !errors.Is(err, errOver) {
		return nil, unrefreshed(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token, nil
}

// look makes current read the store, once a second, if the record has changed: another process may have logged in or
// out. It also tries to save a record that could not be saved.
func (l *Login) look() {
	now := time.Now()
	l.mu.Lock()
	due := now.Sub(l.lookedAt) > lookPause
	if due {
		l.lookedAt = now
	}
	l.mu.Unlock()
	if !due {
		return
	}
	if l.config.Store.isUnsaved(l.key) {
		l.start("save", l.save)
	}
	stamp, err := l.config.Store.stamp(l.key)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && !secretfile.Same(stamp, l.stamp) {
		l.looked = false
	}
}

// remember makes t, that of the record r or none, the token to send.
func (l *Login) remember(r *record, t *token) *token {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.looked, l.stamp = t, true, r.stamp
	return t
}

// Refused implements Credentials.
func (l *Login) Refused(ctx context.Context, resp *http.Response, sent http.Header) (again bool, err error) {
	c, used := challengeOf(resp.Header), strings.TrimPrefix(sent.Get("Authorization"), "Bearer ")
	more := resp.StatusCode == http.StatusForbidden
	switch {
	case more && c.Code != "insufficient_scope":
		return false, nil
	case l.config.Implicit && l.config.Show == nil && used == "" && c.Metadata == "": // the server does not use OAuth
		return false, nil
	}
	r, err := l.config.Store.load(l.key)
	if err != nil {
		return false, l.failure(ctx, err)
	}
	if r.Token.good() && r.Token.Access != used { // another process has logged in, or refreshed
		l.remember(r, r.Token)
		return true, nil
	}
	if !more && l.mayRenew(r.Token, used) {
		if err := l.replace(ctx, r.Token); !errors.Is(err, errOver) {
			return err == nil, l.failure(ctx, unrefreshed(err))
		}
	}
	if !more { // a token that lacks scopes is right for other requests
		l.remember(r, nil)
	}
	switch {
	case l.config.Show != nil:
	case more && r.Token != nil:
		return false, l.neededFor(union(r.Token.Asked, r.Token.Scopes, c.Scopes))
	default:
		return false, l.needed(nil)
	}
	return l.ask(ctx, attempt{challenge: c, used: used, more: more})
}

// mayRenew reports whether to refresh a token that has expired, or that the server refuses although it looks valid. A
// token that already replaced a refused one must have been valid for a while.
func (l *Login) mayRenew(t *token, used string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t != nil && t.Refresh != "" &&
		(!t.good() || t.Access == used && (l.renewed != used || time.Since(t.Granted) > pause))
}

// replace gets another token instead of one that the server refuses.
func (l *Login) replace(ctx context.Context, old *token) error {
	if err := wait(ctx, l.renew(old)); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token != nil {
		l.renewed = l.token.Access
	}
	return nil
}

// needed is the error of a request that needs a person to log in.
func (l *Login) needed(err error) error { return jsonrpc.LoginNeeded(l.config.Command, err) }

// neededFor is needed with the scopes to log in with, if a shell takes them as they are.
func (l *Login) neededFor(scopes []string) error {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-,"
	all := strings.Join(scopes, ",")
	if all == "" || len(all) > 256 || strings.Trim(all, plain) != "" {
		return l.needed(nil)
	}
	return jsonrpc.LoginNeeded(l.config.Command+" --scope "+all, nil)
}

// unrefreshed is the error of a request whose expired token could not be refreshed. A login would not help.
func unrefreshed(err error) error {
	if err == nil {
		return nil
	}
	return noToken("the login could not be refreshed (no token)", false, err)
}

// failure turns err into the error of a request.
func (l *Login) failure(ctx context.Context, err error) error {
	if _, told := errors.AsType[*jsonrpc.ClosedError](err); err == nil || told {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return l.needed(err)
}
