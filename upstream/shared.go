package upstream

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// sharedKey is the key of the claim on a server that many streams share, where its
// failures are counted.
const sharedKey = "shared"

// A sharedTable is the shared upstreams of a Host. Guarded by Host.mu.
type sharedTable struct {
	open    map[claimID]*shared // one that has ended is replaced at the next need
	stopped bool                // by Stop: no more are opened
	forced  context.Context     // of all; nil before the first
	force   context.CancelFunc  // by Stop
	probes  context.CancelFunc  // of remote servers, under forced; by Stop
	probing context.Context
}

// A shared stands between one session with a server and the streams of many
// clients, the sharers.
//
//	stream ─► sharer.read ──► tables ──► queue ──► writeServer ─► near ══ far ─► attachAlone
//	stream ◄─ sharer.write ◄─ out ◄──── tables ◄── readServer ◄── near ══ far ◄─ attachAlone
//
// The server's end of it, far, is a stream like any other: a process, an HTTP
// session or a WebSocket, with its claim, its farewell and its line in the log.
// What is the server's alone lives as long as that stream; with it all sharers
// end, and whoever comes next gets a new shared.
//
// Goroutines: run, which is readServer and waits for writeServer and cancelLate; of
// each sharer read, which is the caller of share, write, and for a moment close. The
// Host waits for run and attachAlone, share for the rest.
//
// Invariants:
//   - Everything that comes from the server has one owner, or goes to all because
//     it is about the server itself (list changes, log messages without a call).
//     What has an owner that cannot be told goes to nobody.
//   - readServer waits for no client. It puts messages into a sharer's out; one
//     that is full ends that sharer.
//   - Ids and progress tokens towards the server are minted, never reused, and
//     looked up only there; those towards a client are looked up only among that
//     client's own.
//   - Whoever takes a call out of its sharer's table answers it.
type shared struct {
	// Static after construction.
	name     string
	roots    []string // answer roots/list outside of any call; nil refuses it
	outBytes int      // that a client may have not read yet: two of the largest messages
	near     *jsonrpc.PipeConn
	forced   context.Context // done: nothing waits any more
	modern   *modernServer   // what the modern era has besides; nil in the legacy one
	bridge   Bridge          // of the host; nil for none
	over     chan struct{}   // closed by end
	wg       sync.WaitGroup  // writeServer, cancelLate, and for moments Unattributed

	mu      sync.Mutex // guards the fields below, and those of the sharers that say so
	sharers map[*sharer]struct{}
	minted  int64
	calls   map[int64]*sharedCall // with the server, by minted id
	asked   map[jsonrpc.ID]*sharedQuestion
	subs    map[string]*sharedSub // by URI
	level   sharedLevel
	tasks   sharedTasks
	urls    map[string]*sharer // who got an elicitation, by its elicitationId

	welcome  []byte    // the result of the first call, initialize; nil before
	leftTill time.Time // a client has left, and until then its calls may still speak
	fading   int       // calls of clients that have left, which go on: see fadeLocked
	lastSent int64     // of the calls with the server

	wake    sync.Cond  // queue, closing or ended changed
	queue   []outgoing // to writeServer
	held    []outgoing // until initialize is answered
	replies int        // of those in queue, answers to what the server asks of nobody
	closing bool       // writeServer ends the session behind the queue
	cause   string     // of an end that this side chose
	ended   bool
}

func newShared(t target, limits jsonrpc.Limits, near *jsonrpc.PipeConn) *shared {
	sh := &shared{
		name: t.name, roots: t.up.Roots, outBytes: 2 * limits.MaxMessage(), near: near, over: make(chan struct{}),
		sharers: make(map[*sharer]struct{}),
		calls:   make(map[int64]*sharedCall),
		asked:   make(map[jsonrpc.ID]*sharedQuestion),
		subs:    make(map[string]*sharedSub),
		urls:    make(map[string]*sharer),
	}
	sh.wake.L = &sh.mu
	return sh
}

// share is attachIn for a stream that shares its server: the contract is the same,
// but the server stays when the stream is closed.
func (h *Host) share(ctx context.Context, t target, id claimID, c jsonrpc.Conn) error {
	if ctx.Err() != nil {
		return refuse(c, context.Cause(ctx))
	}
	s := newSharer(c, h.logger().With("upstream", t.name, "session", short(id.key)))
	s.alone = !mcp.IsPrincipalKey(id.key)
	if !h.joinShared(t, id.era, s) {
		return refuse(c, errStops)
	}
	return s.serve(ctx)
}

var errStops = errors.New("the host stops")

// joinShared makes s a sharer of an upstream's server, and starts that if need be:
// once, so that a start which fails at once is s's to hear of. It reports false
// after Stop.
func (h *Host) joinShared(t target, era mcp.Era, s *sharer) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shared.stopped {
		return false
	}
	id := claimID{t.name, sharedKey, era}
	if sh := h.shared.open[id]; sh != nil && sh.join(s) {
		return true
	}
	sh, start := h.newSharedLocked(t, id, false)
	sh.join(s)
	start()
	return true
}

// newSharedLocked makes the shared of an upstream, to be started when it has its
// first sharer. One on trial is there to find out whether its server speaks the era.
func (h *Host) newSharedLocked(t target, id claimID, trial bool) (sh *shared, start func()) {
	if h.shared.open == nil {
		h.shared.open = make(map[claimID]*shared)
	}
	near, far := jsonrpc.Pipe()
	sh = newShared(t, h.Limits, near)
	sh.forced, sh.bridge = h.forcedLocked(), h.Bridge
	a := attachment{target: t, id: id}
	if id.era == mcp.Modern {
		sh.modern = newModernServer(t, trial, h.logger().With("upstream", t.name))
		a.trial = sh.modern.trial.Load
		sh.discover()
	} else {
		sh.initializeLocked(sh.initialized) // nobody else knows it yet
	}
	h.shared.open[id] = sh
	return sh, func() {
		h.wg.Go(func() { _ = h.attachAlone(sh.forced, a, far) }) // near.Recv says it, too
		h.wg.Go(sh.run)
	}
}

// forcedLocked returns the context of what outlives the streams.
func (h *Host) forcedLocked() context.Context {
	if h.shared.forced == nil {
		h.shared.forced, h.shared.force = context.WithCancel(context.Background())
		h.shared.probing, h.shared.probes = context.WithCancel(h.shared.forced)
	}
	return h.shared.forced
}

// Stop ends the shared upstreams, which outlive their streams, as they wish and by
// force when ctx is done. It returns when every process and goroutine of the host
// is gone, and so must wait for the other streams to be ended by their owners. None
// is attached any more.
func (h *Host) Stop(ctx context.Context) {
	h.mu.Lock()
	h.shared.stopped = true
	open, force, probes := h.shared.open, h.shared.force, h.shared.probes // from here on as they are
	h.mu.Unlock()
	if probes != nil {
		probes()
	}
	for _, sh := range open {
		sh.stop(causeHostStopped)
	}
	if force != nil { // it reaches servers that have ended and are not gone yet, too
		unhook := context.AfterFunc(ctx, force)
		defer unhook()
	}
	h.tellLosses()
	h.wg.Wait()
}

// run lives as long as the session with the server.
func (sh *shared) run() {
	sh.wg.Go(sh.writeServer)
	err := sh.readServer()
	sh.near.Close()
	sh.end(err)
	sh.wg.Wait()
}

// readServer owns Recv of near. It returns the end of the session.
func (sh *shared) readServer() error {
	for {
		m, err := sh.near.Recv()
		if err != nil {
			return err
		}
		if m.Batch == nil {
			sh.receive(m, m.Related)
		}
		for _, e := range m.Batch { // clients speak versions without arrays
			sh.receive(e, m.Related)
		}
	}
}

// receive handles one message from the server. related is the id of the call that
// it belongs to, if that was told; here it is never a guess.
func (sh *shared) receive(m *jsonrpc.Message, related jsonrpc.ID) {
	switch {
	case m.IsResponse():
		sh.answered(m)
	case sh.modern != nil:
		sh.hear(m)
	case m.IsRequest():
		sh.question(m, related)
	default:
		sh.notified(m, related)
	}
}

// stop ends the session behind what is queued for the server. The server is then
// stopped like that of any stream that was closed; the sharers end when near says
// so, and by then the claim knows.
func (sh *shared) stop(cause string) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.closing {
		sh.closing, sh.cause = true, cause
	}
	sh.wake.Broadcast()
}

// end ends all sharers because the session has ended.
func (sh *shared) end(err error) {
	if sh.modern != nil {
		sh.modernEnded(err)
	}
	end := jsonrpc.EndOf(err, causeLost)
	end.Event = cmp.Or(end.Event, jsonrpc.NewEvent())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.cause != "" && sh.cause != end.Cause {
		end.Cause, end.Says, end.Lasting = sh.cause, "", sh.cause == causeRefused
	}
	sh.ended = true
	close(sh.over)
	for s := range sh.sharers {
		mine := *end
		mine.Delivered = mine.Delivered && s.sent
		sh.dropLocked(s, &mine, true)
	}
	sh.calls, sh.asked, sh.subs, sh.urls, sh.tasks = nil, nil, nil, nil, sharedTasks{}
	sh.queue, sh.held = nil, nil
	sh.stopIdleLocked()
	sh.wake.Broadcast()
}

// initializeLocked makes the first call of a legacy session. What is
// declared is all that any client could do; [sharer.refuses] knows what each can.
// Tasks are not declared: a server could then not be told apart from the client
// that asks about another's.
func (sh *shared) initializeLocked(then func(answer *jsonrpc.Message)) {
	const params = `{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},` +
		`"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}},` +
		`"clientInfo":{"name":"mcp-proxy","version":"1"}}`
	n := sh.mintLocked(&sharedCall{method: mcp.MethodInitialize, then: then})
	sh.queue = append(sh.queue, outgoing{
		m: jsonrpc.NewRequest(jsonrpc.IntID(n), mcp.MethodInitialize, []byte(params)), call: sh.calls[n]})
}

// initialized handles the server's answer to initialize. After a refusal nothing
// can be asked of it: the session ends, and counts as a failed start.
func (sh *shared) initialized(answer *jsonrpc.Message) {
	if len(answer.Result) == 0 || answer.Result[0] != '{' {
		sh.stop(causeRefused)
		return
	}
	capabilities, _ := jsonrpc.Member(answer.Result, "capabilities")
	logging, _ := jsonrpc.Member(capabilities, "logging")
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.welcome = answer.Result
	sh.level.offered = logging != nil
	sh.tellLocked(jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	sh.queue = append(sh.queue, sh.held...)
	sh.held = nil
	for s := range sh.sharers {
		sh.greetLocked(s)
	}
	sh.levelLocked()
}

// greetLocked answers a client's initialize if it has come and can be answered.
func (sh *shared) greetLocked(s *sharer) {
	if c := s.hello; c != nil && sh.welcome != nil && !s.ready {
		s.ready = true
		sh.settleLocked(c, jsonrpc.NewResult(c.id, sh.welcome))
	}
}

// isEnd reports whether err ends a Conn rather than one message.
func isEnd(err error) bool {
	_, ok := errors.AsType[*jsonrpc.InvalidError](err)
	return err != nil && !ok
}
