// Package upstream is the host: it starts and watches the servers behind the
// proxy, and attaches streams to them.
//
//	            Attach                      server
//	stream ───► readStream ─► inFlight ─► ┌ a process group
//	  (Conn) ◄─ readServer ◄─ inFlight ◄─ └ a session that Dial begins
//
//	stream ───► ┐
//	stream ───► ├ shared ── Pipe ─► stream ─► server
//	stream ───► ┘
//
//	stream ───► Bridge ── Open ─► stream ─► server (of the other era)
//
// A [Host] knows its upstreams by name (host.go). Each stream that is attached to one
// has a server of its own (stream.go): a [process.Server] or a remote session
// (remote_session.go). The messages pass unchanged. The stream only notes what is in flight, so
// that it can clear up when it ends or the server does (inflight.go).
//
// Servers come and go. What outlives them is the restart state of their key
// (restart.go): there start failures are counted, and a next start has to wait.
//
// A client does not hear which era a server speaks (era.go). It is attached in its
// own if the server speaks that, else left to the [Bridge]. What is not known is
// found out: a legacy client is tried in its own era. Only after a refusal, when the
// server begins no session, or for a modern client, the server is asked
// server/discover. If the answer is the other era, the stream moves, with what the client
// has sent (kept.go).
//
// Many streams have one server together if the upstream is shared (package shared).
// Between them and the server stands one stream of that server's own, so that a shared
// server starts, ends and fails as any other. In the modern era, which has no sessions,
// all streams of a process or WebSocket have it together. It ends when it has been
// without any for a while.
//
// Goroutines of an attached stream: readStream (the caller's of Attach) and
// readServer; until something was answered, readAhead, which reads in place of readStream,
// and serveMoved; those of the process, or of a remote session its write and those of
// its Conn; and stop, the steps of the end. Attach waits for them all. Those of a
// server that is shared, or asked for its era, and of streams from [Host.Open], may
// live until [Host.Stop], which waits for them.
//
// Invariants:
//   - Every end passes through stream.end. The first cause wins, and one log
//     line tells it, with the event that the errors have. The end of a remote server
//     is one for all its sessions (failures.go).
//   - A server that refuses initialize ends its stream with that, behind the answer.
//   - The stream is closed before the server is stopped and never waits for it,
//     but what a server wrote before it ended is delivered first.
//   - The restart state is up to date before the stream is closed: whoever attaches
//     again because of the close finds it so.
//   - A client of a shared server sees nothing of another's: what cannot be
//     attributed is refused, never guessed.
//   - A process that is asked for its era is kept if it is modern. Else it is thrown
//     away, is no failure, and says nothing to the log but at the level of debug.
//   - A stream moves to the other era at most once, and only if nothing of it was delivered.
//   - Everything is bounded: a message by Limits, what waits for a remote server by
//     maxBacklog, what waits for a client of a shared server by a queue, a probe by
//     StartTimeout.
//
// The package does not know what messages mean beyond what closing and sharing need:
// it does not route, time out calls, translate, or speak initialize or server/discover
// itself.
package upstream
