// Package remote holds sessions with MCP servers elsewhere, each a
// [jsonrpc.Conn]: Streamable HTTP (2025-03-26 to 2025-11-25), HTTP+SSE
// (2024-11-05), and WebSockets; and streams of the modern era (2026-07-28), which
// have no session. [Server.Probe] finds out which era a server speaks.
//
//	                    ┌─ request ──────► call ────► POST ─► exchange ─┐
//	Send ─► session ────┤                                               ├─► Recv
//	                    └─ all the rest ─► outbox ──► POST              │
//	                                       listener ◄─ GET ─────────────┘
//
// A session has one endpoint: where messages are posted, and the session that the
// server has there. When the server has forgotten that, it has another one. Requests
// are posted concurrently. Notifications and responses are posted one after the other,
// since they could overtake each other. Cancellations are posted beside them. Their
// order towards requests is kept where it matters: all wait for the answer to
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
//   - It gets what the server replied, also when that came with an error status. But a
//     401 or 403 that is about no request says only that our credentials are refused.
//   - A reply that cannot be used, or a response that is no reply, is the error
//     invalid_response; nothing hangs because of it.
//   - A stream that breaks off is resumed behind its last event; without one, or
//     when that fails, it is the connection-closed error. A request that may have
//     run is never posted again.
//   - A 404 to a session's id says that the request did not run. Then one new session
//     is made for all who hear so (initialize, initialized, the log level, the
//     subscriptions), and the request is posted once more. Other requests of the lost
//     session get the connection-closed error, the server's requests are cancelled,
//     and list_changed says that something may have changed.
//   - A 401 or 403 says that the request did not run, too. With Credentials it is posted
//     again, a few times at most, if they have become better. So is any other request. While
//     it waits for them a cancellation takes it back, and the server hears of neither.
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
// A request is a POST of its own. It is posted, and its answer is read, by the same
// code, but it is never resumed, and it has headers that repeat what is in its body.
// Nothing is lost with a server that is gone but the requests in flight, so the stream
// goes on.
//
//   - A cancellation closes the request's connection, or resets its stream of HTTP/2:
//     that is how the server hears of it. It is not posted.
//   - What comes before an answer is Related to its request. Messages of a subscription
//     carry its id, and others are dropped. Requests of the server are dropped.
//   - A request that breaks off gets the connection-closed error, unless it has no
//     effects: then it is posted once more, with an id of our own.
//   - What a tool wants repeated in headers is known to the Server, from all lists
//     that pass and from one made before a call that needs it. After -32020 it is
//     learnt anew and the call posted once more. A tool whose annotations are
//     malformed is taken out of lists.
//   - Subscriptions take no slot of MaxConcurrent.
//
// # Files
//
// References run down this list, and each of these is a type with its own state.
//
//	server       what a program uses; what its sessions share
//	modern       streams of the modern era · mirror: what tools want in headers
//	era          which era a server speaks
//	websocket    sessions on a WebSocket
//	session      sessions of the legacy era, of which each of these is a part:
//	             calls, outbox, listener, handshake, sse (HTTP+SSE), renewal
//	exchange     a POST and its response, until the reply · events: of its stream
//	transport    requests of HTTP to a server · connect: its connections
//	credentials  what proves to it who we are
//	life         what ends, and when, and what waits for Recv
//	headers, failurelog, failure
//
// # Goroutines
//
// Of a session, all waited for by Close: the outbox's run, from the first message,
// which waits for one of each cancellation on its way; one run for each call; the
// listener's run, or the reader of the stream of HTTP+SSE; replace, while a lost session
// is renewed; one that gives up silent calls a second after that; and answers that Send
// makes itself until they are received. Dial starts none. modern.go names
// their own. Probe, and a list of tools for a call, run in whoever asks.
//
// Invariants:
//   - Whoever takes a call out of its Table answers it, and a cancelled one is
//     not answered.
//   - Every queue and body is bounded: 16 messages for Recv, then streams wait; 64
//     notifications and responses, then Send waits; 32 cancellations on their way,
//     then the rest waits, or is dropped if the server takes none; 4096 calls, then one
//     gets the error overloaded; an event or a JSON body by Limits, comments of an event
//     stream cost nothing; compressed bodies are refused. Calls beyond
//     MaxConcurrent wait unsent. Of the modern era: 16 notifications on their way,
//     then Send waits; what is known of 8192 tools in 4 MiB, then one makes room
//     for another.
//   - No lock is held across I/O, but for the reading of header files, which
//     everybody needs who would wait for it.
//   - Credentials, and headers that are configured, go to the origin of the configured URL
//     only, whatever the server redirects to or names.
//   - Each failure of many requests at once is one line of the log and one event, and
//     so is a server that is gone from under streams outside of calls. Header values
//     and URLs are in none. The end of a session is its host's to tell.
//
// The package does not look into messages, except for the version and the
// capabilities in the reply to initialize, what a new session must be told again,
// and in the modern era what headers repeat, lists of tools, and the id of a
// subscription. It does not time out requests, nor know of other upstreams.
package remote
