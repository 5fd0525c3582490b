package oauth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// loginTimeout is how long a person may take.
	loginTimeout = 5 * time.Minute

	// pause is how long nobody is asked again to log in after a login has failed, and how
	// long a token must have been good before the server's refusal means that another one
	// may help.
	pause = time.Minute

	// maxStepUps is how often a person is asked for more scopes, with less than stepUpPause
	// in between.
	maxStepUps  = 3
	stepUpPause = 10 * time.Minute
)

// A LoginConfig says whose login it is, and how a person can be asked.
type LoginConfig struct {
	Server           string   // URL of the MCP server
	ClientID         string   // given beforehand; an https URL is that of a client id metadata document; "": we register
	ClientSecretFile string   // "" for none
	Scopes           []string // to ask for; nil: those that the server names
	Store            *Store
	Client           *http.Client // for metadata and authorization servers

	// Command is what logs in, in errors: "mcp-proxy login docs".
	Command string

	// Implicit means that nothing is configured: whether the server wants a login is its
	// own to say.
	Implicit bool

	// Show is called with what a person has to do; nil: nobody is asked, and requests fail.
	Show func(Prompt)

	// NoBrowser leaves the browser to the person who sees the Prompt.
	NoBrowser bool

	// Wait is how long a request waits for a person; zero means 20 s. The login goes on.
	Wait time.Duration

	// Done is called when a login has succeeded for which a request did not wait. May be nil.
	Done func()

	Log *slog.Logger // nil discards
}

// A Prompt is what a person has to do to log in: open the page.
type Prompt struct {
	Host   string // of the server
	URL    string
	Code   string // to type there; "" for none
	Opened bool   // a browser was opened with it
}

// A Login proves to a server that a person has logged in: the Credentials of package remote.
// Its goroutines are one for a refresh and one for a login that a server has asked for.
// Close waits for them.
type Login struct {
	// Static after construction.
	config LoginConfig
	key    key
	ctx    context.Context // of both goroutines
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu        sync.Mutex
	token     *token     // as last read from the store; nil: none that is of use
	looked    bool       // the store was read, and token says what was there
	renewed   string     // the token that a refresh gave after the server refused one
	refresh   *task      // under way
	asking    *task      // a person
	asked     [][]string // the scopes of the last login and of step-ups behind it
	lastAsked time.Time
	missed    bool // a request did not wait for the person any longer

	stalled time.Time // when a refresh failed last; owned by the refresh
}

// A task is something that several wait for.
type task struct {
	done chan struct{} // closed with err set
	err  error
}

// NewLogin returns the login at a server. Nothing runs before it is used.
func NewLogin(c LoginConfig) *Login {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Wait = cmp.Or(c.Wait, 20*time.Second)
	server := c.Server
	if u, err := serverURL(server); err == nil {
		server = strings.TrimRight(u.String(), "/")
	}
	l := &Login{config: c, key: key{server, c.ClientID}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Close ends what is under way. A refresh has been sent, so it gets a moment: its answer
// may be the only copy of the next token.
func (l *Login) Close() {
	l.mu.Lock()
	refresh := l.refresh
	l.mu.Unlock()
	if refresh != nil {
		select {
		case <-refresh.done:
		case <-time.After(500 * time.Millisecond):
		}
	}
	l.cancel()
	l.wg.Wait()
}

// Authorize implements Credentials. Without a login it sets nothing: the server then says
// what it wants.
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

// current returns the token to send, nil for none. One that is due is refreshed; as long
// as it is good nobody waits for that.
func (l *Login) current(ctx context.Context) (*token, error) {
	l.mu.Lock()
	t, looked := l.token, l.looked
	l.mu.Unlock()
	if t.good() && !t.due() || t == nil && looked { // whether there is another one is looked for when the server asks
		return t, nil
	}
	r, err := l.config.Store.load(l.key)
	switch {
	case err != nil && l.config.Implicit: // most servers want no login; one that does will ask
		return nil, nil
	case err != nil:
		return nil, err
	}
	switch t = r.Token; {
	case t.good() && (!t.due() || t.Refresh == ""):
		return l.remember(t), nil
	case t == nil || t.Refresh == "":
		return l.remember(nil), nil
	}
	refresh := l.renew(t)
	if t.good() {
		return t, nil
	}
	if err := refresh.wait(ctx); err != nil && !isOver(err) {
		return nil, unrefreshed(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token, nil
}

func (l *Login) remember(t *token) *token {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token, l.looked = t, true
	return t
}

func (t *task) wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin starts a task, or joins the one that is under way at where.
func (l *Login) begin(where **task, run func(context.Context) error) *task {
	l.mu.Lock()
	defer l.mu.Unlock()
	if *where != nil {
		return *where
	}
	t := &task{done: make(chan struct{})}
	if l.ctx.Err() != nil {
		t.err = l.ctx.Err()
		close(t.done)
		return t
	}
	*where = t
	l.wg.Go(func() {
		t.err = run(l.ctx)
		l.mu.Lock()
		*where = nil
		l.mu.Unlock()
		close(t.done)
	})
	return t
}

// Refused implements Credentials.
func (l *Login) Refused(ctx context.Context, resp *http.Response, sent http.Header) (again bool, err error) {
	c, used := ChallengeOf(resp.Header), strings.TrimPrefix(sent.Get("Authorization"), "Bearer ")
	more := resp.StatusCode == http.StatusForbidden
	switch {
	case more && c.Code != "insufficient_scope":
		return false, nil
	case l.config.Implicit && l.config.Show == nil && used == "" && c.Metadata == "": // nobody spoke of OAuth
		return false, nil
	}
	r, err := l.config.Store.load(l.key)
	if err != nil {
		return false, l.failure(ctx, err)
	}
	if r.Token.good() && r.Token.Access != used { // somebody has logged in meanwhile, or refreshed
		l.remember(r.Token)
		return true, nil
	}
	if !more && l.mayRenew(r.Token, used) {
		if err := l.replace(ctx, r.Token); !isOver(err) {
			return err == nil, l.failure(ctx, unrefreshed(err))
		}
	}
	l.remember(nil)
	switch {
	case l.config.Show != nil:
	case more && r.Token != nil:
		return false, l.neededFor(Union(r.Token.Asked, r.Token.Scopes, c.Scopes))
	default:
		return false, l.needed(nil)
	}
	return l.ask(ctx, request{challenge: c, used: used, more: more})
}

// mayRenew reports whether another token may be had instead of one that has expired, or that
// the server does not take though it looks good. One that was had in this way must itself
// have been good for a while.
func (l *Login) mayRenew(t *token, used string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t != nil && t.Refresh != "" && (!t.good() || t.Access == used && (l.renewed != used || time.Since(t.Granted) > pause))
}

// replace gets another token instead of one that the server does not take.
func (l *Login) replace(ctx context.Context, old *token) error {
	if err := l.renew(old).wait(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token != nil {
		l.renewed = l.token.Access
	}
	return nil
}

// ask has a person log in, and waits for that as long as a request can wait.
func (l *Login) ask(ctx context.Context, q request) (again bool, err error) {
	asking := l.begin(&l.asking, func(ctx context.Context) error { return l.interact(ctx, q) })
	late := time.NewTimer(l.config.Wait)
	defer late.Stop()
	select {
	case <-asking.done:
		if errors.Is(asking.err, errPointless) {
			return false, nil
		}
		return asking.err == nil, l.failure(ctx, asking.err)
	case <-late.C:
		l.miss()
		return false, &jsonrpc.ClosedError{Cause: jsonrpc.CauseLogin, Says: "waits for you to log in: see your browser, or the log"}
	case <-ctx.Done():
		l.miss()
		return false, ctx.Err()
	}
}

// Asks reports whether a person is being asked to log in.
func (l *Login) Asks() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asking != nil
}

func (l *Login) miss() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missed = true
}

// errPointless is the error of a login that cannot help: the server refuses what was just
// granted, or it does not ask for OAuth.
var errPointless = errors.New("a login does not help")

// errNoIssuer is that nothing at the server or near it has to do with OAuth.
var errNoIssuer = fmt.Errorf("the server has no authorization server that lets us register: %w", errPointless)

// interact has a person log in, unless that was done meanwhile.
func (l *Login) interact(ctx context.Context, q request) error {
	ctx, cancel := context.WithTimeoutCause(ctx, loginTimeout, errNobody)
	defer cancel()
	if err := l.prepare(ctx, &q); err != nil {
		return err
	}
	t, err := l.browse(ctx, q)
	if err != nil {
		return err
	}
	l.mu.Lock()
	missed := l.missed
	l.token, l.missed = t, false
	l.mu.Unlock()
	if missed && l.config.Done != nil {
		l.config.Done()
	}
	return nil
}

// prepare finds out where to log in, and decides whether that can help.
func (l *Login) prepare(ctx context.Context, q *request) (err error) {
	d := Discovery{Server: l.config.Server, Client: l.config.Client}
	if q.place, err = d.Find(ctx, q.challenge); err != nil {
		return err
	}
	r, err := l.config.Store.load(l.key)
	if err != nil {
		return err
	}
	old := r.Token
	if old == nil || !r.of(q.place) {
		old = &token{}
	}
	q.scopes = scopesFor(l.config.Scopes, q.challenge, q.place)
	switch {
	case q.more:
		q.scopes = Union(old.Asked, old.Scopes, q.scopes, q.challenge.Scopes)
		return l.stepUp(q.scopes)
	case q.used != "" && old.Access == q.used && time.Since(old.Granted) < pause:
		return errPointless
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked, l.lastAsked = [][]string{q.scopes}, time.Now()
	return nil
}

// needed is the error of a request that only a person can help.
func (l *Login) needed(err error) error { return jsonrpc.LoginNeeded(l.config.Command, err) }

// neededFor is needed with the scopes to log in with, if they can be typed as they are.
func (l *Login) neededFor(scopes []string) error {
	all := strings.Join(scopes, ",")
	if all == "" || len(all) > 256 || strings.Trim(all, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-,") != "" {
		return l.needed(nil)
	}
	return jsonrpc.LoginNeeded(l.config.Command+" --scope "+all, nil)
}

// unrefreshed is the error of a request whose token an authorization server that cannot be
// reached does not renew. No person can help.
func unrefreshed(err error) error {
	if err == nil {
		return nil
	}
	return noToken("the login could not be refreshed (no token)", false, err)
}

// failure makes err that of a request. A request that has ended itself says so.
func (l *Login) failure(ctx context.Context, err error) error {
	if _, told := errors.AsType[*jsonrpc.ClosedError](err); err == nil || told {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return l.needed(err)
}
