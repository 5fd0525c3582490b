package peer

import (
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Options configure a Peer. The functions are called without locks held, unless they say otherwise.
// Those that are nil do nothing.
type Options struct {
	Name     string       // of the upstream at the other side, for errors; "" for a client
	Requests int          // bound on open requests of the other side; more are refused. Zero: no bound
	Room     jsonrpc.Room // for messages to send

	// Full makes the Room strict: a call that finds no room is refused, any other message is
	// dropped and passed to Full. If it is nil nothing is refused, and code that causes messages
	// waits for room first; see [Peer.Wait].
	Full func(m *jsonrpc.Message)

	// Class returns the class of a message for [Peer.Hold]. It is called with the lock held.
	Class func(m *jsonrpc.Message) jsonrpc.Class

	// Ready is called before each message is handled. It waits until there is room for the messages
	// that this will cause. If wait is false, it returns false instead of waiting.
	Ready func(wait bool) bool

	// Request handles a request. It must not wait for any answer.
	Request func(r *Request)

	// Notified handles a notification, except for progress of open calls and cancellations of open
	// requests. of is the call that it belongs to. If of is nil but m.Related is not zero, it
	// belongs to a call that is over.
	Notified func(m *jsonrpc.Message, of *Call)

	// Apart makes the Peer handle the elements of an array as if they had come alone.
	Apart bool

	// Array decides whether an array of messages is accepted. If it is nil all are.
	Array func(elements []*jsonrpc.Message) *jsonrpc.Error

	// Begin is called with a request before it is entered, to set its Value.
	Begin func(r *Request)

	// Cancelled is called when the other side cancels a request without an OnCancel, or when the
	// Peer ends, with the arguments of [Request.OnCancel]. If it is nil, the Peer cancels the call
	// as which the request was forwarded.
	Cancelled func(r *Request, m *jsonrpc.Message, at jsonrpc.Span)

	// Progress handles the progress of calls whose own Progress is nil.
	Progress func(c *Call, m *jsonrpc.Message, at jsonrpc.Span)

	// Refuse returns the answer to a request that is not entered, nil for none. why is
	// [jsonrpc.ErrInUse], [jsonrpc.ErrFull], [ErrDraining] or the end of the Peer. In the last case
	// nothing is sent, and answer is nil. If Refuse is nil, answer is sent.
	Refuse func(r *Request, why error, answer *jsonrpc.Message) *jsonrpc.Message

	// Sent is called with the lock held when the write of a call begins.
	Sent func(c *Call)

	// Over is called when a sent call is over: with its response, or with the end of the Peer, or
	// with neither if it was taken or cancelled.
	Over func(c *Call, answer *jsonrpc.Message, lost *Lost)

	// Minted holds the id of the newest call. Consecutive Peers may share it, so that no id is used
	// for two calls. If it is nil the Peer has its own.
	Minted *atomic.Int64

	// OneWay is how long Recv may take to return the cause after Send has failed. Zero means 1 s,
	// less than zero no time.
	OneWay time.Duration

	// Invalid is called with an unusable message, after the call that it answers has been settled. It
	// returns what the other side is told; nil for nothing.
	Invalid func(bad *jsonrpc.InvalidError) *jsonrpc.Message

	Dropped    func(m *jsonrpc.Message) // a response that answers no open call
	HalfClosed func()                   // the other side will send no more; nil: that is the end
}

// DropDuplicates is an [Options.Refuse] that leaves a request whose id is in use unanswered,
// because an answer would settle the first request.
func DropDuplicates(_ *Request, why error, answer *jsonrpc.Message) *jsonrpc.Message {
	if why == jsonrpc.ErrInUse {
		return nil
	}
	return answer
}
