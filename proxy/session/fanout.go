package session

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// fanOut runs ask for each upstream that want accepts, all at once, and waits
// for them; each has the list timeout. The int is its index in the upstream set.
func (set *upstreamSet) fanOut(ctx context.Context, want func(*upstreamConn) bool, ask func(context.Context, int, *upstreamConn)) {
	var wg sync.WaitGroup
	for i, u := range set.conns {
		if want(u) {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, set.s.p.listTimeout())
				defer cancel()
				ask(ctx, i, u)
			})
		}
	}
	wg.Wait()
}

func all(*upstreamConn) bool { return true }

// gather asks each upstream that want accepts for its part of a list, all at once, and
// returns what they said or why they did not, by their index in the upstream set. They have
// the list timeout together. Those that were late once are asked only if no other can
// answer, and then one answer is enough.
func gather[T any](ctx context.Context, set *upstreamSet, method string, want func(*upstreamConn) bool,
	ask func(context.Context, *upstreamConn) (T, *failure)) (said []T, failed []*failure) {
	ctx, cancel := context.WithTimeout(ctx, set.s.p.listTimeout())
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

// A failure is why one upstream has no part in an answer made of many: its own
// error, or one of the proxy's about it.
type failure struct {
	wire        json.RawMessage
	cause       string // for the log
	unsupported bool   // the upstream has no such list, whatever it declared
	late        bool   // it was not waited for any longer
	skipped     bool   // or not at all
}

func ownFailure(err *jsonrpc.Error) *failure {
	cause := err.Message
	if data, ok := err.Data.(jsonrpc.ErrorData); ok && data.Cause != "" {
		cause = data.Cause
	}
	return &failure{wire: err.Raw(), cause: cause}
}

// pages asks one upstream for a list of any kind, following its cursors. It starts
// the upstream if need be. The meta is that of the client's request, nil for none.
func (u *upstreamConn) pages(ctx context.Context, method, list string, meta json.RawMessage) (found catalog.Collection, _ *failure) {
	var cursor json.RawMessage
	size := 0
	for range maxPages {
		answer, err := u.ask(ctx, method, catalog.ListParams(meta, cursor))
		if err != nil {
			return found, ownFailure(jsonrpc.TimedOut(u.up.Name))
		}
		if answer.Error != nil {
			code, _ := jsonrpc.Member(answer.Error, "code")
			return found, &failure{wire: answer.Error, cause: "error response", unsupported: string(code) == noMethod}
		}
		size += len(answer.Result)
		var next json.RawMessage
		if size <= u.s.p.queueBytes() {
			next, err = found.Add(u.era, list, answer.Result)
		}
		if err != nil || size > u.s.p.queueBytes() {
			return found, ownFailure(jsonrpc.InvalidResponse(u.up.Name, "unusable list"))
		}
		if next == nil {
			u.s.p.memory.noteInTime(u.up.Name, method)
			return found, nil
		}
		if cursor != nil && string(next) == string(cursor) {
			break
		}
		cursor = next
	}
	u.s.p.memory.noteInTime(u.up.Name, method)
	found.Caching.Partial() // it goes on
	return found, nil
}

// noMethod is [jsonrpc.CodeMethodNotFound] as it stands in an error.
const noMethod = "-32601"

// maxPages bounds how far an upstream's cursors are followed.
const maxPages = 1000

// leftOut logs that an upstream has no part in the answer to method.
func (u *upstreamConn) leftOut(method string, f *failure) {
	u.log.Log(u.s.ctx, firstIs(&u.missed), "upstream left out of a merged list", "method", method, "cause", f.cause)
}
