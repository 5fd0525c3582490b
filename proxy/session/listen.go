package session

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A listen is one subscriptions/listen of the client, split over the upstreams.
// Its goroutine, run, is the one that works on the call; each share has one, too.
type listen struct {
	// Static after construction.
	s     *session
	c     *call
	want  filter
	meta  json.RawMessage // _meta of the client's request, for those of the shares
	over  chan struct{}   // closed once, to end it as agreed with the client
	poked chan struct{}   // to run: look at what is guarded by session.mu; never closed

	// Owned by run.
	lineup *lineup // that it is split over

	// Guarded by session.mu.
	shares    map[*leg]*share
	ending    bool               // over is closed
	told      filter             // that; what it does not name is never delivered
	early     []*jsonrpc.Message // what came before that
	bytes     int                // in early
	lists     [kinds]bool        // list_changed held back
	updated   map[string]bool    // URIs of which an update may have been missed, held back
	holdUntil time.Time          // no news before: when upstreams that are back were asked to listen
}

const (
	// maxEarly bounds what is kept until a listen is acknowledged, beside its
	// bytes, of which there is as much room as in a queue; more is lost.
	maxEarly = 1024

	// ackWithin is how long the acknowledgment waits for those of the upstreams.
	// Before that, ownersWithin is how long is looked for who has which resource.
	ackWithin    = 500 * time.Millisecond
	ownersWithin = 200 * time.Millisecond
)

const methodListen = "subscriptions/listen"

// listen begins a subscriptions/listen.
func (s *session) listen(c *call) {
	want, err := readFilter(c.msg.Params)
	if err == nil {
		_, err = findToken(c.msg.Params)
	}
	switch {
	case err != nil:
		s.fail(c, invalidParams(err.Error()))
		return
	case want.tasks != nil && !c.tasks:
		s.fail(c, errNoTasks)
		return
	}
	meta, _ := jsonrpc.Member(c.msg.Params, "_meta") // read before
	ln := &listen{s: s, c: c, want: want, meta: bytes.Clone(meta),
		over: make(chan struct{}), poked: make(chan struct{}, 1), shares: make(map[*leg]*share)}
	c.msg = nil
	s.mu.Lock()
	room := len(s.listens) < max(s.inFlight/4, 1)
	if room {
		if s.listens == nil {
			s.listens = make(map[*listen]struct{})
		}
		s.listens[ln] = struct{}{}
		if s.phase >= draining { // since the call began
			ln.endLocked()
		}
	}
	s.mu.Unlock()
	if !room {
		s.fail(c, jsonrpc.Overloaded(""))
		return
	}
	s.work(c, ln.run)
}

// run serves the listen until it is cancelled, the session ends, or it is over.
func (ln *listen) run(ctx context.Context) {
	defer ln.forget()
	deadline := time.After(ackWithin)
	var flush <-chan time.Time // nil while nothing is held back
	ln.follow(ctx)
	for {
		if deadline != nil && ln.allAnswered() {
			deadline = nil
			ln.acknowledge()
		}
		if flush == nil && deadline == nil && ln.holdsNews() {
			flush = time.After(debounce)
		}
		select {
		case <-ctx.Done():
			return
		case <-ln.over:
			ln.finish(deadline != nil)
			return
		case <-deadline:
			deadline = nil
			ln.acknowledge()
		case <-flush:
			if flush = ln.hold(); flush == nil {
				ln.tellNews()
			}
		case <-ln.poked:
			ln.follow(ctx)
		}
	}
}

func (ln *listen) forget() {
	ln.s.mu.Lock()
	defer ln.s.mu.Unlock()
	delete(ln.s.listens, ln)
}

// poke makes run look. It does not wait.
func (ln *listen) poke() {
	select {
	case ln.poked <- struct{}{}:
	default:
	}
}

// endLocked ends the listen as agreed with the client: with a result.
func (ln *listen) endLocked() {
	if !ln.ending {
		ln.ending = true
		close(ln.over)
	}
}

// endListensLocked ends all listens, which would hold up the end of the session.
func (s *session) endListensLocked() {
	for ln := range s.listens {
		ln.endLocked()
	}
}

// finish answers the listen. The acknowledgment comes first, always.
func (ln *listen) finish(unacknowledged bool) {
	if unacknowledged {
		ln.acknowledge()
	}
	ln.s.settle(ln.c, ln.c.over(ln.lineup))
}

// over is the result of a listen that is over, on what it was split over last.
func (c *call) over(v *lineup) *jsonrpc.Message {
	says := []jsonrpc.Value{c.subscription()}
	if v.only() == nil {
		says = append(says, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: v.s.p.serverInfo()})
	}
	return jsonrpc.NewResult(c.id, mcp.SetMeta(json.RawMessage(`{"resultType":"complete"}`), says...))
}

// subscription is what every message of a listen carries.
func (c *call) subscription() jsonrpc.Value {
	return jsonrpc.Value{Key: mcp.KeySubscription, Text: c.id.Raw()}
}

// follow splits the listen anew if there are other upstreams than it is split
// over. Shares that stay the same notice nothing. If none is left, for good as far
// as anybody knows, the listen is over.
func (ln *listen) follow(ctx context.Context) {
	v := ln.s.upstreams(mcp.Modern)
	first := ln.lineup == nil
	if v == ln.lineup {
		return
	}
	wants := ln.split(ctx, v)
	ln.lineup = v
	ln.s.mu.Lock()
	defer ln.s.mu.Unlock()
	maps.DeleteFunc(ln.shares, func(l *leg, sh *share) bool {
		want, ok := wants[l]
		if ok && want.equal(&sh.want) {
			return false
		}
		sh.stop()
		return true
	})
	for l, want := range wants {
		if ln.shares[l] == nil {
			ln.shares[l] = ln.shareLocked(ctx, l, want, !first)
		}
	}
	if first {
		return
	}
	ln.changeLocked(ln.want.lists)
	if len(v.legs) == 0 && v.complete {
		ln.endLocked()
	}
}

// shareLocked begins the share of an upstream.
func (ln *listen) shareLocked(ctx context.Context, l *leg, want filter, missed bool) *share {
	ctx, cancel := context.WithCancel(ctx)
	sh := &share{ln: ln, leg: l, want: want, stop: cancel, wake: make(chan time.Duration, 1), missed: missed}
	ln.s.wg.Go(func() {
		defer cancel()
		sh.run(ctx)
	})
	return sh
}

// allAnswered reports whether no upstream has still to say what it honours.
func (ln *listen) allAnswered() bool {
	ln.s.mu.Lock()
	defer ln.s.mu.Unlock()
	for _, sh := range ln.shares {
		if !sh.answered {
			return false
		}
	}
	return true
}

// acknowledge tells the client what it will hear of, and then of that what came
// before.
func (ln *listen) acknowledge() {
	told, base := ln.honoured()
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "notifications", Text: told.on(base)})
	ln.send("notifications/subscriptions/acknowledged", params)
	ln.s.mu.Lock()
	early := ln.early
	ln.c.acked, ln.told, ln.early = true, told, nil
	ln.s.mu.Unlock()
	for _, m := range early {
		ln.passTold(m)
	}
}

// honoured returns what is acknowledged. Of resources and tasks that is what upstreams
// have accepted so far: what one accepts later is not told of. Changes of lists are as
// the client asked, since those of upstreams that come and go are told here; but an
// only one that has said what it honours has the word, also on how that is written.
func (ln *listen) honoured() (f filter, base json.RawMessage) {
	v := ln.lineup
	ln.s.mu.Lock()
	defer ln.s.mu.Unlock()
	uris, tasks := make(map[string]bool), make(map[string]bool)
	f.lists = ln.want.lists
	for l, sh := range ln.shares {
		for _, uri := range sh.honoured.uris {
			uris[uri] = true
		}
		for _, id := range sh.honoured.tasks {
			tasks[id], tasks[l.taskNameLocked(id)] = true, true
		}
		if v.only() == l && sh.honoured.as != nil {
			base = sh.honoured.as
			for k, honoured := range sh.honoured.lists {
				f.lists[k] = f.lists[k] && honoured
			}
		}
	}
	f.uris, f.tasks = among(ln.want.uris, uris), among(ln.want.tasks, tasks)
	return f, base
}

// among returns those of texts that are in a set.
func among(texts []string, set map[string]bool) (found []string) {
	for _, t := range texts {
		if set[t] {
			found = append(found, t)
		}
	}
	return found
}

// changeLocked notes that the client is to be told of changes of lists, those that
// it wants. Run has to be poked after that.
func (ln *listen) changeLocked(lists [kinds]bool) {
	for k, yes := range lists {
		ln.lists[k] = ln.lists[k] || yes && ln.want.lists[k]
	}
}

// missedLocked notes that an update of a resource may have been missed.
func (ln *listen) missedLocked(uri string) {
	if ln.updated == nil {
		ln.updated = make(map[string]bool)
	}
	ln.updated[uri] = true
}

func (ln *listen) holdsNews() bool {
	ln.s.mu.Lock()
	defer ln.s.mu.Unlock()
	return ln.lists != [kinds]bool{} || ln.updated != nil
}

// hold returns a channel that says when news need no longer be held back, nil for
// now. What the client asks for because of them comes behind the listens of all
// upstreams that are back, so that it misses nothing.
func (ln *listen) hold() <-chan time.Time {
	ln.s.mu.Lock()
	defer ln.s.mu.Unlock()
	if wait := time.Until(ln.holdUntil); wait > 0 {
		return time.After(wait + debounce)
	}
	return nil
}

// tellNews sends what was held back.
func (ln *listen) tellNews() {
	ln.s.mu.Lock()
	lists, updated, told := ln.lists, ln.updated, ln.told
	ln.lists, ln.updated = [kinds]bool{}, nil
	ln.s.mu.Unlock()
	for k, yes := range lists {
		if yes && told.lists[k] {
			ln.send(kindInfo[k].changed, nil)
		}
	}
	for _, uri := range among(told.uris, updated) {
		ln.send("notifications/resources/updated", jsonrpc.Set(nil, jsonrpc.Value{Key: "uri", Text: jsonrpc.Quote(uri)}))
	}
}

// send sends a notification of the listen.
func (ln *listen) send(method string, params json.RawMessage) {
	ln.s.out.wait(ln.own(jsonrpc.NewNotification(method, params)))
}

// own returns a notification as one of this listen.
func (ln *listen) own(m *jsonrpc.Message) *jsonrpc.Message {
	out := *m
	out.Params = mcp.SetMeta(m.Params, ln.c.subscription())
	out.Related = ln.c.id
	return &out
}

// pass hands on what an upstream tells, if it was asked for.
func (ln *listen) pass(m *jsonrpc.Message, asked bool) {
	if !asked {
		ln.s.drop("nobody has asked for it", m)
		return
	}
	m = ln.own(m)
	ln.s.mu.Lock()
	early := !ln.c.acked
	room := len(ln.early) < maxEarly && ln.bytes+m.Size() <= ln.s.p.queueBytes()
	if early && room {
		ln.early = append(ln.early, m)
		ln.bytes += m.Size()
	}
	ln.s.mu.Unlock()
	switch {
	case !early:
		ln.passTold(m)
	case !room:
		ln.s.drop("the listen is not acknowledged", m)
	}
}

// passTold hands on what the acknowledgment named.
func (ln *listen) passTold(m *jsonrpc.Message) {
	ln.s.mu.Lock()
	told := ln.told
	ln.s.mu.Unlock()
	if !told.covers(m, &ln.want) {
		ln.s.drop("it was not acknowledged", m)
		return
	}
	ln.s.out.wait(m)
}
