package shared

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

const (
	// maxOut bounds the messages that wait for a client to read them. Their bytes are bounded
	// to two of the largest messages. A slower client loses its stream, since the server must
	// not wait for it, and dropped messages could not be reported.
	maxOut = 8192

	// flushTime is how long a client may take to read its messages after the server has ended.
	flushTime = 5 * time.Second

	// maxMemberCalls bounds the calls of one client. More are refused.
	maxMemberCalls = 4096

	// These bound what one client may have queued for the server. When the queue is full the
	// client's stream is not read, so that its writes block as they would with a server of its
	// own. Each client has its own room, so that the others wait behind this much at most. A
	// cancellation needs no room, but is not read while a request before it waits. A server
	// that reads nothing is ended by its write timeout.
	memberQueue      = 256
	memberQueueBytes = 4 << 20
)

var errStops = errors.New("the host stops")

// A member is one client's stream on a session that others share.
type member struct {
	// Static after join.
	c      jsonrpc.Conn
	log    *slog.Logger
	holder mcp.Holder // derived from the key of the stream
	s      *sharedSession
	peer   *peer.Peer
	ctx    context.Context // done with the cause when the stream ends
	end    context.CancelCauseFunc
	room   jsonrpc.Room                             // in the server's queue
	slow   func(end *jsonrpc.ClosedError, open int) // see [Servers.Slow]; may be nil

	sent atomic.Bool // the server got one of its calls
	used atomic.Bool // it is in session.users

	// Guarded by session.mu.
	can     mcp.Abilities
	hello   *peer.Request // its initialize request; nil before
	ready   bool          // initialize was answered: broadcasts are delivered from now on
	gone    bool          // it has left
	level   int           // log level that it has set; zero for none
	waiting int           // requests that wait here, including cancelled ones
	gaveUp  time.Time     // when it last abandoned a call
}

func newMember(c jsonrpc.Conn, upstream string, maxMessage int, log *slog.Logger) *member {
	m := &member{c: c, log: log, room: jsonrpc.Room{Messages: memberQueue, Bytes: memberQueueBytes}}
	m.peer = peer.New(peer.Options{
		Name: upstream, Requests: maxMemberCalls, Apart: true,
		Room: jsonrpc.Room{Messages: maxOut, Bytes: 2 * maxMessage}, Full: m.tooSlow,
		Request: m.request, Notified: m.notified,
	})
	m.ctx, m.end = context.WithCancelCause(context.Background())
	return m
}

// serve begins to serve a member that has joined a session. At the end of its stream over is called.
func (m *member) serve(ctx context.Context, over func(error)) {
	stop := func(cause error) {
		m.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true, Event: jsonrpc.NewEvent(), Err: cause})
	}
	unhook := context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })
	unhookForced := context.AfterFunc(m.s.forced, func() { stop(errStops) })
	m.peer.Start(m.ctx, m.c, func(err error) {
		_, open := m.peer.Open()
		m.s.leave(m, err)
		m.tell(err, open)
		unhook()
		unhookForced()
		m.end(nil)
		over(err)
	})
}

// tooSlow ends the stream of a client that does not read.
func (m *member) tooSlow(*jsonrpc.Message) {
	m.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseSlowMember, Delivered: true, Event: jsonrpc.NewEvent()})
}

// tell logs the end of the stream, in one line.
func (m *member) tell(err error, open int) {
	log := m.log.With("cause", jsonrpc.CauseOf(err), "in_flight", open)
	end, ok := errors.AsType[*jsonrpc.ClosedError](err)
	if ok {
		log = log.With("event", end.Event)
	}
	if ok && end.Cause.Kind == jsonrpc.KindClientSlow {
		log.Warn("client of a shared upstream does not read")
		if m.slow != nil {
			m.slow(end, open)
		}
		return
	}
	log.Debug("client has left a shared upstream")
}

// wasSent reports whether anything of the client's was sent to the server.
func (m *member) wasSent() bool {
	return m.sent.Load() || slices.ContainsFunc(m.s.atServer(), func(c *memberCall) bool { return c.member == m })
}

// uses records that the server is about to receive data of the client.
func (m *member) uses() {
	if m.used.Load() { // as of nearly each request
		return
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.users.add(m.holder.Who)
	m.used.Store(true)
}

// put sends a message to the client. The member takes ownership of msg.
func (m *member) put(msg *jsonrpc.Message) { m.peer.Send(msg) }

// refuses returns the reason why a client cannot be asked this; nil if it can. The server was told that clients
// support everything, so that unsupported requests must be refused here.
func (m *member) refuses(method string, params json.RawMessage) *jsonrpc.Error {
	switch method {
	case mcp.MethodTasksGet, mcp.MethodTasksResult, mcp.MethodTasksCancel, mcp.MethodTasksList:
		return jsonrpc.MethodNotFound(method)
	}
	return m.can.Refuses(method, params)
}

// wantsLocked returns the lowest log level that the client wants.
func (m *member) wantsLocked() int { return cmp.Or(m.level, infoLevel) }

// countLocked adds n to the number of clients that want m's log level, once m has sent initialize.
func (m *member) countLocked(n int) {
	if m.hello != nil {
		m.s.level.wanting[m.wantsLocked()] += n
	}
}

// greetLocked answers a client's initialize when both that and the server's answer have arrived.
func (s *sharedSession) greetLocked(m *member) {
	if m.hello != nil && s.welcome != nil && !m.ready {
		m.hello.Respond(&jsonrpc.Message{Result: s.welcome})
		m.ready = true
	}
}

// elicitedLocked remembers that a client was given elicitations.
func (s *sharedSession) elicitedLocked(m *member, ids ...string) {
	if !m.gone {
		s.elicited.add(m, ids...)
	}
}

// atServer returns the clients' calls that were sent, oldest first.
func (s *sharedSession) atServer() (sent []*memberCall) {
	for _, c := range s.server.Calls(func(c *peer.Call) bool { return c.Owner != nil }) {
		if c.Sent() {
			sent = append(sent, callOf(c))
		}
	}
	return sent
}
