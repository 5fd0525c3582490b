package shared

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

// An Upstream is what there is to know of a server that many streams share.
type Upstream struct {
	Name  string
	Roots []string // answer roots/list outside of any call; nil refuses it

	// Serve starts a server of an era for the one stream c, and owns c. It returns
	// when nothing is left of the server. Recv of the other end says how it ended: with
	// an error that is [ErrTried] if onTrial was true until then, as nobody knew whether
	// the server speaks the era.
	Serve func(ctx context.Context, era mcp.Era, c jsonrpc.Conn, onTrial func() bool) error

	Modern  bool   // it surely speaks the modern era, whatever it answers
	Misread func() // it was believed to speak the modern era, and does not
}

// maxReplies bounds the answers of this side that wait for a server which asks what
// cannot be asked and does not read. Those beyond are not sent.
const maxReplies = 1024

// A sharedSession is one session with a server that many clients share, its members.
//
//	stream ─► member.peer ─ requests ─► Forward ─► session.server ─► near ══ far ─► Serve
//	stream ◄─ member.peer ◄─ Forward ◄─ requests ─ session.server ◄─ near ══ far ◄─ Serve
//
// The server's end of it, far, is a stream like any other. What is the server's alone
// lives as long as that stream; with it all members end, and whoever comes next gets a
// new session.
//
// Invariants:
//   - Everything that comes from the server has one owner, or goes to all because
//     it has no content (list changes). What does not name its owner goes to nobody,
//     unless it can be of one principal only: the server remembers what it was told,
//     and may log it at any time.
//   - The server's Recv waits for no client: one that lets too much come together is
//     ended.
//   - The lock is taken before that of a Peer, never while one is held.
type sharedSession struct {
	// Static after construction.
	up        Upstream
	log       *slog.Logger
	ambiguous func(upstream string) // nil for none
	forced    context.Context       // done: nothing waits any more
	near      *jsonrpc.PipeConn
	server    *peer.Peer
	modern    *modernServer // what the modern era has besides; nil in the legacy one
	timers    timers.Set
	wg        sync.WaitGroup // for moments ambiguous
	own       jsonrpc.Room   // of what this side has to say; without a bound

	mu       sync.Mutex // guards the fields below, and those of the members that say so
	members  map[*member]struct{}
	welcome  []byte // the result of the first call; nil before
	subs     mcp.Subscriptions[*member]
	level    level
	tasks    tasks[*member]
	elicited elicitations[*member]
	users    principals           // of whom the server was told anything since it started
	gaveUp   principals           // of whom it may still be at something that nobody waits for
	left     map[string]time.Time // when members that have left gave up something last, by principal, for peer.FadeFor
	dropped  int                  // messages that could be for any of several clients
	cause    string               // of an end that this side has begun; "" before
	otherEra bool                 // that is since the server is of the other era
	over     bool
}

// afterWelcome is the class of all that waits until the server has answered the first
// call.
const afterWelcome jsonrpc.Class = 1

func classOf(m *jsonrpc.Message) jsonrpc.Class {
	if m.IsResponse() || m.Method == mcp.MethodInitialize || m.Method == mcp.MethodDiscover {
		return 0
	}
	return afterWelcome
}

func newSharedSession(forced context.Context, up Upstream, log *slog.Logger, near *jsonrpc.PipeConn) *sharedSession {
	s := &sharedSession{up: up, log: log.With("upstream", up.Name), forced: forced, near: near, members: make(map[*member]struct{})}
	s.subs.Ask, s.level.ask = s.askSub, s.askLevel
	s.server = peer.New(peer.Options{
		Name: up.Name, Room: jsonrpc.Room{Messages: maxReplies}, Class: classOf, Refuse: peer.DropDuplicates, Apart: true,
		Request: s.asked, Notified: s.notified,
	})
	s.server.Hold(afterWelcome)
	return s
}

// run lives as long as the session.
func (s *sharedSession) run() {
	err := s.server.Run(context.Background(), s.near)
	s.ended(err)
	s.server.End(err)
	s.timers.End()
	s.wg.Wait()
	s.timers.Wait()
}

// stop ends the session behind what is queued for the server. The server is then
// stopped like that of any stream that was closed; the members end when near says
// so, and by then the restart state is up to date.
func (s *sharedSession) stop(cause string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopLocked(cause)
}

func (s *sharedSession) stopLocked(cause string) {
	s.cause = cmp.Or(s.cause, cause)
	s.server.HalfClose(&jsonrpc.ClosedError{Cause: s.cause})
}

// ended ends all members because the session has ended. They get first what waits for
// them.
func (s *sharedSession) ended(err error) {
	if s.modern != nil {
		s.modernEnded(err)
	}
	end := jsonrpc.EndOf(err, jsonrpc.CauseConnectionLost)
	end.Event = cmp.Or(end.Event, jsonrpc.NewEvent())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != "" && s.cause != end.Cause {
		end.Cause, end.Says, end.Lasting = s.cause, "", s.cause == jsonrpc.CauseRefused
	}
	if s.otherEra {
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

// tell sends a message that must not wait. There are no more of those than there are
// calls and requests open.
func (s *sharedSession) tell(m *jsonrpc.Message) { s.server.SendIn(&s.own, m) }

// ask makes a call of this side, for a client's request or, if that is nil, of its own
// accord. It waits for no room.
func (s *sharedSession) ask(method string, params json.RawMessage, of queuedRequest, then func(answer *jsonrpc.Message)) {
	c := &memberCall{Call: s.server.NewCall(method), member: of.m, request: of.r}
	c.Value, c.Room = c, &s.own
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		if lost == nil {
			then(answer)
		}
	}
	if at := mcp.ReadParams(method, params).At(mcp.Token); !at.IsZero() { // a client's: it could be taken for one of ours
		params = jsonrpc.Replace(params, jsonrpc.Edit{Span: at, With: c.ID.Raw()})
	}
	_ = c.Send(&jsonrpc.Message{Params: params}) // if the session is over, so is everybody who waits
}

// initialize makes the first call of a legacy session. What is declared is all that any
// client could do; [member.refuses] knows what each can. Tasks are not declared: a server
// could then not be told apart from the client that asks about another's.
func (s *sharedSession) initialize(then func(answer *jsonrpc.Message)) {
	const all = `{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`
	s.ask(mcp.MethodInitialize, mcp.InitializeParams([]byte(all), nil), queuedRequest{}, then)
}

// initialized handles the server's answer to initialize. After a refusal nothing
// can be asked of it: the session ends, and counts as a failed start.
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
}

// askLevel asks the server for a log level, because of the clients that have asked for one.
func (s *sharedSession) askLevel(wanted int) {
	for m := range s.members {
		if m.level != 0 {
			m.sent.Store(true)
		}
	}
	s.ask(mcp.MethodSetLevel, mcp.LevelParams(wanted), queuedRequest{}, func(answer *jsonrpc.Message) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.level.answered(wanted, answer)
	})
}

// greetLocked answers a client's initialize if it has come and can be answered.
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
	if s.over || s.modern != nil && s.modern.retired {
		return false
	}
	s.stopIdleLocked()
	m.s = s
	s.members[m] = struct{}{}
	return true
}

// leave clears up what m has open with a server that stays: one stimulus for each call. A
// request gets the one error, which ends the calls that possibly wait for it; all others
// are cancelled.
func (s *sharedSession) leave(m *member, end error) {
	s.mu.Lock()
	m.gone = true
	delete(s.members, m)
	if s.tasks.running(m) {
		m.gaveUp = time.Now()
	}
	s.leftLocked(m)
	s.mu.Unlock()
	m.peer.End(end) // what it was asked is refused, what it asked is cancelled: see member.answered, call.cancelled
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.forgetLocked(m)
	}
	s.idleLocked()
}

// forgetLocked lets go of what m has besides calls.
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

// gaveUpLocked notes that the server may still be at something of m's, for which nobody
// waits.
func (s *sharedSession) gaveUpLocked(m *member, c *memberCall) {
	s.gaveUp.add(m.holder.Who)
	if c.listens { // which neither logs nor asks, unless by mistake
		return
	}
	m.gaveUp = time.Now()
	if m.gone {
		s.leftLocked(m)
	}
}

// leftLocked remembers for a while what m, which has left, gave up last.
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

// Principals are none, one, or several of whom nobody needs to know who they are.
type principals struct {
	one     string // the first; "" for none
	several bool
}

func (p *principals) add(who string) {
	switch {
	case who == "" || who == p.one: // "" is no client
	case p.one == "":
		p.one = who
	default:
		p.several = true
	}
}

// others reports whether there is one besides who.
func (p *principals) others(who string) bool { return p.several || p.one != "" && p.one != who }
