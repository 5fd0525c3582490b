package frontend

import (
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxWaiting bounds, in bytes, the responses of all clients together that wait to
// be read: a client that does not read holds its own for half a minute, and there
// may be many. It has room for four of the largest at least. A response that finds
// no room is replaced by an error.
//
// One principal alone may use all of it up. As much again is there for others, an
// eighth of it for each.
const maxWaiting = 256 << 20

// An unread counts the bytes of events that wait to be read, in shares.
type unread struct {
	limit int64
	bytes atomic.Int64

	mu     sync.Mutex // guards shares, and how many use each
	shares map[identity.Principal]*share
}

func newUnread(l jsonrpc.Limits) *unread {
	return &unread{limit: max(maxWaiting, 4*int64(l.MaxMessage())), shares: make(map[identity.Principal]*share)}
}

// A share is the part of one principal. What begins to wait is added, what was written or
// dropped is taken off. Nil counts nothing.
type share struct {
	all   *unread
	bytes atomic.Int64
	users int
}

// join returns the share of a principal, for somebody who leaves it in the end. It may
// be used after that, too.
func (u *unread) join(who identity.Principal) *share {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.shares[who]
	if s == nil {
		s = &share{all: u}
		u.shares[who] = s
	}
	s.users++
	return s
}

func (u *unread) leave(who identity.Principal) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.shares[who]
	if s.users--; s.users == 0 {
		delete(u.shares, who)
	}
}

func (s *share) add(n int) {
	if s != nil {
		s.all.bytes.Add(int64(n))
		s.bytes.Add(int64(n))
	}
}

// hasRoom reports whether a response may wait. A small one always may: its connection
// costs more. Responses that are sent at the same moment do not see each other, so
// together they may exceed the bound.
func (s *share) hasRoom(n int) bool {
	if s == nil || n <= smallBody {
		return true
	}
	all, limit := s.all.bytes.Load()+int64(n), s.all.limit
	return all <= limit || all <= 2*limit && s.bytes.Load()+int64(n) <= limit/8
}

// unreadable is what a client gets instead of a response for which there is no room.
// The request has been served.
func unreadable() *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInternalError,
		Message: "Too many responses that nobody reads",
		Data:    jsonrpc.ErrorData{Reason: jsonrpc.ReasonOverloaded, Phase: jsonrpc.InFlight},
	}
}
