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
	// maxOut bounds the messages that a client has not read yet, beside their
	// bytes, two of the largest messages. A client that lets more come together loses
	// its stream, since the server must not wait for it and what is lost could not
	// be told.
	maxOut = 8192

	// flushTime is how long a client may take to read what the server had said
	// before it ended.
	flushTime = 5 * time.Second

	// maxMemberCalls bounds the calls of one client. Those beyond are refused.
	maxMemberCalls = 4096

	// What one client may have waiting for the server; then its stream is read
	// no further until there is room, and the client's writes stall like those
	// on a server of its own. Others have room of their own, so that they wait
	// behind that much of it at the most. A cancellation needs no room, but
	// behind a request that waits it is not read yet: a server that does not
	// read at all ends by its write timeout, and with it all that waits.
	memberQueue      = 256
	memberQueueBytes = 4 << 20
)

var errStops = errors.New("the host stops")

// A member is one client's stream on a session that others share.
type member struct {
	// Static after join.
	c      jsonrpc.Conn
	log    *slog.Logger
	holder mcp.Holder // of the key that the stream has
	s      *sharedSession
	peer   *peer.Peer
	ctx    context.Context // done: the stream ends, with its cause
	end    context.CancelCauseFunc
	room   jsonrpc.Room                             // in the server's queue
	slow   func(end *jsonrpc.ClosedError, open int) // as [Servers.Slow]; nil for nobody

	sent atomic.Bool // a call of its was with the server
	used atomic.Bool // it is counted among session.users

	// Guarded by session.mu.
	can     mcp.Abilities
	hello   *peer.Request // its initialize, from then on
	ready   bool          // which was answered: now it hears of what goes to all
	gone    bool          // it has left
	level   int           // wanted; zero if the client did not say
	waiting int           // requests that wait here for their turn, cancelled ones too, so that they are bounded
	gaveUp  time.Time     // when it gave up something last
}

// A queuedRequest is a request of a client that waits here for its turn. The zero queuedRequest is
// nobody's.
type queuedRequest struct {
	m *member
	r *peer.Request
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

// serve runs a member that has joined to its end.
func (m *member) serve(ctx context.Context) error {
	defer m.end(nil)
	stop := func(cause error) {
		m.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: m.wasSent(), Event: jsonrpc.NewEvent(), Err: cause})
	}
	defer context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })()
	defer context.AfterFunc(m.s.forced, func() { stop(errStops) })()

	err := m.peer.Run(m.ctx, m.c)
	_, open := m.peer.Open()
	m.s.leave(m, err)
	m.tell(err, open)
	return err
}

// tooSlow ends a client that does not read.
func (m *member) tooSlow(*jsonrpc.Message) {
	m.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseSlowMember, Delivered: true, Event: jsonrpc.NewEvent()})
}

// tell writes the one log line of an end.
func (m *member) tell(err error, open int) {
	log := m.log.With("cause", jsonrpc.CauseOf(err), "in_flight", open)
	end, ok := errors.AsType[*jsonrpc.ClosedError](err)
	if ok {
		log = log.With("event", end.Event)
	}
	if ok && end.Class() == jsonrpc.ClassClientSlow {
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

// uses notes that the server is about to be told something of the client's.
func (m *member) uses() {
	if m.used.Load() { // as of nearly each request
		return
	}
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.s.users.add(m.holder.Who)
	m.used.Store(true)
}

// put sends a message to the client. m must be nobody else's.
func (m *member) put(msg *jsonrpc.Message) { m.peer.Send(msg) }

// refuses returns why a client cannot be asked this; nil if it can. The server
// was told that it may ask everything of everybody, so that what a client would
// not understand must end here.
func (m *member) refuses(method string, params json.RawMessage) *jsonrpc.Error {
	switch method {
	case mcp.MethodTasksGet, mcp.MethodTasksResult, mcp.MethodTasksCancel, mcp.MethodTasksList:
		return jsonrpc.MethodNotFound(method)
	}
	return m.can.Refuses(method, params)
}

// wantsLocked returns the log level from which on the client wants to hear.
func (m *member) wantsLocked() int { return cmp.Or(m.level, infoLevel) }

// countLocked adds n to those who want to hear what m does, once m has said hello.
func (m *member) countLocked(n int) {
	if m.hello != nil {
		m.s.level.count(m.wantsLocked(), n)
	}
}
