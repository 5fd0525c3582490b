package frontend

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxWaiting bounds the bytes of all messages that wait to be read by clients: responses,
// notifications, questions of servers, and events kept for a client that may resume. A client that
// does not read keeps its messages for half a minute, and there may be many clients. The bound is
// at least four of the largest messages.
//
// A single principal may use all of it. Then other principals may together use as much again, an
// eighth of it each. A principal that exceeds its share loses its largest stream, and other
// principals lose nothing. If a response is itself the largest, an error replaces it.
const maxWaiting = 256 << 20

// A backlog counts the bytes of messages that wait to be read, in shares.
type backlog struct {
	limit  int64
	bytes  atomic.Int64
	ending atomic.Int64 // the part on streams that are being ended

	mu     sync.Mutex // guards shares, and their users
	shares map[identity.Principal]*principalBacklog
}

func newBacklog(l jsonrpc.Limits) *backlog {
	return &backlog{limit: max(maxWaiting, 4*int64(l.MaxMessage())), shares: make(map[identity.Principal]*principalBacklog)}
}

// A principalBacklog is the share of one principal.
type principalBacklog struct {
	all    *backlog
	bytes  atomic.Int64
	ending atomic.Int64 // as in backlog
	users  int

	mu    sync.Mutex                  // guards the field below, and ended of all its streams
	large map[*streamBacklog]struct{} // streams with 64 KiB or more
}

// join returns the share of a principal. The caller must call leave when it no longer adds to it.
func (u *backlog) join(who identity.Principal) *principalBacklog {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.shares[who]
	if s == nil {
		s = &principalBacklog{all: u, large: make(map[*streamBacklog]struct{})}
		u.shares[who] = s
	}
	s.users++
	return s
}

func (u *backlog) leave(who identity.Principal) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.shares[who]
	if s.users--; s.users == 0 {
		delete(u.shares, who)
	}
}

// fits reports whether n bytes more are within the share. Concurrent senders do not see each other,
// so together they may exceed it.
func (s *principalBacklog) fits(n int) bool {
	all, limit := s.all.bytes.Load()-s.all.ending.Load()+int64(n), s.all.limit
	return all <= limit || all <= 2*limit && s.bytes.Load()-s.ending.Load()+int64(n) <= limit/8
}

// largest returns the largest stream, preferably a spare one; nil if there are only small ones.
func (s *principalBacklog) largest() (found *streamBacklog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for h := range s.large {
		spare := h.spare.Load()
		if found == nil || spare && !found.spare.Load() || spare == found.spare.Load() && h.size() > found.size() {
			found = h
		}
	}
	return found
}

// A streamBacklog is the size of the messages of one stream that wait to be read. Their size is
// added when they begin to wait, and subtracted when they have been written or dropped.
type streamBacklog struct {
	of    *principalBacklog
	cut   func()      // ends the stream; called with no lock held
	spare atomic.Bool // nobody reads it now, so it is dropped before streams that are read
	bytes atomic.Int64
	ended bool // cut is being called
}

func (h *streamBacklog) size() int { return int(h.bytes.Load()) }

func (h *streamBacklog) add(n int) {
	if n == 0 {
		return
	}
	h.of.all.bytes.Add(int64(n))
	h.of.bytes.Add(int64(n))
	after := h.bytes.Add(int64(n))
	if (after >= largeBody) != (after-int64(n) >= largeBody) {
		h.of.mu.Lock()
		defer h.of.mu.Unlock()
		h.listLocked()
	}
}

func (h *streamBacklog) listLocked() {
	if h.bytes.Load() >= largeBody && !h.ended {
		h.of.large[h] = struct{}{}
	} else {
		delete(h.of.large, h)
	}
}

// room reports whether n bytes more may wait here. To make room, it ends spare and larger streams
// of the principal.
func (h *streamBacklog) room(n int) bool {
	for !h.of.fits(n) {
		largest := h.of.largest()
		if largest == nil || largest == h || !largest.spare.Load() && largest.size() <= h.size()+n {
			return false
		}
		largest.end()
	}
	return true
}

// grow is add for bytes that cannot be refused. It ends the largest streams, possibly including h.
func (h *streamBacklog) grow(n int) {
	h.add(n)
	for n > 0 && !h.of.fits(0) {
		largest := h.of.largest()
		if largest == nil {
			return
		}
		largest.end()
	}
}

// end calls cut in another goroutine, because the caller holds a lock of a stream. The bytes of h
// no longer count.
func (h *streamBacklog) end() {
	s := h.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.ended {
		return
	}
	h.ended = true
	delete(s.large, h)
	n := h.bytes.Load()
	s.ending.Add(n)
	s.all.ending.Add(n)
	time.AfterFunc(0, func() {
		h.cut()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ending.Add(-n)
		s.all.ending.Add(-n)
		h.ended = false
		h.listLocked()
	})
}

// unreadable returns the error that replaces a response for which there is no room. The request has
// been served.
func unreadable() *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInternalError,
		Message: "Too many unread messages",
		Data:    jsonrpc.ErrorData{Reason: jsonrpc.ReasonOverloaded, Phase: jsonrpc.InFlight},
	}
}
