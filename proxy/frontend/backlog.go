package frontend

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxWaiting bounds, in bytes, what waits to be read by all clients together: responses,
// notifications, questions of servers, and events that are kept for a client that may
// resume. A client that does not read holds its own for half a minute, and there may be
// many. It has room for four of the largest messages at least.
//
// One principal alone may use all of it up. As much again is there for others, an
// eighth of it for each. A principal with more loses its largest stream, and nobody else
// loses anything. A response that is itself the largest is replaced by an error.
const maxWaiting = 256 << 20

// A backlog counts the bytes of events that wait to be read, in shares.
type backlog struct {
	limit  int64
	bytes  atomic.Int64
	ending atomic.Int64 // of these, what is on streams that are being ended

	mu     sync.Mutex // guards shares, and how many use each
	shares map[identity.Principal]*principalBacklog
}

func newBacklog(l jsonrpc.Limits) *backlog {
	return &backlog{limit: max(maxWaiting, 4*int64(l.MaxMessage())), shares: make(map[identity.Principal]*principalBacklog)}
}

// A principalBacklog is the part of one principal.
type principalBacklog struct {
	all    *backlog
	bytes  atomic.Int64
	ending atomic.Int64 // as in backlog
	users  int

	mu    sync.Mutex                  // guards the field below, and ended of all that is held
	large map[*streamBacklog]struct{} // what holds a piece or more
}

// join returns the share of a principal, for somebody who leaves it in the end. It may
// be used after that, too.
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

// fits reports whether so many bytes more are within the share. Those that are sent at the
// same moment do not see each other, so together they may exceed it.
func (s *principalBacklog) fits(n int) bool {
	all, limit := s.all.bytes.Load()-s.all.ending.Load()+int64(n), s.all.limit
	return all <= limit || all <= 2*limit && s.bytes.Load()-s.ending.Load()+int64(n) <= limit/8
}

// largest returns the stream with the most, before that what is spare; nil if there are only
// small ones.
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

// A streamBacklog is what waits on one stream to be read, or on its way there. What begins to wait
// is added, what was written or dropped is taken off.
type streamBacklog struct {
	of    *principalBacklog
	cut   func()      // ends the stream; called with no lock held
	spare atomic.Bool // nobody reads it now: it goes before what somebody does
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
	if (after >= piece) != (after-int64(n) >= piece) {
		h.of.mu.Lock()
		defer h.of.mu.Unlock()
		h.listLocked()
	}
}

func (h *streamBacklog) listLocked() {
	if h.bytes.Load() >= piece && !h.ended {
		h.of.large[h] = struct{}{}
	} else {
		delete(h.of.large, h)
	}
}

// room reports whether so many bytes more may wait here. If not, what is spare goes, and
// larger streams of the principal end.
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

// grow is add for what nobody can refuse: whatever is largest ends, be it this one.
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

// end makes somebody else end the stream, since its owner has a lock. What it holds does
// not count any more.
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

// unreadable is what a client gets instead of a response for which there is no room.
// The request has been served.
func unreadable() *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInternalError,
		Message: "Too many unread messages",
		Data:    jsonrpc.ErrorData{Reason: jsonrpc.ReasonOverloaded, Phase: jsonrpc.InFlight},
	}
}
