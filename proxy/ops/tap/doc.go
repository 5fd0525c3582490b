// Package tap shows operators messages as they pass.
//
//	Conn ─► Taps.Conn ─► who uses it
//	             │ a copy of what passes
//	             ▼
//	           Taps ─► Tap: filter, rate, queue ─► Lines ─► one operator
//
// [Taps.Conn] wraps a Conn where messages pass: that of each client's session, and each
// connection of a session to an upstream. While nobody taps it costs one atomic load for
// what comes at once.
//
// A [Tap] never makes a message wait. Its queue is bounded: what finds no room is left out
// and counted, or, in a recording, ends it. Lines are written by who reads the Tap, on his
// goroutine; the package starts none.
//
// A response is shown with the method of its request, and so the wrapped Conn remembers what is
// open, from the first tap on, in no more than maxOpen entries for each way.
package tap
