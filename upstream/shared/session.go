package shared

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
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
	unasked   atomic.Int64   // log messages that no request has asked for
	used      atomic.Int64   // when a client joined or a call was over, in ns since 1970, if the upstream has an Idle

	mu       sync.Mutex // guards the fields below and the members' fields that say so
	members  map[*member]struct{}
	welcome  []byte // result of initialize or server/discover; nil before
	subs     mcp.Subscriptions[*member]
	level    level
	tasks    tasks[*member]
	elicited elicitations[*member]
	held     []*heldRequest       // requests of the server whose owner is not known yet
	users    principals           // principals whose data the server has received
	gaveUp   principals           // principals with abandoned calls that may still run
	left     map[string]time.Time // when members that have left last abandoned a call, by principal, for peer.FadeFor
	dropped  int                  // messages that could concern any of several clients
	cause    jsonrpc.Cause        // of an end that this side began; zero before
	until    time.Time            // a client may ask for a task that a modern server has given
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
	s.refuseHeldLocked(m) // the one stimulus of a call that may have asked
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
	for _, c := range s.server.Calls(func(c *peer.Call) bool { return c.Owner == any(m) && !callOf(c).quiet }) {
		s.timers.After(callOf(c).endsLocked(), func() { s.cancelLate(callOf(c)) })
	}
	for _, id := range s.tasks.leave(m) {
		s.cancelTask(id)
	}
	s.elicited.leave(m)
	s.subs.ReleaseAll(m)
	m.countLocked(-1)
	s.level.bring()
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

// tell sends a message without waiting. There are never more than open calls and requests.
func (s *sharedSession) tell(m *jsonrpc.Message) { s.server.SendIn(&s.own, m) }

// initialize makes the first call of a legacy session. It declares everything that any client may
// support; [member.refuses] checks each client. It does not declare tasks, because a server's
// request about one could not be attributed to a client.
func (s *sharedSession) initialize(then func(answer *jsonrpc.Message)) {
	const all = `{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`
	s.ask(mcp.MethodInitialize, mcp.InitializeParams([]byte(all), nil), then)
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

// A memberCall is a request to the server of a session, either from a client or our own.
type memberCall struct {
	*peer.Call

	// Static once it is sent.
	member  *member         // the client that sent it, or on whose behalf it is made; nil for our own calls
	request *peer.Request   // of the client
	token   json.RawMessage // the client's progress token, as it came; nil for none
	creates bool            // the client asks for a task
	listens bool            // modern: it is subscriptions/listen
	logs    int             // modern: the lowest level of log messages that it wants; zero for none

	// Guarded by session.mu.
	kept    bool      // abandoned and not cancelled: see maxKeptCalls
	quiet   bool      // kept only for the task that it may create
	refused time.Time // when a question that it may have asked was refused, because others may have asked it, too
}

// callOf returns the memberCall of a Call to a session's server.
func callOf(c *peer.Call) *memberCall { return c.Value.(*memberCall) }

// dropUnasked counts a log message of a level for which no request has asked.
func (s *sharedSession) dropUnasked() {
	s.log.Debug("log message dropped: no request asks for its level", "dropped", s.unasked.Add(1))
}

// dropLocked counts a message that could concern any of several clients.
func (s *sharedSession) dropLocked(m *jsonrpc.Message) {
	s.dropped++
	s.log.Debug("message dropped: it could be for any of several clients", "method", m.Method)
}
