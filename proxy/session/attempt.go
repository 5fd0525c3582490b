package session

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// An attempt is one stream from its opening to its end. In the modern era, which has no initialize,
// it is ready when it is open.
type attempt struct {
	peer    *peer.Peer    // on the stream; its queue holds messages before that is open
	started chan struct{} // closed when initialize was answered, or the stream ended before
	first   jsonrpc.Room  // unbounded room for the handshake
	closed  chan struct{} // closed when its stream is
	after   *attempt      // that was idle, and whose stream is closed first; nil for none
	entered atomic.Int32  // goroutines that are about to send something; incremented with upstreamConn.mu held

	// Guarded by upstreamConn.mu.
	conn    jsonrpc.Conn // nil until the stream is open
	ready   bool         // initialize was answered
	heard   bool         // the upstream has answered anything
	counted bool         // a client waits or has waited for its start
	ended   bool
	rests   bool                 // ended because it was idle
	own     *jsonrpc.ClosedError // the end that this side chose; nil: that of Recv
	err     *jsonrpc.Error       // why it ended before it was ready
	look    *time.Timer          // calls lookAt; nil before it is ready, and if it never rests
	busy    bool                 // it was busy at the last look
}

func (a *attempt) leave() { a.entered.Add(-1) }

// toldAs returns the end of a for clients. end is the end of its stream. If this side chose its end
// before the host did, the event is this side's.
func (a *attempt) toldAs(end *jsonrpc.ClosedError) *jsonrpc.ClosedError {
	if a.own != nil {
		own := *a.own
		own.Delivered, own.Event = end.Delivered, cmp.Or(own.Event, end.Event)
		if own.Cause == end.Cause { // the host may know more about it
			own.Says = cmp.Or(own.Says, end.Says)
		}
		end = &own
	}
	end.Event = cmp.Or(end.Event, jsonrpc.NewEvent()) // older hosts send none
	return end
}

// Classes of messages that may be held back from an upstream.
const (
	afterInitialize jsonrpc.Class = 1 << iota // held until the answer to initialize
	requests                                  // not sent when the stream is hung up
)

func classOf(m *jsonrpc.Message) jsonrpc.Class {
	switch {
	case m.IsResponse(), m.Method == mcp.MethodInitialize, m.Method == mcp.MethodInitialized:
		return 0
	case m.IsRequest():
		return afterInitialize | requests
	}
	return afterInitialize
}

// A streamState is the state of an upstream connection at one time.
type streamState struct {
	lists.State
	attempt *attempt // the last one, nil for none
	dialled bool     // there is a stream
	reached bool     // the last completed dial reached the host, whatever dials now
	rests   bool
}

// lastWords bounds the last writes to an upstream.
const lastWords = 250 * time.Millisecond
