package remote

import (
	"context"
	"net/http"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// answerTime is how long the server may take to answer a request that was cancelled,
// or that has to end because the session does, before it is given up.
const answerTime = 500 * time.Millisecond

// Close implements jsonrpc.Conn. Recv and Send return at once. What was sent
// before still goes out: notifications and responses, and tasks/cancel, for half
// of the grace. The server is told with a DELETE when it has answered all requests,
// or answerTime later: servers of the Python SDK accept a message before they take
// it, so that a DELETE would overtake it. Close returns when nothing is left of the
// session, at most after the grace.
func (s *session) Close() error {
	s.closeOnce.Do(s.leave)
	return nil
}

func (s *session) leave() {
	s.unhook()
	s.end(jsonrpc.ErrClosed)
	grace := s.server.stopGrace()
	force := time.AfterFunc(grace, s.cancel)
	half := time.AfterFunc(grace/2, s.stopTalk)
	defer force.Stop()
	defer half.Stop()

	begun, unfinished := s.closing()
	close(s.left)
	if begun {
		<-s.talked
	}
	s.awaitAnswers(unfinished)
	s.giveUp()
	s.wg.Wait()
	s.takeLeave()
	s.cancel()
	s.server.leave()
}

// closing lets no goroutine be started any more. It returns the calls to wait
// for; those that wait for a slot are given up.
func (s *session) closing() (begun bool, unfinished []*call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = true
	for _, c := range s.calls {
		if c.state == queued && c.m.Method != mcp.MethodTasksCancel {
			c.state = cancelled
			c.cancel(errCancelled)
			continue
		}
		unfinished = append(unfinished, c)
	}
	return s.begun, unfinished
}

// awaitAnswers waits until the server has answered the calls, within bounds.
func (s *session) awaitAnswers(calls []*call) {
	late := time.NewTimer(answerTime)
	defer late.Stop()
	for _, c := range calls {
		end := late.C
		if c.m.Method == mcp.MethodTasksCancel { // it is yet to be posted
			end = nil
		}
		select {
		case <-c.taken:
		case <-end:
			late.Reset(0) // of the others, too
		case <-s.hurry.Done():
			return
		}
	}
}

// leaveAfter is how long the server may take to notice that the stream of our GET has
// ended, of which it says nothing. Servers of the Python SDK (1.x) fail, with a
// traceback, when the session ends before that.
const leaveAfter = 50 * time.Millisecond

// takeLeave tells the server that the session is over. It need not listen: the
// spec lets it answer 405.
func (s *session) takeLeave() {
	p := s.current()
	if p.id == "" || sleep(s.ctx, min(leaveAfter, s.server.stopGrace()/8)) != nil {
		return
	}
	r := newReach(nil)
	req, err := http.NewRequestWithContext(context.WithoutCancel(s.ctx), http.MethodDelete, p.url, nil)
	if err != nil {
		return
	}
	resp, f := s.server.do(req.WithContext(r.trace(s.ctx)), p, http.Header{}, r)
	if f != nil {
		s.log.Debug("upstream was not told that the session is over", "err", f.cause)
		return
	}
	discard(resp)
}
