package shared

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

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
