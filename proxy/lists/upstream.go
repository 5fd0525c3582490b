package lists

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A Server is a session's way to the server of an upstream.
type Server interface {
	// Ask makes a call and returns its result. It starts the server if necessary. The error of an
	// error response is an [*AnswerError].
	Ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)

	// Start starts the server if necessary, and waits until it is ready. It returns the error for
	// those who need it.
	Start(ctx context.Context) *jsonrpc.Error

	// WakeUp starts the server if necessary, and reports whether it is ready. It does not wait.
	WakeUp() (ready bool)

	// State returns the current state of the stream to the server.
	State() State

	// IsSole reports whether the client has no other upstream. Such an upstream is never lazy.
	IsSole() bool

	// Try begins a trial with a client's capabilities for an entry of the catalog, unless one is
	// under way. Renew begins one because the upstream has changed a list.
	Try(k Key, capabilities json.RawMessage) *Asking
	Renew(k Key, capabilities json.RawMessage)

	// ListChanged notifies the subscriptions of clients of the modern era.
	ListChanged(k catalog.Kind)
}

// A State is the state of the stream to a server.
type State struct {
	Open  bool // it has not ended
	Ready bool // the server has answered initialize; in the modern era the stream is open
	Heard bool // the server has answered something
}

// An Upstream is what a session knows of what one upstream lists, in one era.
type Upstream struct {
	// Static after construction.
	Config
	of     *Session
	server Server

	said          atomic.Pointer[Description] // its last description of itself in this session; see Says
	found         atomic.Pointer[foundEntry]  // of the catalog
	missingLogged atomic.Bool                 // since its last start here, that it is missing in a list

	// What the client has seen of its lists. Guarded by Session.mu.
	shown [catalog.Kinds]struct {
		digest    catalog.Digest
		announced int // Session.announced when the client was told of it; 0: has listed since
	}

	mu      sync.Mutex // guards the fields below; only Memory.mu is locked under it
	known   map[catalog.Digest]*known
	recent  recent                  // of known
	version [catalog.Kinds]int      // from 1; counts changes
	tooLate time.Time               // when it last did not list its tools in time, see LearnTools
	behind  map[catalog.Kind]Client // clients that have seen a list without it
	aside   map[string]bool         // methods that it is asked for in the background
}

// A Config says of which upstream an Upstream is.
type Config struct {
	Name    string
	Era     mcp.Era
	Lazy    bool                   // it starts when something needs it, unless it is a sole one
	Private bool                   // what it lists may depend on the user, so sessions do not learn it from each other
	Shared  bool                   // all sessions use one server, so that a change of its lists is one for all
	Allows  func(tool string) bool // whether clients may see a tool
	Log     *slog.Logger
	Ctx     context.Context // ends when it is hung up
}

// New returns what the session knows of another upstream.
func (s *Session) New(c Config, server Server) *Upstream {
	u := &Upstream{Config: c, of: s, server: server}
	for k := range catalog.Kinds {
		u.version[k] = 1
		u.shown[k].digest = catalog.EmptyDigest
	}
	return u
}

// IsLazy reports whether the upstream starts only when something needs it. A sole upstream starts
// with its client, which gets its own description.
func (u *Upstream) IsLazy() bool { return u.Lazy && !u.server.IsSole() }

// IsIdle reports whether the upstream is lazy and has no stream.
func (u *Upstream) IsIdle() bool { return u.IsLazy() && !u.server.State().Open }

// Answers reports whether the session's own server has answered, so that the catalog is no longer
// asked.
func (u *Upstream) Answers() bool {
	s := u.server.State()
	return u.Era == mcp.Legacy && s.Ready || s.Heard
}

func (u *Upstream) isStarting() bool {
	s := u.server.State()
	return s.Open && !s.Heard
}

// A Description is an upstream's description of itself: its answer to initialize or server/discover.
type Description struct {
	Result       json.RawMessage // nil if there is none yet
	Capabilities map[string]json.RawMessage
}

// Says returns the upstream's last description in this session, else the one in the catalog if it
// starts only when it is needed.
func (u *Upstream) Says() Description {
	if said := u.said.Load(); said != nil {
		return *said
	}
	if u.IsLazy() {
		if e := u.entryOfAny(); e != nil {
			return Description{e.Introduction, e.Capabilities}
		}
	}
	return Description{}
}

// IsExtended reports whether the upstream declared an extension, or an experimental capability, that
// the proxy does not know.
func (d Description) IsExtended() (extended bool) {
	for _, in := range []string{"extensions", "experimental"} {
		_ = jsonrpc.Each(d.Capabilities[in], func(key string, _ json.RawMessage) { // other values have no members
			extended = extended || !catalog.IsKnownExtension(key)
		})
	}
	return extended
}

// DeclaresExtension reports whether the upstream declared an extension.
func (d Description) DeclaresExtension(key string) bool {
	settings, _ := jsonrpc.Member(d.Capabilities["extensions"], key)
	return settings != nil
}

// Declares reports whether the upstream declared a capability.
func (d Description) Declares(capability string) bool {
	_, ok := d.Capabilities[capability]
	return ok
}

// Offers is Declares, but true for an upstream without a description, which may have the capability.
func (d Description) Offers(capability string) bool {
	return d.Result == nil || d.Declares(capability)
}

// Note notes the upstream's description, of either era.
func (u *Upstream) Note(result json.RawMessage) {
	e, err := NewEntry(result)
	if err != nil {
		u.Log.Warn("unusable capabilities from upstream", "err", err)
	}
	u.said.Store(&Description{e.Introduction, e.Capabilities})
	if u.Era == mcp.Legacy && !u.Private {
		u.of.Memory.noteSaid(u.Name, e.Introduction)
	}
}

// LastSaid returns the upstream's description in this session. While there is none it returns the last one in another
// session, or that in the catalog; nil for none.
func (u *Upstream) LastSaid() json.RawMessage {
	if said := u.Says().Result; said != nil || u.Private {
		return said
	}
	if said := u.of.Memory.lastSaid(u.Name); said != nil {
		return said
	}
	if e := u.entryOfAny(); e != nil {
		return e.Introduction
	}
	return nil
}

// Table returns the table of a list: that of this session, else that of the catalog if the upstream
// is lazy. It is nil if nothing is known.
func (u *Upstream) Table(caps catalog.Digest, k catalog.Kind) *catalog.Table {
	t, listed := u.own(caps, k)
	if listed || !u.IsLazy() {
		return t
	}
	if e := u.entry(caps); e != nil && e.Lists[k] != nil {
		return e.Lists[k].Table
	}
	return t
}

// List asks the upstream for one kind of list, and keeps the table. A lazy one that has not answered
// yet is not started: the catalog says what it lists. An upstream that does not offer the kind is not
// asked, and lists nothing. A sole upstream is always asked.
func (u *Upstream) List(ctx context.Context, k catalog.Kind, who Client) (*catalog.Listing, *Failure) {
	if li, f := u.fromCatalog(ctx, k, who); li != nil || f != nil {
		return li, f
	}
	if err := u.server.Start(ctx); err != nil {
		return nil, FailureOf(err)
	}
	version := u.Version(k)
	// In the modern era every list can be asked for: what has been discovered by
	// chance must not change the answer.
	li := &catalog.Listing{Offered: u.server.IsSole() || u.Era == mcp.Modern || u.Says().Offers(k.Capability())}
	var all catalog.Collection
	var f *Failure
	if li.Offered {
		all, f = u.Pages(ctx, k.Method(), k.Member(), who.Meta)
	}
	if f != nil && !f.Unsupported {
		return nil, f
	}
	_, listed := u.own(who.Caps, k)
	t := u.keep(who.Caps, k, u.index(k, all.Elements), version)
	li.Entries, li.Rest, li.Caching, li.Digest = t.Entries, all.Rest, all.Caching, t.Digest
	if !listed && u.IsLazy() { // once: a server that always changes its lists must not always start trials
		u.doubt(k, who, t)
	}
	return li, f
}

// index builds the table of what clients may see of the upstream's list.
func (u *Upstream) index(k catalog.Kind, elements []json.RawMessage) *catalog.Table {
	t, unusable := catalog.Index(k, elements, func(name string) bool { return u.Shows(k, name) })
	for _, err := range unusable {
		if u.of.Memory.WarnOnce(fmt.Sprint(u.Name, k, err)) {
			u.Log.Warn("list entry left out", "method", k.Method(), "err", err)
		}
	}
	return t
}

// Shows reports whether clients may see what the upstream lists under a name.
func (u *Upstream) Shows(k catalog.Kind, name string) bool {
	return k != catalog.Tools || u.Allows(name)
}

// Visible returns the part of the upstream's list that the client may see.
func (u *Upstream) Visible(who Client, k catalog.Kind, li *catalog.Listing) *catalog.Listing {
	if who.Grant == nil || li == nil {
		return li
	}
	return li.Only(func(name string) bool { return who.Grant.May(KindOf(k), RuleName(k, u.Name, name)) })
}

// Pages asks the upstream for a list, and follows its cursors. It starts the upstream if need be. The
// meta is that of the client's request, nil for none.
func (u *Upstream) Pages(ctx context.Context, method, list string, meta json.RawMessage) (catalog.Collection, *Failure) {
	found, err := Collect(ctx, u.server.Ask, method, list, u.Era, meta, u.of.MaxBytes)
	answer, refused := errors.AsType[*AnswerError](err)
	switch {
	case refused:
		return found, &Failure{Wire: answer.Wire, cause: "error response", err: err, Unsupported: answer.Unsupported()}
	case errors.Is(err, ErrUnusable):
		return found, FailureOf(jsonrpc.InvalidResponse(u.Name, err.Error()))
	case err == ErrTooLong:
		u.WarnTooLong(method, "nextCursor")
	case err != nil:
		return found, FailureOf(jsonrpc.TimedOut(u.Name))
	}
	u.of.Memory.NoteInTime(u.Name, method)
	return found, nil
}

// WarnTooLong logs once that an answer of the upstream has something longer than anybody keeps.
func (u *Upstream) WarnTooLong(method, key string) {
	if u.of.Memory.WarnOnce(u.Name + " " + method + " " + key) {
		u.Log.Warn("upstream sent an overlong value", "method", method, "err", fmt.Errorf("%q %w", key, mcp.ErrTooLong))
	}
}

// freshen lists a kind if what is known of it is stale. It reports whether it is fresh now: the
// upstream may be down, or too slow.
func (u *Upstream) freshen(ctx context.Context, k catalog.Kind, who Client) bool {
	for {
		run, first := u.run(who.Caps, k)
		switch {
		case run == nil:
			return true
		case first:
			li, _ := u.List(ctx, k, who)
			run.ok, run.gone = li != nil, li == nil && ctx.Err() != nil
			u.ran(k, run)
			return run.ok
		}
		select {
		case <-run.done:
		case <-ctx.Done():
			return false
		}
		if !run.gone {
			return run.ok
		}
	}
}

// LearnTools lists the upstream's tools, so that a call can be checked.
func (u *Upstream) LearnTools(ctx context.Context, who Client) {
	ctx, cancel := context.WithTimeout(ctx, u.of.ListTimeout)
	defer cancel()
	if !u.freshen(ctx, catalog.Tools, who) && TimedOut(ctx) {
		u.noteTooLate()
	}
}

// A Failure is why one upstream has no part in an answer made of many: its own error, or ours about
// it.
type Failure struct {
	Wire        json.RawMessage
	Unsupported bool   // the upstream has no such list, whatever it declared
	cause       string // for the log
	err         error  // the upstream's own, for the log; nil for ours
	event       string // of the end that it comes from; "" for none
	late        bool   // it was not waited for any longer
	skipped     bool   // or not at all
}

// FailureOf returns our failure with an error.
func FailureOf(err *jsonrpc.Error) *Failure {
	data, _ := err.Data.(jsonrpc.ErrorData)
	return &Failure{Wire: err.Raw(), cause: cmp.Or(data.Cause.String(), err.Message), event: data.Event}
}

// LeftOut logs that the upstream has no part in the answer to method, with a warning at most once for each start here,
// and for the first session that lacks it for that reason.
func (u *Upstream) LeftOut(method string, f *Failure) {
	level := slog.LevelDebug
	if !u.missingLogged.Swap(true) && u.of.Memory.noteMissing(u.Name, f) {
		level = slog.LevelWarn
	}
	log := u.Log.With("method", method, "cause", f.cause)
	if f.err != nil {
		log = log.With("err", f.err)
	}
	log.Log(u.of.Context, level, "upstream left out of a merged list")
}

// lateFailure is why the upstream has no part in an answer that did not wait for it.
func (u *Upstream) lateFailure() *Failure {
	f := FailureOf(jsonrpc.TimedOut(u.Name))
	if u.isStarting() {
		if u.Era == mcp.Legacy {
			f = FailureOf(peer.Unsent(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartTimeout}, u.Name))
		}
		f.cause = jsonrpc.CauseStillStarting.String()
	}
	f.late = true
	return f
}

// Started notes that the upstream has a new stream, which is ready.
func (u *Upstream) Started() {
	u.missingLogged.Store(false)
	u.of.Memory.noteThere(u.Name)
}
