// Package replay is a server that answers from a recording of "mcp-proxy tap --record", to
// test clients and proxies without the real server.
//
//	file ─► Open ─► Recording: exchanges, each a request and what the server sent for it
//	                    │
//	client ─► Serve ────┘ finds the exchange of a request, and plays its steps
//
// A request gets the answer of the recorded request that is equal to it: with the same
// method and the same params, except _meta and inputResponses. Values are compared as JSON,
// and numbers of any size exactly. A session counts equal requests: the k-th gets the k-th
// recorded answer, and further ones the last. A request without an equal is answered with an
// error that shows the nearest recorded request.
//
// Before the answer come the other messages of the exchange (step.go), in the recorded
// order: progress and other notifications, and requests of the server. After a request of
// the server the session waits for the client's answer, whatever that is. It ignores the
// recorded times. If a recorded request was cancelled, its exchange has no answer, and ends
// when the client cancels again.
//
// If a recording has no answer to initialize, server/discover or ping, Serve makes it up.
//
// There are no goroutines: Serve plays the steps for each message.
//
// Everything is bounded by maxFile.
package replay
