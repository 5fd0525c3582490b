package lists

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// After one timeout, initialize and lists skip an upstream that others can stand in for, until it
// answers. Then clients get a list_changed.

// Starts stands for the start of an upstream, in either era, where a method is expected.
const Starts = mcp.MethodInitialize

// IsLate reports whether requests with a method skip the upstream while another one can answer. An
// upstream that has started here is not late to start, whatever other sessions saw.
func (u *Upstream) IsLate(method string) bool {
	if u.IsLazy() && !u.Answers() && u.entryOfAny() != nil {
		return false // the catalog answers
	}
	m := u.of.Memory
	return method != Starts && m.WasLate(u.Name, method) || !u.server.State().Heard && m.WasLate(u.Name, Starts)
}

// NoteLate notes that the upstream did not answer in time.
func (u *Upstream) NoteLate(method string) {
	u.of.Memory.NoteLate(u.Name, method)
	if !u.server.State().Heard {
		u.of.Memory.NoteLate(u.Name, Starts)
	}
}

// NoteInTime notes that the upstream has answered a request with a method.
func (u *Upstream) NoteInTime(method string) { u.of.Memory.NoteInTime(u.Name, method) }

// TimedOut reports whether what ctx bounds took too long, and was not cancelled.
func TimedOut(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }

// ForEach runs ask for each upstream, all at once, and waits for them; each has the list timeout.
func ForEach(ctx context.Context, upstreams []*Upstream, ask func(ctx context.Context, i int)) {
	var wg sync.WaitGroup
	for i, u := range upstreams {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, u.of.ListTimeout)
			defer cancel()
			ask(ctx, i)
		})
	}
	wg.Wait()
}

// Gather asks all upstreams that want accepts for their part of a list, at once; a nil want accepts
// all. It returns what each of them said, or why it said nothing. Several upstreams have the list
// timeout; a sole one, which holds up no other, has until the end of ctx. Gather asks an upstream that
// was late before only if no other can answer; then one answer is enough.
func Gather[T any](ctx context.Context, upstreams []*Upstream, method string, want func(i int) bool,
	ask func(ctx context.Context, i int) (T, *Failure)) (said []T, failed []*Failure) {
	said, failed = make([]T, len(upstreams)), make([]*Failure, len(upstreams))
	if len(upstreams) == 0 {
		return said, failed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if len(upstreams) > 1 {
		ctx, cancel = context.WithTimeout(ctx, upstreams[0].of.ListTimeout)
		defer cancel()
	}
	var prompt, tardy []int
	for i, u := range upstreams {
		switch {
		case want != nil && !want(i):
		case u.IsLate(method):
			tardy = append(tardy, i)
			failed[i] = u.lateFailure()
			failed[i].skipped = true
		default:
			prompt = append(prompt, i)
		}
	}
	answered := func(i int) bool { return failed[i] == nil || failed[i].Unsupported }
	askAll := func(who []int, enough func()) {
		var wg sync.WaitGroup
		for _, i := range who {
			wg.Go(func() {
				u := upstreams[i]
				said[i], failed[i] = ask(ctx, i)
				switch {
				case answered(i):
					enough()
				case TimedOut(ctx):
					u.NoteLate(method)
					fallthrough
				case ctx.Err() != nil:
					failed[i] = u.lateFailure()
				}
			})
		}
		wg.Wait()
	}
	askAll(prompt, func() {})
	if !slices.ContainsFunc(prompt, answered) {
		askAll(tardy, cancel)
	}
	return said, failed
}

// Refresh lists what is not known yet of upstreams, or has changed, so that a name or URI can be
// looked up. It does not wait for an upstream that was late before: a call of a known tool waits for
// its upstream, a look-up of an unknown one does not.
func Refresh(ctx context.Context, upstreams []*Upstream, who Client, ks ...catalog.Kind) {
	ForEach(ctx, upstreams, func(within context.Context, i int) {
		u := upstreams[i]
		for _, k := range ks {
			if u.IsLate(k.Method()) {
				continue
			}
			if !u.freshen(within, k, who) {
				if TimedOut(within) && ctx.Err() == nil {
					u.NoteLate(k.Method())
				}
				return
			}
		}
	})
}

// StandIn returns what a merged list has in place of an upstream that failed: if it is still starting,
// the list that any session saw last; else nil. A late upstream is listed again later, and the client
// gets a list_changed then.
func (u *Upstream) StandIn(k catalog.Kind, who Client, f *Failure) *catalog.Listing {
	if !f.late {
		return nil
	}
	u.missed(k, who, f)
	if !u.isStarting() {
		return nil
	}
	t := u.recall(who.Caps, k)
	if t == nil {
		return nil
	}
	li := &catalog.Listing{Digest: t.Digest}
	for _, e := range t.Entries {
		if u.Shows(k, e.Name) {
			li.Entries = append(li.Entries, e)
		}
	}
	li.Offered = len(li.Entries) > 0
	return u.Visible(who, k, li)
}

// missed makes sure that the client gets a list_changed when the upstream, which was too late for a
// list, can be listed. An upstream of the legacy era that still starts needs nothing: Returned tells
// the client.
func (u *Upstream) missed(k catalog.Kind, who Client, f *Failure) {
	if u.IsIdle() {
		u.Try(who) // after which Relisted tells
		return
	}
	switch ready := u.server.WakeUp(); {
	case u.Era == mcp.Legacy && !ready:
	case f.skipped:
		u.Aside(k.Method(), func(ctx context.Context) { u.relist(ctx, k, who) })
	default:
		u.owe(k, who)
	}
}

// owe notes that a client has seen a list without the upstream.
func (u *Upstream) owe(k catalog.Kind, who Client) {
	u.mu.Lock()
	defer u.mu.Unlock()
	put(&u.behind, k, who)
}

// Heard notes that the upstream has answered something; first says whether it is the first answer on
// its stream. Heard begins to ask it for the lists that a client has seen without it, because it may
// be in time now. It does not wait.
func (u *Upstream) Heard(first bool) {
	if first {
		u.of.Memory.NoteInTime(u.Name, Starts)
		u.of.Memory.NoteInTime(u.Name, mcp.MethodDiscover) // that is how the modern era starts
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for k, who := range u.behind {
		delete(u.behind, k)
		u.asideLocked(k.Method(), func(ctx context.Context) { u.relist(ctx, k, who) })
	}
}

// Aside runs fn, which asks the upstream in the background, unless it is being asked with the same
// method already.
func (u *Upstream) Aside(method string, fn func(ctx context.Context)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asideLocked(method, fn)
}

func (u *Upstream) asideLocked(method string, fn func(ctx context.Context)) {
	if u.aside[method] || u.Ctx.Err() != nil {
		return
	}
	put(&u.aside, method, true)
	u.of.Goroutines.Go(func() {
		ctx, cancel := context.WithTimeout(u.of.Context, u.of.ListTimeout)
		defer cancel()
		fn(ctx)
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.aside, method)
	})
}

// relist lists a kind for a client that has seen a list without the upstream, and tells it if there
// is anything to see.
func (u *Upstream) relist(ctx context.Context, k catalog.Kind, who Client) {
	li, _ := u.List(ctx, k, who)
	li = u.Visible(who, k, li)
	switch {
	case li == nil && TimedOut(ctx):
		u.owe(k, who)
	case li == nil:
	case u.Era == mcp.Modern:
		u.server.ListChanged(k)
	default:
		u.of.compare(u, k, li.Digest)
	}
}

// Returned runs when the upstream has answered initialize. It tells the client if the upstream lists
// something else than the client has seen of it. A list about which the client was told already, and
// has not looked, is not in lists. isOpen reports whether the stream is open still: an upstream that
// ends meanwhile is not started for that.
func (u *Upstream) Returned(lists [catalog.Kinds]bool, isOpen func() bool) {
	for k := range catalog.Kinds {
		if !isOpen() {
			return
		}
		if lists[k] && u.of.matters(k) {
			ctx, cancel := context.WithTimeout(u.of.Context, u.of.ListTimeout)
			u.relist(ctx, k, u.of.Legacy())
			cancel()
		}
	}
}
