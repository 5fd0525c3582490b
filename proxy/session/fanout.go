package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// fanOut runs ask for each upstream, all at once, and waits for them; each has the list
// timeout.
func fanOut(ctx context.Context, conns []*upstreamConn, ask func(context.Context, *upstreamConn)) {
	var wg sync.WaitGroup
	for _, u := range conns {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, u.s.router.listTimeout())
			defer cancel()
			ask(ctx, u)
		})
	}
	wg.Wait()
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

func all(*upstreamConn) bool { return true }

// gather asks all upstreams that want accepts for their part of a list, at once. It returns
// what each has said, or why it has not, in the order of the set. Together they have the
// list timeout. Those that were late once are asked only if no other can answer; then one
// answer is enough.
func gather[T any](ctx context.Context, set *upstreamSet, method string, want func(*upstreamConn) bool,
	ask func(context.Context, *upstreamConn) (T, *failure)) (said []T, failed []*failure) {
	ctx, cancel := context.WithTimeout(ctx, set.s.router.listTimeout())
	defer cancel()
	said, failed = make([]T, len(set.conns)), make([]*failure, len(set.conns))
	var prompt, tardy []int
	for i, u := range set.conns {
		switch {
		case !want(u):
		case u.late(method):
			tardy = append(tardy, i)
			failed[i] = u.lateFailure()
			failed[i].skipped = true
		default:
			prompt = append(prompt, i)
		}
	}
	answered := func(i int) bool { return failed[i] == nil || failed[i].unsupported }
	askAll := func(who []int, enough func()) {
		var wg sync.WaitGroup
		for _, i := range who {
			wg.Go(func() {
				u := set.conns[i]
				said[i], failed[i] = ask(ctx, u)
				switch {
				case answered(i):
					enough()
				case late(ctx):
					u.noteLate(method)
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

// pages asks one upstream for a list, and follows its cursors. It starts the upstream if
// need be. The meta is that of the client's request, nil for none.
func (u *upstreamConn) pages(ctx context.Context, method, list string, meta json.RawMessage) (catalog.Collection, *failure) {
	found, err := lists.Collect(ctx, u.askResult, method, list, u.era, meta, u.s.router.queueBytes())
	answer, refused := errors.AsType[*lists.AnswerError](err)
	switch {
	case refused:
		return found, &failure{wire: answer.Wire, cause: "error response", unsupported: answer.Unsupported()}
	case err == lists.ErrUnusable:
		return found, ownFailure(jsonrpc.InvalidResponse(u.up.Name, "unusable list"))
	case err == lists.ErrTooLong:
		u.warnTooLong(method, "nextCursor")
	case err != nil:
		return found, ownFailure(jsonrpc.TimedOut(u.up.Name))
	}
	u.s.router.memory.noteInTime(u.up.Name, method)
	return found, nil
}

// askResult is ask for a result. The error of an error response is a [*lists.AnswerError].
func (u *upstreamConn) askResult(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	answer, err := u.ask(ctx, method, params)
	if err == nil && answer.Error != nil {
		err = &lists.AnswerError{Wire: answer.Error}
	}
	if err != nil {
		return nil, err
	}
	return answer.Result, nil
}

// warnTooLong logs once that an answer of the upstream has something longer than anybody keeps.
func (u *upstreamConn) warnTooLong(method, key string) {
	if u.s.router.memory.warnOnce(u.up.Name + " " + method + " " + key) {
		u.log.Warn("upstream sent an overlong value", "method", method, "err", fmt.Errorf("%q %w", key, mcp.ErrTooLong))
	}
}

// noMethod is [jsonrpc.CodeMethodNotFound] as it is written in an error.
const noMethod = "-32601"

// leftOut logs that an upstream has no part in the answer to method.
func (u *upstreamConn) leftOut(method string, f *failure) {
	u.log.Log(u.s.ctx, firstIs(&u.missingLogged), "upstream left out of a merged list", "method", method, "cause", f.cause)
}

// listFor lists a kind for all who wait for run.
func (u *upstreamConn) listFor(ctx context.Context, k catalog.Kind, who asker, run *listRun) bool {
	li, _ := u.list(ctx, k, who)
	run.ok, run.gone = li != nil, li == nil && ctx.Err() != nil
	u.lists.ran(k, run)
	return run.ok
}

// freshen lists a kind if what is known of it is stale. It reports whether it is fresh now:
// the upstream may be down, or too slow.
func (u *upstreamConn) freshen(ctx context.Context, k catalog.Kind, who asker) bool {
	for {
		run, first := u.lists.run(who.view, k)
		switch {
		case run == nil:
			return true
		case first:
			return u.listFor(ctx, k, who, run)
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

// list asks one upstream for one kind of list, and keeps the table. An upstream that does
// not offer the kind is not asked, and lists nothing. A sole upstream is always asked.
func (u *upstreamConn) list(ctx context.Context, k catalog.Kind, who asker) (*catalog.Listing, *failure) {
	if li, f := u.fromCatalog(ctx, k, who); li != nil || f != nil {
		return li, f
	}
	if err := u.start(ctx); err != nil {
		return nil, ownFailure(err)
	}
	version, only := u.lists.versionOf(k), u.s.upstreams.of(u.era).only() == u
	// In the modern era every list can be asked for: what has been discovered by
	// chance must not change the answer.
	li := &catalog.Listing{Offered: only || u.era == mcp.Modern || u.says().offers(k.Capability())}
	var all catalog.Collection
	var f *failure
	if li.Offered {
		all, f = u.pages(ctx, k.Method(), k.Member(), who.meta)
	}
	if f != nil && !f.unsupported {
		return nil, f
	}
	t := u.s.router.memory.keep(u.lists.key(who.view.caps, k), u.index(k, all.Elements))
	li.Entries, li.Rest, li.Caching, li.Digest = t.Entries, all.Rest, all.Caching, t.Digest
	u.lists.keep(who.view, k, t, version)
	return li, f
}

// index builds the table of what the client may see of the upstream's list.
func (u *upstreamConn) index(k catalog.Kind, elements []json.RawMessage) *catalog.Table {
	t, unusable := catalog.Index(k, elements, func(name string) bool { return u.shows(k, name) })
	for _, err := range unusable {
		if u.s.router.memory.warnOnce(fmt.Sprint(u.up.Name, k, err)) {
			u.log.Warn("list entry left out", "method", k.Method(), "err", err)
		}
	}
	return t
}

// shows reports whether the client may see what the upstream lists under a name.
func (u *upstreamConn) shows(k catalog.Kind, name string) bool {
	return k != catalog.Tools || u.up.allows(name)
}
