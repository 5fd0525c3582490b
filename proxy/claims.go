package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

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

// rejectLocked takes over what is not offered of what a host has announced. Of each there
// is one event, in the log here and there.
func (ls *links) rejectLocked(f *remoteLink, refused []rejection) {
	var here []observe.Rejection
	there := []link.Rejection{}
	for _, r := range refused {
		id := ls.notOfferedLocked(f, r)
		here = append(here, observe.Rejection{Upstream: r.upstream, Why: r.err.Error(), Event: id})
		tells := r.err.Error()
		if why, ok := errors.AsType[*refusal](r.err); ok {
			tells = why.there
		}
		there = append(there, link.Rejection{Upstream: r.upstream, Why: tells, Event: id})
	}
	if len(here)+len(f.rejected) > 0 {
		f.client.Reject(there)
	}
	f.rejected = here
}

// A rejection is an announced upstream that is not offered, and why: a [*refusal], or what is
// wrong with its settings.
type rejection struct {
	upstream string
	err      error
}

// notOfferedLocked returns the event of a rejection, which the log has once.
func (ls *links) notOfferedLocked(f *remoteLink, r rejection) string {
	key := fmt.Sprint(f.config.Key, " ", r.upstream, " ", r.err)
	if id := ls.told[key]; id != "" {
		return id
	}
	id := jsonrpc.NewEvent()
	if len(ls.told) >= maxTold {
		return id
	}
	ls.told[key] = id
	f.log.Error("announced upstream not offered", "upstream", r.upstream, "event", id, "err", r.err)
	if tell := ls.hooks.Happened; tell != nil {
		e := notOffered(r.upstream, id, r.err.Error())
		e.Link = f.config.Name
		tell(e)
	}
	return id
}

// maxTold bounds how many upstreams that are not offered are told of until the next reload.
const maxTold = 1000

// notOffered is the event of a rejection.
func notOffered(upstream, id, why string) observe.Event {
	end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseNotOffered, Event: id, Says: "is not offered: " + why}
	return observe.EventOf(observe.NotOffered, upstream, end)
}

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
