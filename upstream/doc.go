// Package upstream is the host: it starts and watches the servers behind the
// proxy, and attaches streams to them.
//
//	            Attach                        process group
//	stream ───► readStream ──► flight ──► stdin ──► ┌────────┐
//	  (Conn) ◄─ readStdout ◄── flight ◄── stdout ◄─ │ server │──► grandchildren
//	            readStderr ──► log, last lines ◄─── └────────┘
//	                      claim (by key: failures, back-off)
//
// A [Host] knows its upstreams by name. Each stream that is attached to one
// belongs to a claim, the state of one key, which outlives the stream: that is
// where start failures are counted and where a next start has to wait. The
// messages pass unchanged; the host only remembers what is open, so that it can
// clear up when the stream or the server ends (flight.go).
//
// Goroutines of an attached stream: readStream (the caller's of Attach; it
// writes stdin itself), readStdout (it writes the stream itself), readStderr and
// the process's watch; for moments also stdin's drain, while the pipe is full,
// and stop, the three steps of the end. Attach waits for them all.
//
// Invariants:
//   - Every end passes through stream.end; the first cause wins, and one log
//     line tells it.
//   - The stream is closed before the server is stopped and never waits for it,
//     but what a server wrote before it ended is delivered first.
//   - The claim is up to date before the stream is closed: whoever attaches
//     again because of the close finds it so.
//   - A process is in a group of its own. The group is killed after every end,
//     a clean one too, before its leader is reaped (on Linux), so that the group
//     id cannot be somebody else's.
//   - Everything is bounded: a message by Limits, what a full stdin pipe holds
//     up by maxBacklog, the log of stderr by a rate, the last words after an exit
//     by 250 ms of silence.
//
// A grandchild that leaves the process group (setsid) is out of reach. The
// package does not know what messages mean beyond what closing needs: it does
// not route, rewrite, time out calls, or speak initialize itself.
package upstream
