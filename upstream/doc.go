// Package upstream is the host: it starts and watches the servers behind the
// proxy, and attaches streams to them.
//
//	            Attach                    server
//	stream ───► readStream ─► flight ─► ┌ local: a process group
//	  (Conn) ◄─ readServer ◄─ flight ◄─ └ remote: a session that Dial begins
//
//	stream ───► ┐
//	stream ───► ├ shared ── Pipe ─► stream ─► server
//	stream ───► ┘
//
// A [Host] knows its upstreams by name. Each stream that is attached to one
// belongs to a claim, the state of one key, which outlives the stream: that is
// where start failures are counted and where a next start has to wait. The
// messages pass unchanged; the host only remembers what is open, so that it can
// clear up when the stream or the server ends (flight.go).
//
// A stream has a server of its own (server.go): a process (local.go, process.go)
// or a remote session (remote.go). Many streams have one together if the upstream
// is shared (shared.go): then ids and progress tokens are mapped, and between the
// streams and the server stands one stream of that server's own, so that a shared
// server starts, ends and fails as any other.
//
// Goroutines of an attached stream: readStream (the caller's of Attach) and
// readServer; of a process, readStderr and watch, for moments also stdin's drain,
// while the pipe is full; of a remote session those of its Conn; and stop, the
// steps of the end. Attach waits for them all. Those of a shared server live until
// [Host.Stop], which waits for them.
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
//   - A client of a shared server sees nothing of another's: what cannot be
//     attributed is refused, never guessed.
//   - Everything is bounded: a message by Limits, what a full stdin pipe holds
//     up by maxBacklog, the log of stderr by a rate, the last words after an exit
//     by 250 ms of silence, what waits for a client of a shared server by a queue.
//
// A grandchild that leaves the process group (setsid) is out of reach. The
// package does not know what messages mean beyond what closing and sharing need:
// it does not route, time out calls, or speak initialize itself, but for a shared
// server.
package upstream
