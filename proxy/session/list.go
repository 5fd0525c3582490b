package session

import (
	"context"
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// list returns the handler that merges one kind of list.
func list(k catalog.Kind) handler {
	return func(s *session, r *request) *jsonrpc.Error {
		cursor, meta, err := r.readList()
		switch {
		case err != nil:
			return jsonrpc.InvalidParams(err.Error())
		case cursor != nil: // a merged list is one page, so no cursor is ours
			return unknownCursor
		}
		s.work(r, func(ctx context.Context) {
			s.listAnew(ctx, r, k, lists.Client{Caps: r.caps, Grant: r.grant, Meta: meta})
		})
		return nil
	}
}

// readList reads the params of a list request; a cursor of null is none.
func (r *request) readList() (cursor, meta json.RawMessage, err error) {
	if cursor = r.notes.Raw(mcp.Cursor); string(cursor) == "null" {
		cursor = nil
	}
	return cursor, r.notes.Raw(mcp.InMeta), r.notes.Err(mcp.Cursor, mcp.InMeta, mcp.Token)
}

// listAnew asks the upstreams for their lists and merges them. One that is dead or late is
// left out. If no upstream could list anything, the answer is an error, never an empty list.
func (s *session) listAnew(ctx context.Context, r *request, k catalog.Kind, who lists.Client) {
	m := s.listAll(ctx, r.era, k, who)
	if r.era == mcp.Legacy {
		s.lists.Answered(k)
	}
	if ctx.Err() != nil { // nobody wants to know
		return
	}
	if m.failure != nil && !m.offered {
		s.settle(r, &jsonrpc.Message{ID: r.ID, Error: m.failure.Wire})
		return
	}
	merged, clashes := catalog.Merge(m.listings)
	for _, name := range clashes {
		if s.router.memory.WarnOnce("clash " + k.Member() + name) {
			s.log.Warn("listed by two upstreams: the first one in the config answers", k.Key(), name)
		}
	}
	if r.era == mcp.Modern {
		if r.upstreams.only() == nil {
			merged.Sign(s.router.serverInfo())
		}
		if s.router.Policies.Differ() {
			m.caching.Private()
		}
		merged.Say(m.caching)
	}
	s.settle(r, jsonrpc.NewResult(r.ID, merged.Result(k)))
}

var unknownCursor = jsonrpc.InvalidParams("unknown cursor")

// listAll returns what the upstreams list together; nil if ctx ends first. Upstreams that are not known
// yet have failed, but if no other answers, listAll waits for them, too.
func (s *session) listAll(ctx context.Context, era mcp.Era, k catalog.Kind, who lists.Client) *merging {
	patience, cancel := context.WithTimeout(ctx, s.router.listTimeout())
	defer cancel()
	for {
		asOf := 0
		if era == mcp.Legacy {
			asOf = s.lists.Want(k)
		}
		set := s.upstreams.of(era).visibleTo(who.Grant) // after that: what is announced later may not be in it
		found, failed := lists.Gather(ctx, listsOf(set.conns), k.Method(), nil,
			func(ctx context.Context, i int) (*catalog.Listing, *lists.Failure) {
				return set.conns[i].lists.List(ctx, k, who)
			})
		if ctx.Err() != nil {
			return nil
		}
		m := s.mergeParts(set, k, who, asOf, found, failed)
		if m.answered || set.settled {
			return m
		}
		select {
		case <-set.replaced:
		case <-patience.Done():
			return m
		}
	}
}

// A merging is what upstreams list together.
type merging struct {
	listings []catalog.Listing // of the upstreams that offer the kind, in the order of the configuration
	caching  catalog.Caching   // of all of it
	failure  *lists.Failure    // the first; nil for none
	offered  bool              // an upstream has such a list
	answered bool              // an upstream could say
}

// mergeParts puts together what upstreams said. For one that is still starting it takes the list that
// any session saw last.
func (s *session) mergeParts(set *upstreamSet, k catalog.Kind, who lists.Client, asOf int, found []*catalog.Listing, failed []*lists.Failure) *merging {
	m := new(merging)
	for i, u := range set.conns {
		f := failed[i]
		li := u.lists.Visible(who, k, found[i])
		m.answered = m.answered || f == nil || f.Unsupported
		if f != nil {
			li = u.lists.StandIn(k, who, f)
			m.failed(f)
		}
		if li == nil {
			if !f.Unsupported {
				u.lists.LeftOut(k.Method(), f)
			}
			s.lists.Showed(u.lists, k, catalog.EmptyDigest, asOf)
			continue
		}
		s.lists.Showed(u.lists, k, li.Digest, asOf)
		li.Prefix = set.prefix(k, i)
		if k.IsNamed() && li.Prefix == "" {
			li = li.Only(func(name string) bool { return catalog.Longest(set.prefixes, name) == "" }) // else another's
		}
		m.offered = m.offered || li.Offered
		m.listings = append(m.listings, *li)
		if f == nil && li.Offered {
			m.caching.Add(li.Caching)
		}
	}
	if err := set.unreached(who.Grant); err != nil {
		m.failed(lists.FailureOf(err))
	}
	return m
}

// failed notes that a part is missing. An upstream that has no such list misses none.
func (m *merging) failed(f *lists.Failure) {
	if !f.Unsupported {
		m.caching.Partial()
	}
	if m.failure == nil || m.failure.Unsupported && !f.Unsupported {
		m.failure = f
	}
}
