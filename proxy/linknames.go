package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// claims say which upstream owns which names: its own name, which policies use, and its prefix,
// which clients use. Both share one name space, or a host could take another upstream's calls with
// a prefix. The first upstream to claim a name gets it: upstreams of this process, then those of
// links, in config order. The time of an announcement does not matter.
type claims struct {
	held   map[string]claim // by the name with its separator
	within map[string]claim // by every prefix of a held name
}

// A claim is a name, and the configuration key of its upstream or link: upstreams.files, links.tools.
type claim struct{ name, key string }

func newClaims() *claims {
	return &claims{held: make(map[string]claim), within: make(map[string]claim)}
}

// names returns the names that an upstream claims.
func names(u session.Upstream) []string {
	if u.Prefix == nil || *u.Prefix == "" || *u.Prefix == u.Name {
		return []string{u.Name}
	}
	return []string{u.Name, *u.Prefix}
}

// separated returns a name as exposed names begin with it. Two such names collide if one begins
// with the other: a___x is a tool of a or of a_.
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

// hold gives an upstream its names, except those that are already held.
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
	here  string // in terms of this configuration
	there string // for the host, without details of other upstreams
}

// Error implements error.
func (r *refusal) Error() string { return r.here }

// mayClaim returns nil if the host of a link may have the names of an upstream. Else the link does
// not allow them, an earlier link keeps them for its own host, or they are taken; the error is a
// [*refusal].
func (c *claims) mayClaim(l config.Link, earlier []*remoteLink, u session.Upstream) error {
	if u.Prefix != nil && *u.Prefix == "" && !allows(l, "") {
		return &refusal{l.Key + ".upstreams does not allow names without a prefix", "the proxy does not let this host offer names without a prefix"}
	}
	if u.Name == config.ReservedName {
		return &refusal{"the name " + u.Name + " is reserved", "the name " + u.Name + " is reserved"}
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

// keeps reports whether a link keeps a name for its host, even while the host is away. A link that
// allows every name keeps none, or other links could have none.
func keeps(l config.Link, name string) bool {
	some := slices.DeleteFunc(slices.Clone(l.Upstreams), func(g string) bool { return strings.Trim(g, "*") == "" })
	return len(some) > 0 && catalog.Allows(some, nil, name)
}

// setLocked returns all upstreams, those that run here first, then those of each link in config
// order, and the links whose upstreams are not known yet. Of two upstreams with one name the
// first is used, and the host of the second gets a rejection.
func (ls *links) setLocked() (set []session.Upstream, unknown []session.Unknown) {
	has := newClaims()
	for _, u := range ls.local {
		route := routeOf(u)
		route.Digest = ls.router.Catalog.Store.Digest(fingerprint(u))
		set = append(set, ls.namedLocked(route))
		has.hold(route, u.Key)
	}
	clear(ls.owners)
	for i, f := range ls.all {
		if !f.known {
			unknown = append(unknown, session.Unknown{Link: f.config.Name, End: *f.endLocked(), Failed: f.failed != nil})
		}
		var refused []announced
		for _, u := range f.announced {
			err := u.err
			if err == nil {
				err = has.mayClaim(f.config, ls.all[:i], u.Upstream)
			}
			if err != nil {
				refused = append(refused, announced{u.Upstream, err})
				continue
			}
			has.hold(u.Upstream, f.config.Key)
			ls.owners[u.Name] = f
			set = append(set, ls.namedLocked(u.Upstream))
		}
		ls.rejectLocked(f, refused)
	}
	return set, unknown
}

// namedLocked sets the prefix that "auto" means beside links. A link counts before its host has
// announced anything, so that no name changes when it comes up.
func (ls *links) namedLocked(u session.Upstream) session.Upstream {
	if ls.auto && ls.mixed && u.Prefix == nil {
		u.Prefix = &u.Name
	}
	return u
}

// ownedLocked returns the names of the upstreams behind a link.
func (ls *links) ownedLocked(f *remoteLink) []string {
	var names []string
	for name, owner := range ls.owners {
		if owner == f {
			names = append(names, name)
		}
	}
	return names
}

// rejectLocked records the announced upstreams that are not offered, and tells their host. Each
// has one event, which both logs have.
func (ls *links) rejectLocked(f *remoteLink, refused []announced) {
	var here []observe.Rejection
	there := []link.Rejection{}
	for _, r := range refused {
		id := ls.notOfferedLocked(f, r)
		here = append(here, observe.Rejection{Upstream: r.Name, Why: r.err.Error(), Event: id})
		tells := r.err.Error()
		if why, ok := errors.AsType[*refusal](r.err); ok {
			tells = why.there
		}
		there = append(there, link.Rejection{Upstream: r.Name, Why: tells, Event: id})
	}
	if len(here)+len(f.rejected) > 0 {
		f.client.Reject(there)
	}
	f.rejected = here
}

// notOfferedLocked returns the event of a rejection, and logs it the first time.
func (ls *links) notOfferedLocked(f *remoteLink, r announced) string {
	key := fmt.Sprint(f.config.Key, " ", r.Name, " ", r.err)
	if id := ls.told[key]; id != "" {
		return id
	}
	id := jsonrpc.NewEvent()
	if len(ls.told) >= maxTold {
		return id
	}
	ls.told[key] = id
	f.log.Error("announced upstream not offered", "upstream", r.Name, "event", id, "err", r.err)
	if tell := ls.hooks.Happened; tell != nil {
		e := notOffered(r.Name, id, r.err.Error())
		e.Link = f.config.Name
		tell(e)
	}
	return id
}

// notOffered returns the event of a rejection.
func notOffered(upstream, id, why string) observe.Event {
	end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseNotOffered, Event: id, Says: "is not offered: " + why}
	return observe.EventOf(observe.NotOffered, upstream, end)
}

// maxTold bounds the reports of upstreams that are not offered, until the next reload.
const maxTold = 1000
