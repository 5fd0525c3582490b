// Package frontend is how clients reach the proxy. It turns stdin and stdout, a
// WebSocket, or HTTP into a [jsonrpc.Conn] and hands that to a Serve function.
//
//	stdin, stdout ────────────────────────────► Stdio ─────────┐
//	                                                           │
//	/ws /ws/NAME ────┐                    ┌► wsconn.Conn ──────┤
//	/sse /message ───┼─► Guard ─► HTTP ───┼► session ──────────┼─Conn─► Serve
//	/mcp /mcp/NAME ──┘                    ├► session ──────────┘
//	                                      └► principalConn ─────Conn─► ServePrincipal
//
// On stdio and on a WebSocket the connection is the session. Requests over HTTP have
// no connection in common. In the legacy era a header names their session; in the
// modern era they only have the same principal. Each POST says of which era it is
// (headers.go).
//
// Legacy: each message to the client must find the response that carries it.
//
//	POST ─► Queue ─► Recv ──┐               Send ─┬─ response ──► POST that asked
//	                        └─►  Serve  ──────┘   ├─ Related ───► that POST's stream
//	                                              └─ other ─────► standalone stream
//
// A POST is answered with plain JSON if its responses are there within 50 ms and
// nothing comes before them, else with server-sent events. A stream of events outlives
// its connection: a client that was cut off resumes it with a GET and Last-Event-ID.
// So to drop the connection of a POST is not to cancel. DELETE, expiry and the end of
// Serve end a session, and then every request that still waits gets the one error. A
// session of HTTP+SSE (2024-11-05) has one stream, and ends with it.
//
// Modern: a POST is checked against its headers, but for those that repeat arguments;
// they go with the message to where the tool is known. The request gets an id of its
// own and travels on the connection of its principal and path.
//
//	POST ─► checks ─► waiter ─► Queue ─► Recv ──┐            Send ─┬─ id ──────► waiter ─► POST
//	                                            └► ServePrincipal ─┘  Related,
//	                                                                  subscription
//
// JSON and events are as above, but the only streams are those of POSTs, and nothing
// can be resumed: a POST that is dropped is a request that is cancelled.
//
// The Guard asks an Identifier who sends a request, and each message says it
// (Message.From). A session, an event and a connection are found by their principal
// alone. When the proof of a client ends, so do the WebSocket, the streams that GETs
// have opened, and the listens that it began.
//
// From the top down: http.go has the configuration and the paths; streamable.go,
// httpsse.go and modern.go handle requests; sessions.go is where sessions begin and
// end; session.go with streams.go, and principal.go, are the Conns; guard.go and
// identifier.go say who a client is; headers.go, body.go,
// events.go and reply.go read and write HTTP; socket.go is a WebSocket. backlog.go and slots.go
// bound what messages take.
//
// Goroutines: one runs Serve for each HTTP session and each WebSocket, one runs
// ServePrincipal for each principal's connection. Responses are written by the
// goroutines of net/http that handle the requests. interrupt.go names those of Stdio.
//
// Invariants:
//   - Whoever takes a request out of a Table answers it: Send, a cancel, or the end.
//     So each POST gets one ending, and late ones none. A modern POST whose client is
//     gone takes its own request out.
//   - A message goes out on one stream only, in the order of Send.
//   - Each queue is bounded. While a connected client does not read its stream,
//     Send to a session waits, for at most 30 s a write; then the client counts as
//     cut off. What waits for a client that is cut off pushes out the oldest, 256
//     events or 4 MiB a session; a question pushed out is answered with an error, so
//     that no upstream waits for a client that never saw it. Send to a principal's
//     connection never waits, since others use it: a request with more than 4 MiB of
//     unread notifications is answered with an error and cancelled.
//   - Whatever waits to be read counts for its principal (backlog.go), on all transports and
//     in the queue of a session. Beyond its share what is kept for clients that may resume goes
//     first, then its largest stream ends. Nothing of another principal's does.
//   - Large messages have places and a time limit (slots.go), in bodies and on WebSockets.
//   - There are never two connections of one principal on one path.
//   - session.mu guards its streams too, principalConn.mu its waiters. Neither is held
//     across I/O.
//
// The package does not look into messages, except for the id and method of
// requests, the version in initialize, what notifications/cancelled cancels, and
// what the modern era repeats in headers.
package frontend
