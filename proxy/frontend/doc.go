// Package frontend connects clients on HTTP to the proxy. It makes a [jsonrpc.Conn] of a WebSocket, or
// of requests, and passes it to a Serve function.
//
//	/ws /ws/NAME ────┐                    ┌► wsconn.Conn ──────┐
//	/sse /message ───┼─► Guard ─► HTTP ───┼► session ──────────┼─Conn─► Serve
//	/mcp /mcp/NAME ──┘                    ├► session ──────────┘
//	                                      └► principalConn ─────Conn─► ServePrincipal
//
// On a WebSocket the connection is the session. HTTP requests have no common
// connection. In the legacy era a header names their session; in the modern era they only share a
// principal. Each POST shows its era (headers.go).
//
// Legacy: each message to the client is assigned to the response that carries it.
//
//	POST ─► Queue ─► Recv ──┐               Send ─┬─ response ──► POST that asked
//	                        └─►  Serve  ──────┘   ├─ Related ───► that POST's stream
//	                                              └─ other ─────► standalone stream
//
// A POST gets plain JSON if its responses arrive within 50 ms and nothing comes before them, else
// server-sent events. An event stream outlives its connection: a client that lost the connection
// resumes the stream by a GET with Last-Event-ID. So dropping the connection of a POST does not
// cancel its requests. DELETE, expiry and the end of Serve end a session; then every open request
// gets the connection-closed error. A session of HTTP+SSE (2024-11-05) has one stream, and ends
// with it.
//
// Modern: a POST is checked against its headers, except for those that repeat arguments, which
// travel with the message to where the tool is known. The request gets an id of its own and travels
// on the connection of its principal and path.
//
//	POST ─► checks ─► waiter ─► Queue ─► Recv ──┐            Send ─┬─ id ──────► waiter ─► POST
//	                                            └► ServePrincipal ─┘  Related,
//	                                                                  subscription
//
// JSON and events are as above, but only POSTs have streams, and nothing can be resumed: dropping a
// POST cancels its request.
//
// Replicas: a request for a session of another process is passed on to that one, and so is a request
// that would begin something while this process drains.
//
//	client ─► Guard ─► route ─► session here ─► …
//	                      └───► relay ─► RoundTripper ═══ FromReplica ─► Guard ─► route ─► session
//	            one error ◄────────┘ if that fails
//
// Suspended calls and tasks of modern clients are at one replica, too. names.go puts an id of that one
// before the requestState and the task ids that clients get, and takes it off again where the request
// is served.
//
// Both ends identify the client by the same headers. A header of the relay says what no other header
// does: the client's address, and the principal of a certificate or a Unix user. It counts only on a
// connection that FromReplica marks. The relay keeps the body of a POST, or the ids in a large
// one, until the response ends. It passes events and JSON on whole. So when the other process or the link
// to it fails, it answers each request of the body that has no response yet with the connection-closed
// error. It repeats nothing. A request is passed on once, and from there to where its session was
// moved, or, if that replica drains, to one that does not.
//
// A session of Streamable HTTP moves when its process leaves (move.go): nothing is in flight, it is
// frozen, and its record is sent to another process (record.go), which keeps that until the client's
// next request (moved.go). Then resume.go begins the session anew: it repeats what the client has said, and drops the
// answers. When the old process is gone, lookup.go asks the others who has the session.
//
// For the case that this process dies, another one keeps the record of each session (keep.go), without
// events. When the owner is gone and nobody has a session, the one with the newest record continues it with
// the next request (kept.go). Records have a generation: how often the session has moved. After this
// process could not be reached, or stood still, it compares generations with the others before it serves
// sessions again, and of two copies the one with the lower generation ends (claim.go). replica.go serves what
// replicas ask each other. directory.go says where each session is: here in use, moved here, moved away, or kept for another one.
//
// The Guard asks an Identifier who sent a request, and stores the answer in each message
// (Message.From). Sessions, events and connections are found by principal. When the proof of a
// client ends, so do its WebSocket, the streams that its GETs opened, and its listens.
//
// From the top down: http.go has the configuration and the paths. streamable.go, httpsse.go and
// modern.go handle requests. replicas.go, names.go, relay.go and lookup.go pass them on.
// sessions.go begins and ends sessions, directory.go finds them, move.go moves them. session.go with deliver.go, streams.go and reader.go, and
// principal.go, are the Conns. guard.go and identifier.go identify clients. headers.go, body.go, events.go and reply.go read and write HTTP. socket.go is a
// WebSocket. backlog.go and slots.go bound the memory of messages.
//
// Goroutines: Keep runs for as long as there are other replicas, with one that notices when the process stood
// still, and one for each replica that is sent something. One runs Serve for each HTTP session and each WebSocket, one runs ServePrincipal for
// each principal's connection. The goroutines of net/http write the responses.
//
// Invariants:
//   - A request that is passed on has one outcome for its client: a response of the other process, or
//     the error of the relay, which is not_sent only if the connection did not get the whole body.
//   - Whoever takes a request out of a Table answers it: Send, a cancellation, or the end. So each
//     POST is answered once. A modern POST whose client has left takes its own request.
//   - At most one replica continues a session: that with the newest record, when all that live have answered and
//     none has the session. Two have it only while they cannot reach each other.
//   - A message is sent on one stream only, in the order of Send.
//   - Each queue is bounded. While a connected client does not read its stream, Send to its session
//     blocks, for at most 30 s a write; then the client counts as disconnected. Events for a
//     disconnected client push out the oldest beyond 256 events or 4 MiB a session. A question that
//     is pushed out is answered with an error, so that no upstream waits for it. Send to a
//     principal's connection never blocks, because clients share it: a request with more than 4 MiB
//     of unread notifications is answered with an error and cancelled.
//   - All messages that wait to be read count for their principal (backlog.go), on all transports and
//     in the queue of a session. If they exceed its share, events that are only kept for a resume go
//     first, then its largest stream ends. Other principals lose nothing.
//   - Large messages need a slot and have a time limit (slots.go), in bodies and on WebSockets.
//   - A principal never has two connections on one path, except for users that headers tell apart.
//   - httpSession.mu also guards the session's streams, principalConn.mu its waiters. Neither is held
//     across I/O.
//
// The package does not look into messages, except for the id and method of requests, the version in
// initialize, the request id in notifications/cancelled, the values that the modern era repeats in
// headers, what a session that moves says again, and names of suspended calls and tasks.
package frontend
