package frontend

import (
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxWaiting bounds, in bytes, the responses of all clients together that wait to
// be read: a client that does not read holds its own for half a minute, and there
// may be many. It has room for four of the largest at least. A response that finds
// none is replaced by an error.
const maxWaiting = 256 << 20

// An unread counts the bytes that wait to be read. Whoever queues an event adds it,
// whoever takes it off a queue, written or not, gives it back.
type unread struct {
	limit int64
	bytes atomic.Int64
}

func newUnread(l jsonrpc.Limits) *unread {
	return &unread{limit: max(maxWaiting, 4*int64(l.MaxMessage()))}
}

func (u *unread) add(n int)  { u.bytes.Add(int64(n)) }
func (u *unread) give(n int) { u.bytes.Add(-int64(n)) }

// hasRoom reports whether a response may wait. A small one always may, being less
// than its connection costs. What comes at the same time is not counted yet: the
// bound may be exceeded by as many responses as are sent at once.
func (u *unread) hasRoom(n int) bool { return n <= smallBody || u.bytes.Load()+int64(n) <= u.limit }

// unreadable is what a client gets instead of a response for which there is no room.
// The request has been served.
func unreadable() *jsonrpc.Error {
	return &jsonrpc.Error{
		Code:    jsonrpc.CodeInternalError,
		Message: "Too many responses that nobody reads",
		Data:    jsonrpc.ErrorData{Reason: jsonrpc.ReasonOverloaded, Phase: jsonrpc.InFlight},
	}
}
