package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// A lazy upstream starts when a session needs it. Until its own server has answered, the session
// takes what the catalog knows of it.

// lazy reports whether the upstream starts only when something needs it. A sole upstream starts
// with its client, which gets its own description.
func (u *upstreamConn) lazy() bool { return u.up.Lazy && u.s.upstreams.of(u.era).only() != u }

// answers reports whether the session's own server has answered, so that the catalog is no longer
// asked.
func (u *upstreamConn) answers() bool {
	if u.era == mcp.Legacy {
		return u.alive()
	}
	return u.started()
}

// isIdle reports whether the upstream is lazy and has no stream.
func (u *upstreamConn) isIdle() bool {
	return u.lazy() && !u.is(func(*attempt) bool { return true })
}

// noteCapabilities stores the digest of the capabilities in the params of initialize.
func (s *session) noteCapabilities(initialize json.RawMessage) {
	capabilities, _ := jsonrpc.Member(initialize, "capabilities")
	s.caps.Store(digestOf(capabilities))
}

// noCapabilitiesDigest is the digest of the capabilities of the router itself in views.
var noCapabilitiesDigest = catalog.Digest(sha256.Sum256(noCapabilities))

// digestOf returns the digest of capabilities for keys of the catalog. It is zero for a client
// without any.
func digestOf(capabilities json.RawMessage) *catalog.Digest {
	d := new(catalog.Digest)
	if capabilities = bytes.TrimSpace(capabilities); len(capabilities) > 0 && string(capabilities) != "{}" {
		*d = sha256.Sum256(capabilities)
	}
	return d
}

// key returns the key of the upstream's entry for clients of a view; nil is a client without
// capabilities.
func (u *upstreamConn) key(w *view) lists.Key {
	k := lists.Key{Upstream: u.up.Name, Era: u.era}
	switch caps := u.s.caps.Load(); {
	case u.era == mcp.Modern && w != nil:
		if k.Caps = w.caps; w.caps == noCapabilitiesDigest {
			k.Caps = catalog.Digest{}
		}
	case u.era == mcp.Legacy && caps != nil:
		k.Caps = *caps
	}
	return k
}

// A foundEntry is the answer of the catalog at one time.
type foundEntry struct {
	key     lists.Key
	version int64
	entry   *lists.Entry
}

// entry returns what the catalog knows of the upstream for clients of a view, nil for nothing.
func (u *upstreamConn) entry(w *view) *lists.Entry {
	c := &u.s.router.Catalog
	key, version := u.key(w), c.Version()
	if found := u.found.Load(); found != nil && found.version == version && found.key == key {
		return found.entry
	}
	found := &foundEntry{key, version, c.Get(key)}
	if w == nil && u.era == mcp.Modern { // any client's will do
		found.entry = c.Any(key)
	}
	u.found.Store(found)
	return found.entry
}

// learn returns the entry of the upstream for clients of a view, and asks the upstream for it if
// necessary. The failure is nil if ctx ended first.
func (u *upstreamConn) learn(ctx context.Context, who asker) (*lists.Entry, *failure) {
	if e := u.entry(who.view); e != nil {
		u.renew(e, who)
		return e, nil
	}
	asking := u.beginTrial(who)
	if u.s.router.Catalog.Any(u.key(who.view)) != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, otherPatience)
		defer cancel()
	}
	select {
	case <-asking.Done:
	case <-ctx.Done():
		return u.s.router.Catalog.Any(u.key(who.view)), nil
	}
	if asking.Err != nil {
		if e := u.s.router.Catalog.Any(u.key(who.view)); e != nil {
			return e, nil
		}
		return nil, ownFailure(u.lost(jsonrpc.EndOf(asking.Err, jsonrpc.CauseStartFailed)))
	}
	return asking.Entry, nil
}

// otherPatience bounds the wait for what an upstream says to clients with the same capabilities, if
// it is known what it says to others. A change is told later.
const otherPatience = 2 * time.Second

// beginTrial begins a trial of the upstream, which is told the client's capabilities, unless one is
// under way.
func (u *upstreamConn) beginTrial(who asker) *lists.Asking {
	return u.s.router.try(u.key(who.view), u.up, u.capabilities(who))
}

// capabilities returns the client's capabilities.
func (u *upstreamConn) capabilities(who asker) json.RawMessage {
	of := who.meta
	member := mcp.KeyCapabilities
	if u.era == mcp.Legacy {
		u.s.mu.Lock()
		of, member = u.s.handshake.params, "capabilities"
		u.s.mu.Unlock()
	}
	if capabilities, _ := jsonrpc.Member(of, member); capabilities != nil {
		return capabilities
	}
	return noCapabilities
}

// renew asks for an old entry again, for later answers.
func (u *upstreamConn) renew(e *lists.Entry, who asker) {
	p := u.s.router
	if p.CatalogAge > 0 && time.Since(e.Asked) > p.CatalogAge {
		u.beginTrial(who)
	}
}

// fromCatalog returns a list of the upstream without starting it for the session. It returns nil
// and no failure if the session's own server must say.
func (u *upstreamConn) fromCatalog(ctx context.Context, k catalog.Kind, who asker) (*catalog.Listing, *failure) {
	if who.own || !u.lazy() || u.answers() {
		return nil, nil
	}
	e := u.entry(who.view)
	if e == nil && !u.isIdle() {
		return nil, nil // it starts, and says it soon
	}
	e, f := u.learn(ctx, who)
	switch {
	case f != nil:
		return nil, f
	case e == nil:
		return nil, u.lateFailure()
	}
	l := e.Lists[k]
	if l == nil || !u.isFresh(l.Caching, e) {
		return nil, nil
	}
	if t, listed := u.lists.table(who.view, k); listed && t.Digest != l.Table.Digest && !u.lists.stale(who.view, k) {
		return &catalog.Listing{Offered: true, Entries: t.Entries, Digest: t.Digest}, nil // it rests, and said something else
	}
	return &catalog.Listing{
		Offered: l.Offered, Entries: l.Table.Entries, Digest: l.Table.Digest,
		Rest: l.Rest, Caching: l.Caching.Aged(time.Since(e.Asked)),
	}, nil
}

// isFresh reports whether a server allows an answer in an entry to be used now. Only those of the
// modern era say so (2026-07-28 server/utilities/caching).
func (u *upstreamConn) isFresh(c catalog.Caching, e *lists.Entry) bool {
	return u.era == mcp.Legacy || c.Public() && c.Aged(time.Since(e.Asked)).Fresh()
}

// introducedByCatalog returns a lazy upstream's description without starting it for the session. ok
// is false if the session's own server is to say.
func (u *upstreamConn) introducedByCatalog(ctx context.Context, who asker) (said json.RawMessage, failed *failure, ok bool) {
	if !u.isIdle() {
		return nil, nil, false
	}
	e, f := u.learn(ctx, who)
	switch {
	case e == nil:
		return nil, f, true
	case !u.isFresh(catalog.CachingOf(e.Introduction), e):
		return nil, nil, false
	}
	return e.Introduction, nil, true
}

// table returns the table of a list: that of this session, else that of the catalog if the upstream
// is lazy.
func (u *upstreamConn) table(w *view, k catalog.Kind) *catalog.Table {
	t, listed := u.lists.table(w, k)
	if listed || !u.lazy() {
		return t
	}
	if e := u.entry(w); e != nil && e.Lists[k] != nil {
		return e.Lists[k].Table
	}
	return t
}

// relisted tells the clients whose lists come from the catalog that an upstream lists something
// else.
func (p *Router) relisted(upstream string) {
	p.memory.noteInTime(upstream, starts)
	p.memory.noteInTime(upstream, mcp.MethodDiscover)
	for k := range catalog.Kinds {
		p.memory.noteInTime(upstream, k.Method())
	}
	for _, s := range p.running() {
		for _, u := range s.upstreams.conns() {
			if u.up.Name == upstream && u.lazy() && !u.answers() && s.grant().Sees(upstream) {
				u.relisted()
			}
		}
	}
}

// relisted tells the client if the catalog differs from what the client has seen.
func (u *upstreamConn) relisted() {
	for k := range catalog.Kinds {
		if u.era == mcp.Modern {
			u.s.subscriptions.changed(u, min(k, catalog.Resources))
			continue
		}
		who := u.ownAsker()
		switch e := u.entry(who.view); {
		case e == nil: // it was for other capabilities
			if u.s.listChanges.matters(k) {
				u.s.listChanges.tell(k)
			}
		case e.Lists[k] != nil:
			u.compare(k, who, e.Lists[k].Table)
		}
	}
}

// compare tells a client of the legacy era if a table differs from what the client has seen.
func (u *upstreamConn) compare(k catalog.Kind, who asker, t *catalog.Table) {
	li := who.visible(u, k, &catalog.Listing{Entries: t.Entries, Digest: t.Digest})
	u.s.listChanges.compare(u.shown, k, li.Digest)
}

// listFirst asks a server of the legacy era that has just started for its lists, before it gets
// anything of the client besides initialize, so that the client is notified soon of what differs
// from the catalog.
func (u *upstreamConn) listFirst(a *attempt) {
	for k := range catalog.Kinds {
		version := u.lists.versionOf(k)
		if !u.says().declares(k.Capability()) {
			u.listed(k, version, nil)
			continue
		}
		c := u.newCall(a, k.Method())
		c.First, c.Room = true, &a.first
		c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
			if lost == nil {
				u.noteAnswer(answer)
				u.firstListed(k, version, answer)
			}
		}
		_ = c.Send(&jsonrpc.Message{Params: c.own(u.ctx, nil)}) // End settles it
	}
}

// firstListed takes the answer to a request of listFirst.
func (u *upstreamConn) firstListed(k catalog.Kind, version int, answer *jsonrpc.Message) {
	var all catalog.Collection
	var next json.RawMessage
	var err error
	if answer.Error == nil {
		next, err = all.Add(mcp.Legacy, k.Member(), answer.Result)
	}
	code, _ := jsonrpc.Member(answer.Error, "code")
	if answer.Error != nil && string(code) != noMethod || err != nil || next != nil { // there is more of it, or it is unusable
		if who := u.ownAsker(); u.s.listChanges.matters(k) {
			u.catchUp.ask(k.Method(), func(ctx context.Context) { u.catchUp.run(ctx, k, who) })
		}
		return
	}
	u.listed(k, version, all.Elements)
}

// listed makes a list that of the session, and tells the client if it has seen another one. If the
// catalog has another one, too, it asks the upstream again.
func (u *upstreamConn) listed(k catalog.Kind, version int, elements []json.RawMessage) {
	who := u.ownAsker()
	t := u.s.router.memory.keep(u.lists.key(who.view.caps, k), u.index(k, elements))
	u.lists.keep(who.view, k, t, version)
	u.compare(k, who, t)
	u.doubt(k, who, t)
}

// ownAsker returns the asker for the client of a session of the legacy era.
func (u *upstreamConn) ownAsker() asker { return asker{view: &u.s.views.legacy, grant: u.s.grant()} }

// doubt begins a trial if a server of this session lists something else than the catalog. Only
// trials change the catalog, because nothing of a client has influenced what they list.
func (u *upstreamConn) doubt(k catalog.Kind, who asker, t *catalog.Table) {
	e := u.entry(who.view)
	if e == nil || e.Lists[k] == nil || e.Lists[k].Table.Digest == t.Digest || time.Since(e.Asked) < doubtPause {
		return
	}
	u.s.wg.Go(func() { u.beginTrial(who) })
}

// changedForAll asks the upstream again for the catalog, because a server that all sessions use has
// changed a list. The servers of the modern era are of that kind: their lists do not vary by
// connection (2026-07-28 server/tools).
func (u *upstreamConn) changedForAll(who asker) {
	if u.lazy() && (u.up.Shared || u.era == mcp.Modern) && u.entry(who.view) != nil {
		u.s.router.renew(u.key(who.view), u.up, u.capabilities(who))
	}
}

// doubtPause is how long an entry of the catalog is not doubted: servers whose lists change all the
// time must not be started all the time.
const doubtPause = time.Minute
