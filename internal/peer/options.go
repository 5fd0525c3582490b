package peer

import (
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Options are what its owner has to say about a Peer. The functions are called without
// locks; those that are nil do nothing.
type Options struct {
	Name     string       // of the upstream that the other side is, for errors; "" for a client
	Requests int          // of the other side at a time; those beyond are refused. Zero: no bound
	Room     jsonrpc.Room // for what waits to be sent

	// Full makes the Room strict: a call that finds none is refused, everything else is
	// lost, and Full is told of it. If it is nil nothing is refused, and who makes others
	// send waits for room before; see [Peer.Wait].
	Full func(m *jsonrpc.Message)

	// Class tells what [Peer.Hold] may keep back. It is called with the lock held.
	Class func(m *jsonrpc.Message) jsonrpc.Class

	// Ready is called before each message is handled. It waits until what that causes has
	// room where it goes.
	Ready func()

	// Request handles a request. It must not wait for an answer to anything.
	Request func(r *Request)

	// Notified handles a notification, but not the progress of calls and the cancellation
	// of requests that are open. of is the call that it belongs to; if that is nil though
	// m.Related is not zero, it belongs to a call that is over.
	Notified func(m *jsonrpc.Message, of *Call)

	// Apart has the elements of an array be handled as if they had come alone.
	Apart bool

	// Array is asked whether an array of messages may come. If it is nil they may.
	Array func(elements []*jsonrpc.Message) *jsonrpc.Error

	// Begin is called with a request before it is entered, to give it its Value.
	Begin func(r *Request)

	// Cancelled is told of a request that the other side cancels, as [Request.OnCancel] says.
	// If it is nil, and the request has no OnCancel, the call is cancelled that it was
	// forwarded as.
	Cancelled func(r *Request, m *jsonrpc.Message, at jsonrpc.Span)

	// Progress gets the progress of calls that have no function of their own for it.
	Progress func(c *Call, m *jsonrpc.Message, at jsonrpc.Span)

	// Refuse returns what is said to a request that is not entered, nil for nothing. Why is
	// [jsonrpc.ErrInUse], [jsonrpc.ErrFull] or [ErrDraining], or the end of the Peer: then
	// nobody is told anything, and answer is nil. If Refuse is nil it is answer.
	Refuse func(r *Request, why error, answer *jsonrpc.Message) *jsonrpc.Message

	Watch Watcher // of calls; nil for none

	// Minted holds the id of the newest call. Several Peers, one after the other, may have it
	// in common, so that no id means two calls. If it is nil the Peer has its own.
	Minted *atomic.Int64

	// OneWay is how long Recv has to say why Send fails. Zero means 1 s, less not at all.
	OneWay time.Duration

	Invalid    func(bad *jsonrpc.InvalidError)      // a message that cannot be used; who waits for it was told
	Dropped    func(why string, m *jsonrpc.Message) // a response that nobody waits for
	HalfClosed func()                               // the other side will send no more; nil: that is the end
}

// A Watcher is told of calls.
type Watcher interface {
	// Sent is told that the write of a call begins. It is called with the lock held.
	Sent(c *Call)

	// Over is told that a call is over which was sent: by its response, by the end of the
	// Peer, or, if both are nil, because it was taken or cancelled.
	Over(c *Call, answer *jsonrpc.Message, lost *Lost)
}

// DropDuplicates is an [Options.Refuse] that says nothing to a request whose id is in use: what it
// says would settle the first one.
func DropDuplicates(_ *Request, why error, answer *jsonrpc.Message) *jsonrpc.Message {
	if why == jsonrpc.ErrInUse {
		return nil
	}
	return answer
}
