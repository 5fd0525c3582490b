package pool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

// ghostFor is how long a server may still ask something for a call that was
// cancelled. So long its lane is not for others.
const ghostFor = time.Second

// lastWords is how long a server may take to read what it is told last.
const lastWords = 250 * time.Millisecond

type laneState int // only moves forward

const (
	laneOpening laneState = iota // initialize is not answered
	laneReady
	laneEnded
)

// A lane is one pooled legacy session, whose client is the bridge.
type lane struct {
	// Static after construction.
	t      *tenant
	g      *group
	number int
	info   json.RawMessage // of the client, for initialize; nil for ours
	log    *slog.Logger
	out    *sendQueue
	ctx    context.Context // done: the lane has ended
	cancel context.CancelFunc

	// Owned by run.
	relates bool // what the server sends is surely related to what it says

	// Guarded by tenant.mu.
	state     laneState
	waiting   []*bridged                       // until the server has answered what comes first
	calls     map[int64]*bridged               // by our id: forwarded, parked, or given up a moment ago
	working   int                              // of calls and waiting, those that [works] is true of
	own       map[int64]func(*jsonrpc.Message) // what takes the answers to our own requests; called with the lock held
	questions map[jsonrpc.ID]*inquiry          // of the server, not answered
	last      int64                            // id
	level     int                              // what the server was told to log; zero for nothing
	leveling  bool                             // and it has not answered
	noLevels  bool                             // it refused
	warned    bool                             // of a question that cannot be attributed
	subs      subscriptions[*modernListen]
	listens   map[*modernListen]struct{} // that hear from this lane
	began     time.Time                  // the session, with initialize answered
	used      time.Time                  // the last time
	idle      *timer                     // that reaps

	welcome translate.Welcome // written once, before the lane is ready
}

func newLane(g *group, number int, info json.RawMessage) *lane {
	l := &lane{t: g.t, g: g, number: number, info: bytes.Clone(info), out: newSendQueue(nil), used: time.Now(),
		log:   g.t.b.logger().With("upstream", g.t.id.upstream, "lane", number),
		calls: make(map[int64]*bridged), own: make(map[int64]func(*jsonrpc.Message)),
		questions: make(map[jsonrpc.ID]*inquiry), listens: make(map[*modernListen]struct{})}
	l.subs.ask = func(method string, params json.RawMessage, _ subscribing[*modernListen], answered func(*jsonrpc.Message)) {
		l.askLocked(method, params, answered)
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.idle = g.t.after(g.t.b.idle(), l.reapLocked)
	return l
}

// run is the session from its beginning to its end. It owns the Conn and its Recv.
func (l *lane) run() {
	defer l.t.b.pool.wg.Done()
	c := l.t.b.Open(l.t.b.pool.ctx, l.t.id.upstream, l.t.id.key+"-"+strconv.Itoa(l.number), mcp.Legacy)
	l.relates = l.t.b.relates(l.t.id.upstream)
	l.out.c = c
	var wg sync.WaitGroup
	sent := make(chan struct{})
	wg.Go(func() { defer close(sent); l.out.run() })
	wg.Go(func() { l.closeWhenEnded(c, sent) })
	l.begin()
	l.end(l.read(c))
	wg.Wait()
}

// closeWhenEnded unblocks Recv and Send, when what was said last is sent or a server
// that does not read has had time for it. To the host it means that the server is to
// end as it wishes.
func (l *lane) closeWhenEnded(c jsonrpc.Conn, sent <-chan struct{}) {
	<-l.ctx.Done()
	late := time.NewTimer(lastWords)
	defer late.Stop()
	select {
	case <-sent:
	case <-late.C:
	}
	c.Close()
}

// read handles what comes from the server until there is no more.
func (l *lane) read(c jsonrpc.Conn) error {
	var batch []*jsonrpc.Message
	for {
		var err error
		batch, err = jsonrpc.RecvAll(c, batch[:0])
		for _, m := range batch {
			l.receive(m)
		}
		clear(batch)
		if _, unusable := errors.AsType[*jsonrpc.InvalidError](err); err != nil && !unusable {
			return err
		}
	}
}

func (l *lane) receive(m *jsonrpc.Message) {
	for _, e := range m.Batch {
		if e.Related.IsZero() {
			e.Related = m.Related
		}
		l.receive(e)
	}
	switch {
	case m.IsResponse():
		l.answered(m)
	case m.IsRequest():
		l.asked(m)
	case m.IsNotification():
		l.heard(m)
	}
}

// ourInfo is what a server is told of a client that says nothing of itself.
var ourInfo = json.RawMessage(`{"name":"mcp-proxy","version":"1"}`)

// begin says initialize.
func (l *lane) begin() {
	info := l.info
	if info == nil {
		info = ourInfo
	}
	params := jsonrpc.Set(nil,
		jsonrpc.Value{Key: "protocolVersion", Text: jsonrpc.Quote(mcp.LegacyVersions[0])},
		jsonrpc.Value{Key: "capabilities", Text: l.g.text},
		jsonrpc.Value{Key: "clientInfo", Text: info})
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if l.state == laneOpening {
		l.askLocked(mcp.MethodInitialize, params, l.welcomeLocked)
	}
}

// askLocked sends a request of our own.
func (l *lane) askLocked(method string, params json.RawMessage, answered func(*jsonrpc.Message)) {
	l.last++
	l.own[l.last] = answered
	l.out.put(jsonrpc.NewRequest(jsonrpc.IntID(l.last), method, params))
}

// welcomeLocked handles the answer to initialize. Everything else was waiting for
// it.
func (l *lane) welcomeLocked(m *jsonrpc.Message) {
	w, ok := translate.ReadWelcome(m.Result)
	if !ok {
		if len(m.Result) > 0 && m.Result[0] == '{' { // else the host ends the stream, and says which event that is
			l.endLocked(&jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused, Lasting: true})
		}
		return
	}
	l.welcome, l.state, l.began = w, laneReady, time.Now()
	l.out.put(jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	l.forwardAllLocked()
	for li := range l.listens {
		li.beginLocked()
	}
}

// forwardAllLocked sends what was waiting.
func (l *lane) forwardAllLocked() {
	calls := l.waiting
	l.waiting = nil
	for _, c := range calls {
		l.forwardLocked(c)
	}
}

// takeLocked gives a call to the lane.
func (l *lane) takeLocked(c *bridged) {
	c.lane = l
	if mcp.MethodOf(c.method).Works {
		l.working++
	}
	if l.state == laneReady {
		l.forwardLocked(c)
		return
	}
	c.state = waiting
	l.waiting = append(l.waiting, c)
}

// forwardLocked sends a call to the server, which has said its welcome.
func (l *lane) forwardLocked(c *bridged) {
	switch {
	case c.method == mcp.MethodDiscover:
		c.leaveLaneLocked()
		c.settleLocked(&jsonrpc.Message{Result: l.welcome.Discover})
		return
	case l.out.holds(maxQueued, maxQueuedBytes):
		c.leaveLaneLocked()
		c.settleLocked(jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.Overloaded(l.t.id.upstream)))
		return
	case l.levelLocked(c):
		c.state = waiting
		l.waiting = append(l.waiting, c)
		return
	}
	l.last++
	c.n, c.state, c.serverInfo = l.last, forwarded, l.welcome.Info
	l.calls[c.n] = c
	l.out.put(&jsonrpc.Message{ID: jsonrpc.IntID(c.n), Method: c.method, Params: c.LegacyParams(c.params, c.n), Extra: c.extra})
	c.extra = nil
	if c.digest != nil {
		c.params = nil
		c.LetGo()
	}
}

// answered handles an answer of the server.
func (l *lane) answered(m *jsonrpc.Message) {
	n, ok := m.ID.Answered()
	if !ok {
		return
	}
	l.t.mu.Lock()
	if take := l.own[n]; take != nil {
		defer l.t.mu.Unlock()
		delete(l.own, n)
		take(m)
		return
	}
	c := l.calls[n]
	if c == nil { // late, or nothing that was asked
		l.t.mu.Unlock()
		return
	}
	c.leaveLaneLocked()
	was := c.state
	if was == parked {
		c.keepLocked(m)
	}
	l.t.mu.Unlock()
	if was == forwarded {
		c.finish(m)
	}
}

// leaveLaneLocked takes a call out of its lane, which may then be somebody else's.
// What the server asked for it and nobody has answered is refused.
func (c *bridged) leaveLaneLocked() {
	l := c.lane
	if l == nil {
		return
	}
	c.refuseLocked(errNotNeeded)
	c.lane = nil
	delete(l.calls, c.n)
	l.used = time.Now()
	if mcp.MethodOf(c.method).Works {
		l.working--
		l.g.nextLocked()
	}
}

// busyLocked reports whether the lane is of use to anybody.
func (l *lane) busyLocked() bool {
	return l.state == laneOpening || len(l.calls)+len(l.waiting)+len(l.listens) > 0
}

// end ends the lane because its stream has.
func (l *lane) end(err error) {
	end := jsonrpc.EndOf(err, jsonrpc.CauseLinkLost)
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.endLocked(end)
}

// endLocked is the one place through which every end passes; the first one counts.
// It is nil if the bridge ends a lane that nobody uses. Who waits for an answer
// hears of it; who is parked, when the call comes back.
func (l *lane) endLocked(end *jsonrpc.ClosedError) {
	if l.state == laneEnded {
		return
	}
	l.state = laneEnded
	l.idle.stop()
	l.out.end()
	l.cancel()
	l.t.lanes[l.number] = nil
	l.g.removeLocked(l)
	if end != nil {
		end.Event = cmp.Or(end.Event, jsonrpc.NewEvent())
		l.log.Debug("session of modern clients ended", "cause", end.Cause, "event", end.Event, "in_flight", len(l.calls), "err", end.Err)
		l.failLocked(end)
	}
	l.g.nextLocked()
	l.g.forgetLocked()
	l.t.release()
}

// sendAwayLocked ends all streams of the key, without an answer to anything, because
// the upstream turned out to speak modern: whoever comes again is not translated, and
// nobody is placed in a session any more. Calls of other sessions may have run.
func (l *lane) sendAwayLocked(end *jsonrpc.ClosedError) {
	for _, c := range l.waiting {
		c.lane = nil
	}
	for _, c := range l.calls {
		c.lane = nil
	}
	l.waiting = nil
	for _, g := range l.t.groups {
		g.waiting = nil
	}
	for s := range l.t.streams {
		mine := *end
		for _, c := range s.calls {
			mine.Delivered = mine.Delivered || c.state == forwarded
		}
		s.leaveLocked()
		s.cancel(&mine)
	}
}

func (l *lane) failLocked(end *jsonrpc.ClosedError) {
	if end.Cause == jsonrpc.CauseOtherEra {
		l.sendAwayLocked(end)
	}
	closed := func(phase jsonrpc.Phase) *jsonrpc.Message {
		return jsonrpc.NewError(jsonrpc.ID{}, end.Wire(jsonrpc.CodeInternalError, l.t.id.upstream, phase))
	}
	phase := jsonrpc.NotSent
	if end.Delivered {
		phase = jsonrpc.InFlight
	}
	clear(l.questions)
	for _, c := range l.waiting {
		c.lane = nil
		c.settleLocked(closed(jsonrpc.NotSent))
	}
	for _, c := range l.calls {
		c.lane, c.questions = nil, nil
		switch c.state {
		case parked:
			c.keepLocked(closed(jsonrpc.InFlight))
		case forwarded:
			c.settleLocked(closed(phase))
		}
	}
	l.waiting = nil
	clear(l.calls)
	for li := range l.listens {
		li.lostLocked(closed(jsonrpc.NotSent))
	}
}
