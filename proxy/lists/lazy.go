package lists

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A lazy upstream starts when a session needs it. Until its own server has answered, the session
// takes what the catalog knows of it.

// key returns the key of the upstream's entry for clients with capabilities.
func (u *Upstream) key(caps catalog.Digest) Key {
	k := Key{Upstream: u.Name, Era: u.Era, Caps: caps}
	if caps == capsOfNone {
		k.Caps = catalog.Digest{}
	}
	if c := u.of.client.Load(); u.Era == mcp.Legacy && c != nil {
		k.Caps = c.digest
	}
	return k
}

// A foundEntry is the answer of the catalog at one time.
type foundEntry struct {
	key     Key
	any     bool // that of any client will do
	version int64
	entry   *Entry
}

// entry returns what the catalog knows of the upstream for clients with capabilities, nil for
// nothing.
func (u *Upstream) entry(caps catalog.Digest) *Entry {
	return u.find(foundEntry{key: u.key(caps)})
}

// entryOfAny returns what the catalog knows of the upstream, for whatever client of the modern era.
func (u *Upstream) entryOfAny() *Entry {
	return u.find(foundEntry{key: u.key(catalog.Digest{}), any: u.Era == mcp.Modern})
}

func (u *Upstream) find(f foundEntry) *Entry {
	c := u.of.Catalog
	f.version = c.Version()
	if last := u.found.Load(); last != nil && last.version == f.version && last.key == f.key && last.any == f.any {
		return last.entry
	}
	found := f // f itself is on no heap: most calls end above
	if found.entry = c.Get(f.key); f.any {
		found.entry = c.Any(f.key)
	}
	u.found.Store(&found)
	return found.entry
}

// learn returns the entry of the upstream for a client, and asks the upstream for it if necessary.
// The failure is nil if ctx ended first. instead is set if the entry is an outdated one or that of
// other clients.
func (u *Upstream) learn(ctx context.Context, who Client) (e *Entry, instead bool, failed *Failure) {
	if e := u.entry(who.Caps); e != nil && !e.Outdated {
		if age := u.of.CatalogAge; age > 0 && time.Since(e.Asked) > age { // for later answers
			u.Try(who)
		}
		return e, false, nil
	}
	asking := u.Try(who)
	if u.of.Catalog.Any(u.key(who.Caps)) != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, otherPatience)
		defer cancel()
	}
	select {
	case <-asking.Done:
	case <-ctx.Done():
		return u.of.Catalog.Any(u.key(who.Caps)), true, nil
	}
	if asking.Err != nil {
		if e := u.of.Catalog.Any(u.key(who.Caps)); e != nil {
			return e, true, nil
		}
		return nil, false, FailureOf(peer.Unsent(jsonrpc.EndOf(asking.Err, jsonrpc.CauseStartFailed), u.Name))
	}
	return asking.Entry, false, nil
}

// otherPatience bounds the wait for what an upstream says to clients with the same capabilities, if
// it is known what it says to others. A change is told later.
const otherPatience = 2 * time.Second

// Try begins a trial of the upstream, which is told the client's capabilities, unless one is under
// way.
func (u *Upstream) Try(who Client) *Asking { return u.server.Try(u.key(who.Caps), u.capabilities(who)) }

// capabilities returns the client's capabilities.
func (u *Upstream) capabilities(who Client) json.RawMessage {
	if u.Era == mcp.Legacy {
		if c := u.of.client.Load(); c != nil {
			return c.capabilities
		}
		return NoCapabilities
	}
	if capabilities, _ := jsonrpc.Member(who.Meta, mcp.KeyCapabilities); capabilities != nil {
		return capabilities
	}
	return NoCapabilities
}

// fromCatalog returns a list of the upstream without starting it for the session. It returns nil and
// no failure if the session's own server must say.
func (u *Upstream) fromCatalog(ctx context.Context, k catalog.Kind, who Client) (*catalog.Listing, *Failure) {
	if who.Own || !u.IsLazy() || u.Answers() {
		return nil, nil
	}
	e := u.entry(who.Caps)
	if e == nil && !u.IsIdle() {
		return nil, nil // it starts, and says it soon
	}
	e, instead, f := u.learn(ctx, who)
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
	if t, listed := u.own(who.Caps, k); listed && t.Digest != l.Table.Digest && !u.IsStale(who.Caps, k) {
		return &catalog.Listing{Offered: true, Entries: t.Entries, Digest: t.Digest}, nil // it rests, and said something else
	}
	caching := l.Caching.Aged(time.Since(e.Asked))
	if instead {
		caching.Partial()
	}
	return &catalog.Listing{Offered: l.Offered, Entries: l.Table.Entries, Digest: l.Table.Digest, Rest: l.Rest, Caching: caching}, nil
}

// isFresh reports whether a server allows an answer in an entry to be used now. Only those of the
// modern era say so (2026-07-28 server/utilities/caching).
func (u *Upstream) isFresh(c catalog.Caching, e *Entry) bool {
	return u.Era == mcp.Legacy || e.Translated || c.Public() && c.Aged(time.Since(e.Asked)).Fresh()
}

// Introduce returns a lazy upstream's description without starting it for the session. ok is false if
// the session's own server is to say.
func (u *Upstream) Introduce(ctx context.Context, who Client) (said json.RawMessage, failed *Failure, ok bool) {
	if !u.IsIdle() {
		return nil, nil, false
	}
	e, instead, f := u.learn(ctx, who)
	switch {
	case e == nil:
		return nil, f, true
	case !u.isFresh(catalog.CachingOf(e.Introduction), e):
		return nil, nil, false
	}
	return catalog.Aged(e.Introduction, time.Since(e.Asked), instead), nil, true
}

// Relisted tells the client of the session if the catalog, which has changed, differs from what the
// client has seen. It does nothing if the catalog does not answer for the upstream.
func (u *Upstream) Relisted() {
	if !u.IsLazy() || u.Answers() {
		return
	}
	for k := range catalog.Kinds {
		if u.Era == mcp.Modern {
			u.server.ListChanged(k)
			continue
		}
		who := u.of.Legacy()
		switch e := u.entry(who.Caps); {
		case e == nil || e.Outdated: // it was for other capabilities
			if u.of.matters(k) {
				u.of.TellChanged(k)
			}
		case e.Lists[k] != nil:
			u.compare(k, who, e.Lists[k].Table)
		}
	}
}

// compare tells a client of the legacy era if a table differs from what the client has seen.
func (u *Upstream) compare(k catalog.Kind, who Client, t *catalog.Table) {
	li := u.Visible(who, k, &catalog.Listing{Entries: t.Entries, Digest: t.Digest})
	u.of.compare(u, k, li.Digest)
}

// FirstListed takes the answer to a request for a list, which was the first one to a server of the
// legacy era that has just started; nil means that it has no such list. The version is from before
// the request.
func (u *Upstream) FirstListed(k catalog.Kind, version int, answer *jsonrpc.Message) {
	var all catalog.Collection
	var next json.RawMessage
	var err error
	if answer != nil && answer.Error == nil {
		next, err = all.Add(mcp.Legacy, k.Member(), answer.Result)
	}
	who := u.of.Legacy()
	if answer != nil && answer.Error != nil && !IsUnsupported(answer.Error) || err != nil || next != nil { // there is more of it, or it is unusable
		if u.of.matters(k) {
			u.Aside(k.Method(), func(ctx context.Context) { u.relist(ctx, k, who) })
		}
		return
	}
	t := u.keep(who.Caps, k, u.index(k, all.Elements), version)
	u.compare(k, who, t)
	u.doubt(k, who, t)
}

// doubt begins a trial if a server of this session lists something else than the catalog. Only trials
// change the catalog, because nothing of a client has influenced what they list. A server of all
// sessions has changed the list while nobody of its era heard of that, unless it lists by user.
func (u *Upstream) doubt(k catalog.Kind, who Client, t *catalog.Table) {
	e := u.entry(who.Caps)
	switch {
	case e == nil || e.Lists[k] == nil || e.Lists[k].Table.Digest == t.Digest:
	case u.isOneFor(e) && !u.Private:
		u.of.Goroutines.Go(func() { u.renew(who) })
	case time.Since(e.Asked) >= doubtPause:
		u.of.Goroutines.Go(func() { u.Try(who) })
	}
}

// isOneFor reports whether all sessions use one server, of which the catalog has an entry. The servers of
// the modern era are of that kind: their lists do not vary by connection (2026-07-28 server/tools).
func (u *Upstream) isOneFor(e *Entry) bool {
	return e != nil && (u.Shared || u.Era == mcp.Modern && !e.Translated)
}

func (u *Upstream) renew(who Client) { u.server.Renew(u.key(who.Caps), u.capabilities(who)) }

// doubtPause is how long an entry of the catalog is not doubted: servers whose lists change all the
// time must not be started all the time.
const doubtPause = time.Minute

// Verify tells clients of the modern era if a server that has started lists something else than the
// catalog.
func (u *Upstream) Verify(k catalog.Kind, who Client) {
	u.Aside(k.Method(), func(ctx context.Context) {
		e := u.entry(who.Caps) // before List begins a trial, after which the catalog says the same
		li, _ := u.List(ctx, k, who)
		if li != nil && e != nil && e.Lists[k] != nil && li.Digest != e.Lists[k].Table.Digest {
			u.server.ListChanged(k)
			u.doubt(k, who, u.Table(who.Caps, k))
		}
	})
}

// Changed notes that the upstream has changed a list. If all sessions use its server, it is asked
// again for the catalog.
func (u *Upstream) Changed(k catalog.Kind, who Client) {
	u.Outdate(k)
	if !u.IsLazy() {
		return
	}
	if u.isOneFor(u.entryOfAny()) {
		u.renew(who)
	}
}
