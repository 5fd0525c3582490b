// Package remote connects to MCP servers elsewhere. A legacy session is a
// [jsonrpc.Conn] over Streamable HTTP (2025-03-26 to 2025-11-25), HTTP+SSE
// (2024-11-05) or a WebSocket. So is a stream of the modern era (2026-07-28), which
// has no session. [Server.Probe] finds out which era a server speaks.
//
//	                    ┌─ request ──────► call ────► POST ─► exchange ─┐
//	Send ─► session ────┤                                               ├─► Recv
//	                    └─ all the rest ─► outbox ──► POST              │
//	                                       listener ◄─ GET ─────────────┘
//
// A session has one endpoint at a time: the URL that messages are posted to, and the
// server's session there. If the server forgets that session, a new endpoint replaces
// it. Calls are posted concurrently. Notifications and responses are posted one after
// the other, since they could overtake each other, and cancellations beside them but behind
// the responses that were sent before. Order
// relative to calls is kept where it matters: everything waits for the answer to
// initialize, then until the server has accepted initialized. The GET is sent before
// initialized, which waits for its answer for 250 ms at most, so that what the server sends
// in reaction to initialized has a stream. A server that refuses the GET then gets another
// one after initialized. A cancellation waits until its call has been written, and for
// 100 ms at most until the server has begun to answer that POST. If the call has not been
// written at all, it is withdrawn instead. A cancelled call, and each call in flight when
// the session ends, has 500 ms for its response.
//
// A message on the response to a call is Related to that call. A message on the stream
// of a GET, and every message on HTTP+SSE, is not.
//
// # How a call ends
//
//   - The server's reply is the answer, also if it came with an error status. But a
//     401 or 403 whose body names no call means only that our credentials were rejected.
//   - If the reply cannot be used, or the response has none, the answer is the error
//     invalid_response, so that no call hangs.
//   - A stream that breaks off is resumed after its last event. If it had no event id, or
//     resuming fails, the answer is the connection-closed error. A call that may have
//     run is never posted again.
//   - A 404 to the session id means that the call did not run, unless its body is the answer
//     to the call. So does a 400 that speaks of the session. Then one new session
//     (initialize, initialized, the log level, the subscriptions) is made for all calls
//     that got such a status, and each is posted once more. Other calls of the lost
//     session get the connection-closed error, the server's requests are cancelled,
//     and list_changed notifications tell the client that something may have changed.
//   - A 401 or 403 means that the call did not run, too. With Credentials it is posted
//     again, a few times at most, while they improve. This holds for all HTTP requests.
//     A cancellation meanwhile withdraws the call, and the server sees neither.
//   - In all other cases the answer is the connection-closed error. Its phase is not_sent
//     exactly if no connection was made that could have carried the call.
//
// If initialize gets no answer, the session ends: Recv returns the
// [*jsonrpc.ClosedError]. The session also ends with the stream of HTTP+SSE, and with a 404
// to a call there. After 400, 404 or 405 to initialize, the session falls back to HTTP+SSE.
//
// # The modern era
//
//	Send ─► modern ─── request ───► modernCall ─► POST ─► exchange ─► Recv
//	                                    │
//	                                  tools ─► POST tools/list
//
// Each call is a POST of its own. The same code posts it and reads its answer, but
// its stream is never resumed, and its headers repeat parts of its body. If the server
// goes away, only the calls in flight are lost, and the Conn stays open.
//
//   - A cancellation is not posted: it closes the call's connection, or resets its HTTP/2
//     stream, which the server takes as the cancellation.
//   - Messages before an answer are Related to its call. On a subscription, messages that
//     carry another subscription's id are dropped. So are requests of the server.
//   - A call whose stream breaks off gets the connection-closed error, unless it has no
//     effects: then it is posted once more, with an id of our own.
//   - The Server remembers which arguments a tool wants repeated in headers, from all lists
//     that pass, from Listed, and from a list that it makes before a call of a tool that
//     neither has. After
//     -32020 it lists again and posts the call once more. Tools with malformed annotations
//     are removed from lists.
//   - Subscriptions take no slot of MaxConcurrent.
//
// # Files
//
// References run down this list. Each file has a type with its own state.
//
//	server       the exported Server, and what its sessions share
//	modern       streams of the modern era · mirror: arguments repeated in headers
//	era          finds the era of a server
//	websocket    sessions on a WebSocket
//	session      sessions of the legacy era, which are made of
//	             calls, outbox, listener, handshake, sse (HTTP+SSE), renewal
//	exchange     a POST and its response, until the reply · events: its event stream
//	transport    HTTP requests to a server · connect: the connections
//	credentials  authenticates to the server
//	life         the end of a session, and the queue for Recv
//	headers, failurelog, failure
//
// # Goroutines
//
// Close waits for all goroutines of a session: the outbox's run, from the first message,
// and one for each cancellation; one run for each call; the listener's
// run, or the reader of the HTTP+SSE stream; replace, while a lost session is renewed,
// and one that fails silent calls a second later; and one for each error that Send
// answers with, until Recv takes it. Dial starts none. modern.go names its own. Probe,
// and a list of tools for a call, run in the caller's goroutine.
//
// Invariants:
//   - Whoever takes a call out of its Table answers it. A cancelled call is not answered.
//   - Every queue and body is bounded: 16 messages for Recv, then streams wait; 256 KiB
//     of notifications and responses, then Send waits; 32 cancellations being posted,
//     then further ones wait beside it, or are dropped if the server accepts none; 4096 calls, then
//     the error overloaded; an event or a JSON body by Limits, without counting comments;
//     compressed bodies are refused. Calls beyond MaxConcurrent wait unsent. In the modern
//     era: 16 notifications being posted, then Send waits; 8192 tools or 4 MiB, then one
//     tool evicts another.
//   - No lock is held across I/O, except while header files are read: every waiter needs
//     the result.
//   - Credentials, configured headers and those of clients go only to the origin of the configured URL,
//     wherever the server redirects to.
//   - When many calls fail at once, there is one log line and one event. The same holds
//     when the server goes away while only streams outside calls are open. Neither has
//     header values or URLs. The host logs the end of a session.
//
// The package reads of messages only the version and the capabilities in the reply to
// initialize, and what a new session must be told again. In the modern era it also reads
// what headers repeat, lists of tools, and subscription ids. It does not time out calls,
// nor know other upstreams.
package remote
