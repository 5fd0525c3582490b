package remote

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// talkTimeout bounds how long a notification or a response may take, since
// those behind it wait.
const talkTimeout = 10 * time.Second

// maxCancels bounds the cancellations on their way at once. Those beyond wait, and
// what is behind them too; but a server that has taken none within talkTimeout is
// not told of them, until it takes one.
const maxCancels = 32

// An item is a notification or a response on its way to the server.
type item struct {
	m       *jsonrpc.Message
	gate    <-chan struct{} // what it waits for; nil: nothing
	cancels *call           // the request that m cancels; nil if it cancels none
}

// tell queues what is to be posted in order.
func (s *session) tell(t item) error {
	select {
	case s.lane <- t:
		return nil
	case <-s.ended:
		return jsonrpc.Closed(s.err)
	}
}

// talk posts notifications and responses one after the other: two requests on
// their way at once may overtake each other. After Close it posts what is left.
func (s *session) talk() {
	defer close(s.talked)
	defer s.cancels.wg.Wait()
	for {
		select {
		case t := <-s.lane:
			s.talkOne(t)
			continue
		case <-s.left:
		}
		select {
		case t := <-s.lane:
			s.talkOne(t)
		default:
			return
		}
	}
}

func (s *session) talkOne(t item) {
	if t.cancels != nil {
		s.cancelBeside(t)
		return
	}
	if t.m.Method == mcp.MethodInitialized {
		defer s.isReady()
	}
	if !s.mayTalk(t) {
		return
	}
	ctx, cancel := context.WithTimeout(s.hurry, talkTimeout)
	defer cancel()
	p := s.current()
	if t.m.IsResponse() && !s.answersFor(t.m.ID, p) {
		s.log.Debug("response dropped, its request came from a session that the server has forgotten", "id", t.m.ID.String())
		return
	}
	if f := s.server.deliver(ctx, p, t.m, nil); f != nil {
		s.unheard(t.m, f)
	}
}

// cancellations are those on their way. They need no order among themselves: one
// after the other, the last of many would come too late.
type cancellations struct {
	wg    sync.WaitGroup // owned by talk
	slots chan struct{}  // an element for each; capacity maxCancels
	deaf  atomic.Bool    // the server took too long for the last one
}

// cancelBeside posts a cancellation, and does not wait for it. The call is given up
// when the server has had time to answer it all the same.
func (s *session) cancelBeside(t item) {
	select {
	case s.cancels.slots <- struct{}{}:
	default:
		if s.cancels.deaf.Load() {
			t.cancels.cancel(errCancelled)
			return
		}
		s.cancels.slots <- struct{}{} // which nobody has for long
	}
	s.cancels.wg.Go(func() {
		defer func() { <-s.cancels.slots }()
		if !s.mayTalk(t) {
			t.cancels.cancel(errCancelled)
			return
		}
		defer time.AfterFunc(answerTime, func() { t.cancels.cancel(errCancelled) })
		ctx, cancel := context.WithTimeout(s.hurry, talkTimeout)
		defer cancel()
		f := s.server.deliver(ctx, s.current(), t.m, nil)
		s.cancels.deaf.Store(f != nil && ctx.Err() == context.DeadlineExceeded)
		if f != nil {
			s.unheard(t.m, f)
		}
	})
}

// unheard notes that the server did not accept a message.
func (s *session) unheard(m *jsonrpc.Message, f *failure) {
	s.log.Debug("message was not accepted by the upstream", "method", m.Method, "id", m.ID.String(), "err", f.cause)
}

// mayTalk waits until the server can make sense of a message. With false it
// never will.
func (s *session) mayTalk(t item) bool {
	if t.gate != nil {
		select {
		case <-t.gate:
		case <-s.ended:
			select { // both at once
			case <-t.gate:
			default:
				return false
			}
		}
	}
	if t.cancels == nil {
		return true
	}
	late := time.NewTimer(talkTimeout)
	defer late.Stop()
	select {
	case <-t.cancels.reach.written:
	case <-late.C: // what began to be sent counts as sent
	case <-s.hurry.Done():
	}
	return s.hurry.Err() == nil
}

// isReady begins to listen, and lets the messages behind initialized go.
func (s *session) isReady() {
	s.readyOnce.Do(func() {
		ready := func() { close(s.ready) }
		if p := s.current(); !p.legacy {
			s.hear(p, ready)
		} else {
			ready()
		}
	})
}
