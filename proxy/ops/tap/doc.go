// Package tap shows messages to operators as they pass.
//
//	Conn ─► Taps.Conn ─► session
//	             │ a copy of what passes
//	             ▼
//	           Taps ─► Tap: filter, rate, queue ─► Lines ─► one operator
//
// [Taps.Conn] wraps the Conn of each client's session, and each connection of a session to an upstream. Without an open
// Tap that costs one atomic load for each batch.
//
// A [Tap] never delays a message. Its queue is bounded: a line that does not fit is dropped and counted, or ends a
// recording.
// The reader of a Tap writes the lines on its own goroutine; the package starts none.
//
// A response is shown with the method of its request. For that the wrapped Conn remembers open requests from the first
// tap on, at most maxOpen each way.
package tap
