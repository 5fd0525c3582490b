package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// A remoteLink is a link to a host elsewhere, and what that host has announced.
type remoteLink struct {
	config   config.Link
	log      *slog.Logger
	client   link.Client
	endpoint link.Endpoint // to dial; zero if the host dials us
	proof    credentials   // of endpoint, closed when the link is not wanted any more; nil: none

	// Set when the link is started: it is not wanted any more when ctx is done.
	ctx    context.Context
	hangUp context.CancelFunc

	// Guarded by links.mu.
	announced []announced          // last; kept while the link is lost
	rejected  []observe.Rejection  // those of them that are not offered
	known     bool                 // something was announced
	down      bool                 // lost since
	since     time.Time            // up, if it is
	failed    *jsonrpc.ClosedError // did not come up because of it, when that was tried last; nil: not tried yet
	lost      int                  // how often it was lost
}

// An announced is an upstream of a host elsewhere, or why it cannot be used.
type announced struct {
	session.Upstream
	err error
}

// dial is how the link comes up that is dialled from here.
func (f *remoteLink) dial() dialFunc {
	if f.proof != nil {
		return withTokenHint(f.endpoint.Dial, "the host, or a proxy in front of it, rejected our credentials of "+f.config.Key+".auth")
	}
	return withTokenHint(f.endpoint.Dial, "the host rejected our token: that in "+f.config.Key+".tokenFile must be the one in --token-file of the host")
}

// keepUp dials the host, again and again, until the link is not wanted any more.
func (f *remoteLink) keepUp() {
	_ = f.client.Redial(f.ctx, f.dial()) // it ends with its ctx
	if f.proof != nil {
		f.proof.Close()
	}
}

// endLocked is what became of the link, if it is not up.
func (f *remoteLink) endLocked() *jsonrpc.ClosedError {
	switch {
	case f.known:
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}
	case f.failed != nil:
		return f.failed
	}
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Says: "has not connected yet (" + jsonrpc.CauseLinkLost.String() + ")"}
}

// dialFailure is why a link did not come up, without what only the log may have.
func dialFailure(err error) *jsonrpc.ClosedError {
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); ok { // of what proves who we are
		return &jsonrpc.ClosedError{Cause: end.Cause, Says: end.Says, Lasting: end.Lasting}
	}
	if status, ok := errors.AsType[*wsconn.StatusError](err); ok {
		end := &jsonrpc.ClosedError{Cause: jsonrpc.HTTPCause(status.Code)}
		end.Lasting = end.Cause.Kind == jsonrpc.KindRefused
		return end
	}
	cause := remote.CauseOf(err)
	if cause == jsonrpc.CauseRequestFailed {
		cause = jsonrpc.CauseConnectFailed
	}
	return &jsonrpc.ClosedError{Cause: cause, Says: "is unreachable: " + cause.String()}
}

// heartbeatOf is the heartbeat of links that ask so often.
func heartbeatOf(every time.Duration) link.Heartbeat {
	return link.Heartbeat{Every: every, Dead: 3 * every}
}

// A dialFunc makes a carrier for a link.
type dialFunc func(context.Context) (net.Conn, error)

// withTokenHint is dial, whose errors say what to do when the other side refuses the token.
func withTokenHint(dial dialFunc, hint string) dialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if status, ok := errors.AsType[*wsconn.StatusError](err); ok && status.Code == http.StatusUnauthorized {
			err = fmt.Errorf("%w: %s", err, hint)
		}
		return c, err
	}
}

// linkEvent returns the event of the end of a link that was up since began.
func linkEvent(id, what string, err error, began time.Time) observe.Event {
	e := observe.EventOf(observe.LinkEnded, "", &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Event: id, Err: err})
	e.What, e.Began = what, began
	return e
}

// Claims are which upstream has which names: its own, by which policies call it, and its
// prefix, by which clients do. Both are of one kind, or a host could take calls that are
// meant for another by a prefix. Whoever claims first has a name: upstreams of this process,
// then those of links, in the order of the configuration. Time has no part in that.
type claims struct {
	held   map[string]claim // by the name with its separator
	within map[string]claim // by all that a held one begins with
}

// A claim is a name, and where its upstream is configured: upstreams.files, or links.tools.
type claim struct{ name, key string }

func newClaims() *claims {
	return &claims{held: make(map[string]claim), within: make(map[string]claim)}
}

// names are what an upstream claims.
func names(u session.Upstream) []string {
	if u.Prefix == nil || *u.Prefix == "" || *u.Prefix == u.Name {
		return []string{u.Name}
	}
	return []string{u.Name, *u.Prefix}
}

// separated is a name as it begins exposed names. Two of these collide if one begins with the
// other: a___x is a tool of a, or of a_.
func separated(name string) string { return name + "__" }

// rival returns the claim that collides with a name.
func (c *claims) rival(name string) (claim, bool) {
	begin := separated(name)
	if by, ok := c.within[begin]; ok {
		return by, true
	}
	for i := range len(begin) {
		if by, ok := c.held[begin[:i+1]]; ok {
			return by, true
		}
	}
	return claim{}, false
}

// hold gives an upstream its names, but for those that are held.
func (c *claims) hold(u session.Upstream, key string) {
	for _, name := range names(u) {
		begin, by := separated(name), claim{name, key}
		if _, held := c.held[begin]; !held {
			c.held[begin] = by
		}
		for i := range len(begin) {
			c.within[begin[:i+1]] = by
		}
	}
}

// A refusal is why an announced upstream is not offered.
type refusal struct {
	here  string // in the words of this configuration
	there string // for the host, without anything of others
}

// Error implements error.
func (r *refusal) Error() string { return r.here }

// mayClaim returns why the host of a link may not have the names of an upstream: its link does not
// allow them, an earlier link keeps them for its own host, or somebody has them. The error is a
// [*refusal].
func (c *claims) mayClaim(l config.Link, earlier []*remoteLink, u session.Upstream) error {
	if u.Prefix != nil && *u.Prefix == "" && !allows(l, "") {
		return &refusal{l.Key + ".upstreams does not allow names without a prefix", "the proxy does not let this host offer names without a prefix"}
	}
	for i, name := range names(u) {
		what := [...]string{"the name ", "the prefix "}[i] + name
		if !allows(l, name) {
			return &refusal{l.Key + ".upstreams does not allow " + what, "the proxy does not let this host have " + what}
		}
		for _, e := range earlier {
			if keeps(e.config, name) {
				return &refusal{what + " is kept for " + e.config.Key + ", by its upstreams", "the proxy keeps " + what + " for another host"}
			}
		}
		switch by, taken := c.rival(name); {
		case taken && by.name == name:
			return &refusal{what + " is that of " + by.key, what + " is taken by another upstream of the proxy"}
		case taken:
			return &refusal{what + " collides with " + by.name + " of " + by.key, what + " collides with that of another upstream of the proxy"}
		}
	}
	return nil
}

// allows reports whether the host of a link may have a name.
func allows(l config.Link, name string) bool { return catalog.Allows(l.Upstreams, nil, name) }

// keeps reports whether a link keeps a name for its host, whether that is there or not. One
// that may have any name keeps none: there would be none left.
func keeps(l config.Link, name string) bool {
	some := slices.DeleteFunc(slices.Clone(l.Upstreams), func(g string) bool { return strings.Trim(g, "*") == "" })
	return len(some) > 0 && catalog.Allows(some, nil, name)
}

// notOffered is the event of a rejection.
func notOffered(upstream, id, why string) observe.Event {
	end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseNotOffered, Event: id, Says: "is not offered: " + why}
	return observe.EventOf(observe.NotOffered, upstream, end)
}

// maxTold bounds how many upstreams that are not offered are told of until the next reload.
const maxTold = 1000

// Rejections are what proxies do not offer of a host's upstreams, as their links say.
type rejections struct {
	// Static.
	known func(upstream string) bool // whether the host has announced it
	log   *slog.Logger
	hooks observe.Hooks // of which Happened is called

	mu     sync.Mutex // guards the fields below
	byLink map[string][]link.Rejection
	told   map[string]bool // events that the log has
}

// update takes over what the proxy at the other end of a link says; nil: the link has ended.
func (r *rejections) update(of string, all []link.Rejection) {
	all = slices.DeleteFunc(all, func(one link.Rejection) bool { return !r.known(one.Upstream) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byLink == nil {
		r.byLink, r.told = make(map[string][]link.Rejection), make(map[string]bool)
	}
	if r.byLink[of] = all; len(all) == 0 {
		delete(r.byLink, of)
	}
	for _, one := range all {
		r.tellLocked(one)
	}
}

func (r *rejections) tellLocked(one link.Rejection) {
	if r.told[one.Event] || len(r.told) >= maxTold {
		return
	}
	r.told[one.Event] = true
	r.log.Error("upstream not offered by a proxy", "upstream", one.Upstream, "event", one.Event, "err", one.Why)
	if r.hooks.Happened != nil {
		r.hooks.Happened(notOffered(one.Upstream, one.Event, one.Why))
	}
}

// snapshot returns them by name.
func (r *rejections) snapshot() (all []observe.Rejection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.byLink {
		for _, one := range of {
			all = append(all, observe.Rejection(one))
		}
	}
	slices.SortFunc(all, func(a, b observe.Rejection) int {
		return cmp.Or(cmp.Compare(a.Upstream, b.Upstream), cmp.Compare(a.Event, b.Event))
	})
	return all
}

// linkedProxies are the proxies elsewhere that have links to a host, and those that
// had one not long ago. What the host keeps for a proxy outlives its last link for a
// while: the proxy may dial again.
type linkedProxies struct {
	keptFor time.Duration
	forget  func(proxy string, last bool) // ends what is kept for a proxy; last: there is no other

	mu   sync.Mutex // guards the fields below, and keptFor once there are links
	byID map[string]*linkedProxy
}

type linkedProxy struct {
	links int
	gone  time.Time // when the last one ended
}

func (ps *linkedProxies) linked(proxy string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byID[proxy] == nil {
		if ps.byID == nil {
			ps.byID = make(map[string]*linkedProxy)
		}
		ps.byID[proxy] = &linkedProxy{}
	}
	ps.byID[proxy].links++
}

func (ps *linkedProxies) unlinked(proxy string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byID[proxy]
	if p.links--; p.links == 0 {
		p.gone = time.Now()
		time.AfterFunc(ps.keptFor, func() { ps.expire(proxy) }) // after the host's stop there is nothing left
	}
}

func (ps *linkedProxies) expire(proxy string) {
	ps.mu.Lock()
	p := ps.byID[proxy]
	gone := p != nil && p.links == 0 && time.Since(p.gone) >= ps.keptFor
	if gone {
		delete(ps.byID, proxy)
	}
	last := len(ps.byID) == 0
	ps.mu.Unlock()
	if gone {
		ps.forget(proxy, last)
	}
}
