package pool

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

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
	name         string
	roots        []string // answer roots/list outside of any call; nil refuses it
	outBytes     int      // that a client may have not read yet: two of the largest messages
	near         *jsonrpc.PipeConn
	forced       context.Context       // done: nothing waits any more
	modern       *modernServer         // what the modern era has besides; nil in the legacy one
	unattributed func(upstream string) // of the pool; nil for none
	over         chan struct{}         // closed by end
	timers       timers
	wg           sync.WaitGroup // writeServer, cancelLate, and for moments Unattributed

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

func newShared(p *Shared, up Upstream, near *jsonrpc.PipeConn) *shared {
	sh := &shared{
		name: up.Name, roots: up.Roots, outBytes: 2 * p.MaxMessage, near: near, over: make(chan struct{}),
		forced: p.forced, unattributed: p.Unattributed,
		sharers: make(map[*sharer]struct{}),
		calls:   make(map[int64]*sharedCall),
		asked:   make(map[jsonrpc.ID]*sharedQuestion),
		subs:    make(map[string]*sharedSub),
		urls:    make(map[string]*sharer),
	}
	sh.wake.L = &sh.mu
	return sh
}

// run lives as long as the session with the server.
func (sh *shared) run() {
	sh.wg.Go(sh.writeServer)
	err := sh.readServer()
	sh.near.Close()
	sh.end(err)
	sh.timers.end()
	sh.wg.Wait()
	sh.timers.wait()
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
