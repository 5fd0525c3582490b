package shared

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

// An Upstream describes a server that many streams share.
type Upstream struct {
	Name  string
	Roots []string // answer roots/list outside of any call; nil refuses it

	// Serve starts a server of an era for the stream c, and owns c. It returns when
	// nothing is left of the server. Recv of the other end returns the cause of the end: an
	// error that is [ErrTried] if onTrial, which reports whether the era is not known yet,
	// was true until then.
	Serve func(ctx context.Context, era mcp.Era, c jsonrpc.Conn, onTrial func() bool) error

	Idle time.Duration // how long its server runs without use; zero: for a while if it is modern, else for ever

	Modern  bool   // configured as modern, whatever it answers
	Misread func() // called if it turns out not to speak the modern era
}

// maxReplies bounds our refusals that wait for a server which does not read. Further ones are dropped.
const maxReplies = 1024

// A sharedSession is one session with a server that many clients, its members, share.
//
//	stream ─► member.peer ─ requests ─► Forward ─► session.server ─► near ══ far ─► Serve
//	stream ◄─ member.peer ◄─ Forward ◄─ requests ─ session.server ◄─ near ══ far ◄─ Serve
//
// The server's end, far, is a stream as any other. When it ends all members end, and the next
// client gets a new session.
//
// Invariants:
//   - Each message of the server has one owner, or goes to all because it has no content (list
//     changes). A message without an owner is dropped, unless only one principal is possible:
//     the server remembers what it was told and may log it at any time.
//   - Recv from the server never waits for a client. A client that reads too slowly is ended.
//   - The lock is taken before that of a Peer, never while one is held.
type sharedSession struct {
	// Static after construction.
	up        Upstream
	log       *slog.Logger
	ambiguous func(upstream string) // nil for none
	forced    context.Context       // done when all sessions end by force
	ends      chan struct{}         // closed by run when the stream to the server has ended
	server    *peer.Peer
	modern    *modernServer // nil in the legacy era
	timers    timers.Set
	wg        sync.WaitGroup // calls of ambiguous
	own       jsonrpc.Room   // of our own messages, unbounded
	used      atomic.Int64   // when a client joined or a call was over, in ns since 1970, if the upstream has an Idle

	mu       sync.Mutex // guards the fields below and the members' fields that say so
	members  map[*member]struct{}
	welcome  []byte // result of initialize or server/discover; nil before
	subs     mcp.Subscriptions[*member]
	level    level
	tasks    tasks[*member]
	elicited elicitations[*member]
	users    principals           // principals whose data the server has received
	gaveUp   principals           // principals with abandoned calls that may still run
	left     map[string]time.Time // when members that have left last abandoned a call, by principal, for peer.FadeFor
	dropped  int                  // messages that could concern any of several clients
	cause    jsonrpc.Cause        // of an end that this side began; zero before
	idle     *timers.Timer        // runs while there is no member, if that ends the session
	retired  bool                 // accepts no more members, and ends
	over     bool
}

// afterWelcome is the class of messages that wait until the server has answered the first call.
const afterWelcome jsonrpc.Class = 1

func classOf(m *jsonrpc.Message) jsonrpc.Class {
	if m.IsResponse() || m.Method == mcp.MethodInitialize || m.Method == mcp.MethodDiscover {
		return 0
	}
	return afterWelcome
}

func newSharedSession(forced context.Context, up Upstream, log *slog.Logger) *sharedSession {
	s := &sharedSession{up: up, log: log.With("upstream", up.Name), forced: forced, ends: make(chan struct{}), members: make(map[*member]struct{})}
	s.subs.Ask, s.level.ask = s.askSub, s.askLevel
	o := peer.Options{
		Name: up.Name, Room: jsonrpc.Room{Messages: maxReplies}, Class: classOf, Refuse: peer.DropDuplicates, Apart: true,
		Request: s.asked, Notified: s.notified,
	}
	if up.Idle > 0 {
		o.Over = s.noteUse
	}
	s.server = peer.New(o)
	s.server.Hold(afterWelcome)
	return s
}

// run serves near, the stream to the server, until it has ended.
func (s *sharedSession) run(near jsonrpc.Conn) {
	err := s.server.Run(context.Background(), near)
	close(s.ends)
	s.ended(err)
	s.server.End(err)
	s.timers.End()
	s.wg.Wait()
	s.timers.Wait()
}

// stop ends the session after everything that is queued for the server. The server is stopped as that of any
// closed stream. The members end when near does, and the restart state is up to date by then.
func (s *sharedSession) stop(cause jsonrpc.Cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked(cause)
}

func (s *sharedSession) stopLocked(cause jsonrpc.Cause) {
	s.cause = cmp.Or(s.cause, cause)
	s.server.HalfClose(&jsonrpc.ClosedError{Cause: s.cause})
}

// ended ends all members, after what is queued for them.
func (s *sharedSession) ended(err error) {
	if s.modern != nil {
		s.modernEnded(err)
	}
	end := jsonrpc.EndOf(err, jsonrpc.CauseConnectionLost)
	end.Event = cmp.Or(end.Event, jsonrpc.NewEvent())
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.cause.IsZero() && s.cause != end.Cause {
		end.Cause, end.Says, end.Lasting = s.cause, "", s.cause == jsonrpc.CauseRefused
	}
	if s.modern != nil && s.modern.misfit {
		end.Err = mcp.ErrOtherEra
	}
	s.over = true
	for m := range s.members {
		mine := *end
		mine.Delivered = mine.Delivered && m.wasSent()
		m.peer.Finish(&mine, flushTime)
	}
	s.stopIdleLocked()
}

// tell sends a message without waiting. There are never more than open calls and requests.
func (s *sharedSession) tell(m *jsonrpc.Message) { s.server.SendIn(&s.own, m) }

// ask makes a call of our own. It does not wait for room.
func (s *sharedSession) ask(method string, params json.RawMessage, then func(answer *jsonrpc.Message)) {
	s.askFor(nil, nil, method, params, then)
}

// askFor is ask on behalf of a client's request; both are nil for none.
func (s *sharedSession) askFor(m *member, r *peer.Request, method string, params json.RawMessage,
	then func(answer *jsonrpc.Message),
) {
	c := &memberCall{Call: s.server.NewCall(method), member: m, request: r}
	c.Value, c.Room = c, &s.own
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil {
			then(answer)
		}
	}
	if at := mcp.ReadParams(method, params).At(mcp.Token); !at.IsZero() { // a client's token could equal one of ours
		params = jsonrpc.Replace(params, jsonrpc.Edit{Span: at, With: c.ID.Raw()})
	}
	_ = c.Send(&jsonrpc.Message{Params: params}) // if the session has ended, so have all waiting requests
}

// initialize makes the first call of a legacy session. It declares everything that any client may
// support; [member.refuses] checks each client. It does not declare tasks, because a server's
// request about one could not be attributed to a client.
func (s *sharedSession) initialize(then func(answer *jsonrpc.Message)) {
	const all = `{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`
	s.ask(mcp.MethodInitialize, mcp.InitializeParams([]byte(all), nil), then)
}

// initialized handles the answer to initialize. If the server refuses, the session ends and counts as a failed
// start.
func (s *sharedSession) initialized(answer *jsonrpc.Message) {
	if len(answer.Result) == 0 || answer.Result[0] != '{' {
		s.stop(jsonrpc.CauseRefused)
		return
	}
	capabilities, _ := jsonrpc.Member(answer.Result, "capabilities")
	logging, _ := jsonrpc.Member(capabilities, "logging")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.welcome = answer.Result
	s.level.ready, s.level.offered = true, logging != nil
	s.server.Release(afterWelcome, jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	for m := range s.members {
		s.greetLocked(m)
	}
	s.level.bring()
	s.idleLocked()
}

// askLevel asks the server for the log level that clients want.
func (s *sharedSession) askLevel(wanted int) {
	for m := range s.members {
		if m.level != 0 {
			m.sent.Store(true)
		}
	}
	s.ask(mcp.MethodSetLevel, mcp.LevelParams(wanted), func(answer *jsonrpc.Message) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.level.answered(wanted, answer)
	})
}

// greetLocked answers a client's initialize when both that and the server's answer have arrived.
func (s *sharedSession) greetLocked(m *member) {
	if m.hello != nil && s.welcome != nil && !m.ready {
		m.hello.Respond(&jsonrpc.Message{Result: s.welcome})
		m.ready = true
	}
}

// join makes m a member of s, unless that has ended.
func (s *sharedSession) join(m *member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.retired {
		return false
	}
	s.stopIdleLocked()
	s.used.Store(time.Now().UnixNano())
	m.s = s
	s.members[m] = struct{}{}
	return true
}

// leave cleans up after m, while the server stays. Each open call gets one stimulus: the one error as the answer
// to a server request, which ends the calls that may wait for it, and a cancellation otherwise.
func (s *sharedSession) leave(m *member, end error) {
	s.mu.Lock()
	m.gone = true
	delete(s.members, m)
	if s.tasks.running(m) {
		m.gaveUp = time.Now()
	}
	s.leftLocked(m)
	s.mu.Unlock()
	m.peer.End(end) // refuses the server's requests and cancels the member's: see member.answered, memberCall.cancelled
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.forgetLocked(m)
	}
	s.idleLocked()
}

// forgetLocked releases what m has besides calls.
func (s *sharedSession) forgetLocked(m *member) {
	fading := s.server.Calls(func(c *peer.Call) bool { return c.Owner == any(m) && !callOf(c).quiet })
	if len(fading) > 0 {
		s.timers.After(peer.FadeFor, func() { s.cancelLate(fading) })
	}
	for _, id := range s.tasks.leave(m) {
		s.cancelTask(id)
	}
	s.elicited.leave(m)
	s.subs.ReleaseAll(m)
	m.countLocked(-1)
	s.level.bring()
}

// gaveUpLocked records that the server may still work on an abandoned call of m.
func (s *sharedSession) gaveUpLocked(m *member, c *memberCall) {
	s.gaveUp.add(m.holder.Who)
	if c.listens { // servers neither log nor ask because of it
		return
	}
	m.gaveUp = time.Now()
	if m.gone {
		s.leftLocked(m)
	}
}

// leftLocked remembers for peer.FadeFor when m, which has left, last abandoned a call.
func (s *sharedSession) leftLocked(m *member) {
	old := func(_ string, at time.Time) bool { return time.Since(at) >= peer.FadeFor }
	maps.DeleteFunc(s.left, old)
	if who := m.holder.Who; !old(who, m.gaveUp) && m.gaveUp.After(s.left[who]) {
		if s.left == nil {
			s.left = make(map[string]time.Time)
		}
		s.left[who] = m.gaveUp
	}
}

// principals are none, one, or several principals, of which only the first is known by name.
type principals struct {
	one     string // the first; "" for none
	several bool
}

func (p *principals) add(who string) {
	switch {
	case who == "" || who == p.one: // "" stands for no client
	case p.one == "":
		p.one = who
	default:
		p.several = true
	}
}

// others reports whether there is another principal than who.
func (p *principals) others(who string) bool { return p.several || p.one != "" && p.one != who }
