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
// A [Host] knows its upstreams by name (host.go). Each stream that is attached (attach.go) has a server of its own
// (stream.go): a [process.Server] or a remote session (remote_session.go). Messages pass
// unchanged. The stream only records what is in flight, so that it can clean up when it or the
// server ends (inflight.go).
//
// The restart state of a key outlives its servers (restart.go): it counts failed starts and delays
// the next one.
//
// Clients do not notice which era a server speaks (era.go, stream_era.go). A stream is attached in the client's
// era if the server speaks it, otherwise through the [Bridge]. If the era is unknown, a legacy
// client is first tried in its own era. If the server refuses initialize, or begins no session, or
// if the client is modern, the host sends server/discover. If the server speaks the other era, the
// stream moves there with the messages that the client has sent (kept.go).
//
// Processes of commands that start slowly may be started ahead (spare.go). A stream takes one as its
// server.
//
// The streams of a shared upstream use one server (package shared). The host attaches one stream to
// it, so that a shared server starts, ends and fails as any other. In the modern era, which has no
// sessions, all streams share a process or WebSocket. It ends after a while without streams.
//
// An attached stream has these goroutines: readServer; readStream, but not while a stream in memory is
// idle; readAhead, which reads for readStream until the client says something after the first answer;
// serveMoved, if the stream moves; and one that stops the server. Its process, or its remote session,
// has some of its own. Attach calls over when all of them have ended. Goroutines of shared servers, of
// probes and of streams from [Host.Open] may live until [Host.Stop], which waits for them.
//
// Invariants:
//   - Every end passes through stream.end. The first cause wins. One log line reports it, with the
//     same event as the errors. The end of a remote server is one event for all its sessions
//     (failures.go).
//   - A stream ends after the answer when its server refuses initialize.
//   - The stream is closed before the server is stopped and does not wait for it,
//     but everything that the server wrote before its end is delivered first.
//   - The restart state is updated before the stream is closed, since clients attach again because
//     of the close.
//   - A client of a shared server sees nothing of other clients: a message that cannot be
//     attributed is refused, never guessed.
//   - A probed process is kept if it is modern. Otherwise it is stopped, which does not count as a
//     failure and is logged only at level debug.
//   - A stream moves to the other era at most once, and only if nothing was delivered.
//   - Everything is bounded: a message by Limits, the messages for a remote server by maxBacklog,
//     those for a client of a shared server by a queue, a probe by StartTimeout.
//
// The package interprets messages only as far as closing and sharing need it: it does not route,
// time out calls, translate, or send initialize or server/discover itself.
package upstream
