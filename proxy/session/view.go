package session

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A view is what is known of the upstreams' offers as clients with the same
// capabilities see them. In the modern era a session may be of many clients, or of
// one that says other capabilities with each request, and what an upstream offers
// may depend on them: a name that one client was given must not be unknown since
// another one has listed. All that is of the legacy era is one view.
type view struct {
	caps     catalog.Digest               // of the capabilities; zero in the legacy era
	catalogs map[*upstreamConn]*known     // modern era only; guarded by session.mu
	pages    [catalog.Kinds]*catalog.List // merged lists that are handed out by pages; guarded by session.mu
}

// A catalog is what one upstream offers in one view. It is guarded by session.mu.
type known struct {
	tables   [catalog.Kinds]*catalog.Table // as last listed
	listed   [catalog.Kinds]int            // upstreamConn.version in tables; 0 for one of an earlier session
	listedAt [catalog.Kinds]time.Time      // when it was; modern era only
	listing  [catalog.Kinds]*listRun       // under way, for a table; nil for none
}

// An asker is for whom upstreams are asked for lists.
type asker struct {
	view *view
	meta json.RawMessage // of such requests; nil in the legacy era
}

// asker returns for whom upstreams are asked so that c can be routed.
func (c *call) asker() asker { return asker{c.view, c.identity()} }

// maxViews bounds the views of a session, and those of which a Proxy remembers
// tables. The one that was used least recently is forgotten; who comes back makes
// the upstreams list again.
const maxViews = 16

// viewOf returns the view of clients of the modern era with these capabilities.
// They are compared byte for byte.
func (s *session) viewOf(capabilities json.RawMessage) *view {
	caps := catalog.Digest(sha256.Sum256(capabilities))
	s.mu.Lock()
	defer s.mu.Unlock()
	if forgotten, ok := s.recent.add(caps); ok {
		delete(s.views, forgotten)
	}
	w := s.views[caps]
	if w == nil {
		if s.views == nil {
			s.views = make(map[catalog.Digest]*view)
		}
		w = &view{caps: caps, catalogs: make(map[*upstreamConn]*known)}
		s.views[caps] = w
	}
	return w
}

// A recent is of which capabilities there are views, the last used one at the end.
type recent []catalog.Digest

// add notes that caps are used, and returns which are to be forgotten for that, if
// any are.
func (r *recent) add(caps catalog.Digest) (forgotten catalog.Digest, full bool) {
	i := slices.Index(*r, caps)
	if full = i < 0 && len(*r) == maxViews; full {
		i, forgotten = 0, (*r)[0]
	}
	if i >= 0 {
		*r = slices.Delete(*r, i, i+1)
	}
	*r = append(*r, caps)
	return forgotten, full
}

// catalogLocked returns what is known of the upstream in a view. At first that is
// what any session saw last.
func (u *upstreamConn) catalogLocked(w *view) *known {
	if u.era == mcp.Legacy {
		return &u.own
	}
	c := w.catalogs[u]
	if c == nil {
		c = u.newCatalog(w.caps)
		if !u.closed { // nobody would forget it
			w.catalogs[u] = c
		}
	}
	return c
}

func (u *upstreamConn) newCatalog(caps catalog.Digest) *known {
	c := new(known)
	for k := range catalog.Kinds {
		c.tables[k] = u.s.p.lastTable(u.tableKey(caps, k))
	}
	return c
}

func (u *upstreamConn) tableKey(caps catalog.Digest, k catalog.Kind) tableKey {
	return tableKey{u.up.Name, k, caps}
}

// forgetLocked forgets what the upstream offers.
func (s *session) forgetLocked(u *upstreamConn) {
	for _, w := range s.views {
		delete(w.catalogs, u)
	}
}
