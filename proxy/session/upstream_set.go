package session

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// An upstreamSet is the upstreams of a session at one time in one era. It is immutable: a change
// replaces it, and a request keeps the one with which it began.
type upstreamSet struct {
	*configured  // its configuration
	s            *session
	era          mcp.Era
	conns        []*upstreamConn // one for each upstream
	replaced     chan struct{}   // closed when there is a newer set
	several      bool            // there are others, which the clients of this set do not see
	byVisibility sync.Map        // *policy.Rule to *upstreamSet, see visibleTo
	knows        sync.Map        // unknown method to the *upstreamConn that gave a result for it
	known        atomic.Int64    // how many there are
	skills       listing         // who listed which skills
	events       listing         // likewise
}

// only returns the sole upstream, nil if there are several, or may be because some are unknown. A
// sole upstream describes itself, and unknown messages from and to it are forwarded.
func (set *upstreamSet) only() *upstreamConn {
	if set.complete && len(set.conns) == 1 && !set.several {
		return set.conns[0]
	}
	return nil
}

// unreached returns the error for things that only an unknown upstream could have; nil if all are
// known. It names the links, except those that policies hide: a client that would not see an
// upstream with the link's name must not learn that name.
func (set *upstreamSet) unreached(g *policy.Grant) *jsonrpc.Error {
	if set.complete {
		return nil
	}
	end := jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}
	var says []string
	for _, u := range set.unknown {
		if !g.Sees(u.Link) {
			continue
		}
		if says == nil {
			end = u.End
		}
		end.Lasting = end.Lasting && u.End.Lasting
		says = append(says, u.End.About(u.Link))
	}
	end.Says = strings.Join(says, "; ")
	return end.Wire(jsonrpc.CodeInternalError, "", jsonrpc.NotSent)
}

// unreachedText is unreached as JSON text.
func (set *upstreamSet) unreachedText(g *policy.Grant) json.RawMessage {
	if err := set.unreached(g); err != nil {
		return err.Raw()
	}
	return nil
}

// upstreamSets are the upstream sets of a session.
type upstreamSets struct {
	s       *session
	follows bool // serves all upstreams of the router; false: always one

	// Stored with changing held, so that no older set replaces a newer one.
	legacy   atomic.Pointer[upstreamSet] // never nil; unchanged from closing on
	modern   atomic.Pointer[upstreamSet] // nil before the first request of that era
	changing sync.Mutex                  // may be taken with session.mu held
}

// of returns the current upstream set. That of the modern era is created when it is first needed,
// because most sessions of the legacy era never need it.
func (sets *upstreamSets) of(era mcp.Era) *upstreamSet {
	if era == mcp.Legacy {
		return sets.legacy.Load()
	}
	if set := sets.modern.Load(); set != nil {
		return set
	}
	sets.changing.Lock()
	defer sets.changing.Unlock()
	if set := sets.modern.Load(); set != nil {
		return set
	}
	legacy := sets.legacy.Load()
	set := &upstreamSet{configured: legacy.configured, s: sets.s, era: era, replaced: make(chan struct{})}
	for _, u := range legacy.conns {
		set.conns = append(set.conns, newUpstreamConn(&sets.s.surroundings, era, u.up))
	}
	sets.modern.Store(set)
	return set
}

// conns returns the upstream connections of both eras.
func (sets *upstreamSets) conns() []*upstreamConn {
	conns := sets.legacy.Load().conns
	if modern := sets.modern.Load(); modern != nil {
		conns = slices.Concat(conns, modern.conns)
	}
	return conns
}

// equal reports whether clients see the same upstreams under the same names.
func (set *upstreamSet) equal(other *upstreamSet) bool {
	return slices.Equal(set.conns, other.conns) && slices.Equal(set.prefixes, other.prefixes)
}

// filter returns the upstreams that are as asked for.
func (set *upstreamSet) filter(are func(*upstreamConn) bool) (found []*upstreamConn) {
	for _, u := range set.conns {
		if are(u) {
			found = append(found, u)
		}
	}
	return found
}

// visibleTo returns the upstream set as a client sees it, without the upstreams that have nothing
// for it. All clients with the same visibility get the same set.
func (set *upstreamSet) visibleTo(g *policy.Grant) *upstreamSet {
	if g == nil {
		return set
	}
	if seen, ok := set.byVisibility.Load(g.Visibility()); ok {
		return seen.(*upstreamSet)
	}
	seen, _ := set.byVisibility.LoadOrStore(g.Visibility(), set.without(func(u *upstreamConn) bool { return !g.Sees(u.up.Name) }))
	return seen.(*upstreamSet)
}

// without returns the set without some upstreams. Names keep their prefixes.
func (set *upstreamSet) without(hidden func(*upstreamConn) bool) *upstreamSet {
	if !slices.ContainsFunc(set.conns, hidden) {
		return set
	}
	less := &upstreamSet{configured: &configured{unknown: set.unknown, complete: set.complete, settled: set.settled}, s: set.s, era: set.era,
		replaced: set.replaced, several: len(set.conns) > 1}
	for i, u := range set.conns {
		if !hidden(u) {
			less.conns = append(less.conns, u)
			less.upstreams = append(less.upstreams, set.upstreams[i])
			less.prefixes = append(less.prefixes, set.prefixes[i])
		}
	}
	return less
}

// prefix returns the prefix of the i-th upstream's list. URIs have none.
func (set *upstreamSet) prefix(k catalog.Kind, i int) string {
	if k.IsNamed() {
		return set.prefixes[i]
	}
	return ""
}

// listsOf returns what the session knows of the lists of upstreams.
func listsOf(conns []*upstreamConn) []*lists.Upstream {
	of := make([]*lists.Upstream, len(conns))
	for i, u := range conns {
		of[i] = u.lists
	}
	return of
}
