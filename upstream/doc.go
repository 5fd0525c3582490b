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
// A [Host] knows its upstreams by name (host.go). Each attached stream has a server of its own
// (stream.go): a [process.Server] or a remote session (remote_session.go). Messages pass
// unchanged. The stream only records what is in flight, so that it can clean up when it or the
// server ends (inflight.go).
//
// The restart state of a key outlives its servers (restart.go): it counts failed starts and delays
// the next one.
//
// Clients do not notice which era a server speaks (era.go). A stream is attached in the client's era
// if the server speaks that, otherwise through the [Bridge]. An unknown era is found out: a legacy
// client is first tried in its own era. If the server refuses, or begins no session, or if the
// client is modern, the server is asked server/discover. If it speaks the other era, the stream
// moves there with what the client has sent (kept.go).
//
// The streams of a shared upstream use one server (package shared), to which the host attaches one
// stream, so that a shared server starts, ends and fails as any other. In the modern era, which
// has no sessions, all streams of a process or WebSocket share it. It ends when it has had no
// streams for a while.
//
// Goroutines of an attached stream: readStream (the caller's of Attach) and readServer; before the
// first answer also readAhead, which reads in place of readStream, and serveMoved; those of the
// process, or of a remote session and its Conn; and stop, the steps of the end. Attach waits for all
// of them. Those of shared servers, of probes, and of streams from [Host.Open] may live until
// [Host.Stop], which waits for them.
//
// Invariants:
//   - Every end passes through stream.end. The first cause wins, and one log line reports it, with
//     the event that the errors have. The end of a remote server is one event for all its sessions
//     (failures.go).
//   - A server that refuses initialize ends its stream after the answer.
//   - The stream is closed before the server is stopped and does not wait for it,
//     but everything that the server wrote before its end is delivered first.
//   - The restart state is up to date before the stream is closed, so that a client that attaches
//     again because of the close finds it so.
//   - A client of a shared server sees nothing of another's: a message that cannot be
//     attributed is refused, never guessed.
//   - A process that is probed is kept if it is modern. Otherwise it is stopped, does not count as a
//     failure, and is logged at level debug only.
//   - A stream moves to the other era at most once, and only if nothing was delivered.
//   - Everything is bounded: a message by Limits, the messages for a remote server by maxBacklog,
//     those for a client of a shared server by a queue, a probe by StartTimeout.
//
// The package interprets messages only as far as closing and sharing need it: it does not route,
// time out calls, translate, or send initialize or server/discover itself.
package upstream
