// Package remote holds sessions with MCP servers elsewhere, each a
// [jsonrpc.Conn]: Streamable HTTP (2025-03-26 to 2025-11-25), HTTP+SSE
// (2024-11-05), and WebSockets; and streams of the modern era (2026-07-28), which
// have no session. [Server.Probe] finds out which era a server speaks.
//
//	                    ┌─ request ────────► call ─► POST ─► exchange ─┐
//	Send ─► session ────┤                                              ├─► Recv
//	                    └─ all the rest ───► talk ─► POST              │
//	                                         listen ◄─ GET ────────────┘
//
// A session is one peer, the session as the server knows it, and another one when
// the server has forgotten it. Requests are posted concurrently; notifications
// and responses one after the other, since they could overtake each other, but for
// cancellations, which others do not wait for. Their order towards requests is kept where it matters: all wait for the answer to
// initialize, then for initialized to be accepted; a cancellation waits until its
// request was written. One for a request that was not written at all takes it
// back. A request that was cancelled, and each that is there at the end, has 500 ms
// for its response before the session is over.
//
// What comes on the response to a request is Related to it. What comes on the
// stream of a GET is not, and on HTTP+SSE nothing is.
//
// # What becomes of a request
//
//   - It gets what the server replied, also when that came with an error status; but a
//     401 or 403 that is about no request says only that we are not let in, and why.
//   - A reply that cannot be used, or a response that is no reply, is the error
//     invalid_response; nothing hangs because of it.
//   - A stream that breaks off is resumed behind its last event; without one, or
//     when that fails, it is the connection-closed error. A request that may have
//     run is never posted again.
//   - A 404 to a session's id says that it did not run: then one new session is
//     made for all who hear so (initialize, initialized, the log level, the
//     subscriptions), and it is posted once more. Other requests of the lost
//     session get the connection-closed error, its questions are cancelled, and
//     list_changed says that something may have.
//   - Anything else is the connection-closed error. Its phase is not_sent exactly
//     if no connection was made that could have carried the request.
//
// If initialize has no answer the session ends: Recv returns the
// [*jsonrpc.ClosedError]. So it does when the stream of HTTP+SSE ends. After 400,
// 404 or 405 to initialize the server is tried as one of HTTP+SSE.
//
// # The modern era
//
//	Send ─► modern ─── request ───► modernCall ─► POST ─► exchange ─► Recv
//	                                    │
//	                                  tools ─► POST tools/list
//
// A request is a POST of its own: what is posted and how its answer is read is the
// same code, with a peer that has no id, is never resumed, and has headers of one
// request alone, which are made of the body as it is posted. Nothing is lost with a
// server that is gone but the requests in flight, so the stream goes on.
//
//   - A cancellation closes the request's connection, or resets its stream of HTTP/2:
//     that is how the server hears of it. It is not posted.
//   - What comes before an answer is Related to its request; frames of a listen
//     carry its id as their subscription, and others are dropped. Requests of the
//     server are dropped.
//   - A request that breaks off gets the connection-closed error, unless it has no
//     effects: then it is posted once more, with an id of our own.
//   - What a tool wants repeated in headers is known to the Server, from all lists
//     that pass and from one made before a call that needs it. After -32020 it is
//     learnt anew and the call posted once more. A tool whose annotations are
//     malformed is taken out of lists.
//   - Listens take no slot of MaxConcurrent.
//
// # Goroutines
//
// Of a session, all waited for by Close: talk, from the first Send, which waits for
// one of each cancellation on its way; one run for each call; listen, or for HTTP+SSE readLegacy; make, while a lost session is
// renewed, which goes on as listen; giveUpSilent for a second after that; and
// answers that Send makes itself until they are received. Dial starts none.
// modern.go, websocket.go and websocket_throttle.go name their own. Probe, and a list
// of tools for a call, run in whoever asks.
//
// Invariants:
//   - Whoever takes a call out of session.calls answers it, and a cancelled one is
//     not answered.
//   - Every queue and body is bounded: 16 messages for Recv, then streams wait; 64
//     notifications and responses, then Send waits; 32 cancellations on their way,
//     then the rest waits, or is dropped if the server takes none; 4096 calls, then one gets the
//     error overloaded; an event or a JSON body by Limits, comments of an event
//     stream cost nothing; compressed bodies are refused. Calls beyond
//     MaxConcurrent wait unsent. Of the modern era: 16 notifications on their way,
//     then Send waits; what is known of 8192 tools in 4 MiB, then one makes room
//     for another.
//   - No lock is held across I/O, but for the reading of header files, which
//     everybody needs who would wait for it.
//   - Each failure of many requests at once is one line of the log and one event, and
//     so is a server that is gone from under streams outside of calls; header values
//     and URLs stand in none. The end of a session is its host's to tell.
//
// The package does not look into messages, except for the version and the
// capabilities in the reply to initialize, what a new session must be told again,
// and in the modern era what headers repeat, lists of tools, and the subscription
// of a listen's frames. It does not time out requests, nor know of other upstreams.
package remote
