package pool

import "github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"

const (
	// What one client may have waiting for the server; then its stream is read
	// no further until there is room, and the client's writes stall like those
	// on a server of its own. Others have room of their own, so that they wait
	// behind that much of it at the most. A cancellation needs no room, but
	// behind a request that waits it is not read yet: a server that does not
	// read at all ends by its write timeout, and with it all that waits.
	sharerQueue      = 256
	sharerQueueBytes = 4 << 20

	// maxReplies bounds the answers that wait for a server which asks what
	// cannot be asked and does not read. Those beyond are not sent.
	maxReplies = 1024

	// sharedAtOnce bounds what is sent to the server together. What is not sent
	// yet can still be cancelled without a trace.
	sharedAtOnce = 64
)

// outgoing is a message for the server. One of a call is not sent if the call was
// cancelled meanwhile.
type outgoing struct {
	m     *jsonrpc.Message
	call  *sharedCall // nil if m is no request, or nobody waits for its answer
	by    *sharer     // whose room it takes; nil for none
	reply bool        // it counts as one of shared.replies
}

// sendLocked queues a message. Besides initialize nothing goes to the server
// before its answer to that.
func (sh *shared) sendLocked(o outgoing) {
	switch {
	case sh.ended:
		return
	case sh.welcome == nil && !o.reply:
		sh.held = append(sh.held, o)
	default:
		sh.queue = append(sh.queue, o)
	}
	if o.by != nil {
		o.by.waiting++
		o.by.waitingBytes += o.m.Size()
	}
	sh.wake.Signal()
}

// tellLocked queues a message that must not wait. There are no more of those than
// there are calls and questions open.
func (sh *shared) tellLocked(m *jsonrpc.Message) { sh.sendLocked(outgoing{m: m}) }

// reply answers a question at once.
func (sh *shared) reply(m *jsonrpc.Message) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.replyLocked(m)
}

func (sh *shared) replyLocked(m *jsonrpc.Message) {
	if sh.replies < maxReplies {
		sh.replies++
		sh.sendLocked(outgoing{m: m, reply: true})
	}
}

// writeServer owns Send of near. It leaves the end to readServer, which learns
// the cause.
func (sh *shared) writeServer() {
	for {
		batch := sh.next()
		if batch == nil {
			sh.near.CloseWrite()
			return
		}
		if jsonrpc.SendAll(sh.near, batch) != nil {
			return
		}
	}
}

// next waits for messages to the server and takes some; nil at the end. From here
// on their calls count as sent.
func (sh *shared) next() []*jsonrpc.Message {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for {
		for len(sh.queue) == 0 && !sh.ended && !sh.closing {
			sh.wake.Wait()
		}
		if sh.ended || len(sh.queue) == 0 {
			return nil
		}
		if batch := sh.takeLocked(); len(batch) > 0 {
			return batch
		}
	}
}

func (sh *shared) takeLocked() []*jsonrpc.Message {
	n := min(len(sh.queue), sharedAtOnce)
	batch := make([]*jsonrpc.Message, 0, n)
	for _, o := range sh.queue[:n] {
		if o.reply {
			sh.replies--
		}
		if s := o.by; s != nil {
			s.waiting--
			s.waitingBytes -= o.m.Size()
			s.room.Signal()
		}
		if o.call != nil && !sh.sentLocked(o.call) {
			continue
		}
		batch = append(batch, o.m)
	}
	clear(sh.queue[:n])
	if sh.queue = sh.queue[n:]; len(sh.queue) == 0 {
		sh.queue = nil
	}
	return batch
}

// sentLocked marks a call as sent, unless it was cancelled.
func (sh *shared) sentLocked(c *sharedCall) bool {
	if sh.calls[c.n] != c {
		return false
	}
	c.sent, sh.lastSent = true, c.n
	if c.by != nil {
		c.by.sent = true
		c.by.atServer++
	}
	return true
}

// waitForRoomLocked waits until s may queue one more message. It reports false if
// s has ended.
func (s *sharer) waitForRoomLocked() bool {
	for !s.ended && (s.waiting >= sharerQueue || s.waitingBytes >= sharerQueueBytes) {
		s.room.Wait()
	}
	return !s.ended
}

// send queues a message of the client that is no request, when there is room.
func (s *sharer) send(m *jsonrpc.Message) {
	s.sh.mu.Lock()
	defer s.sh.mu.Unlock()
	if s.waitForRoomLocked() {
		s.sh.sendLocked(outgoing{m: m, by: s})
	}
}
