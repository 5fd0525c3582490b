// Package replay answers in place of a server from a recording, which "mcp-proxy tap
// --record" has made. So what uses a server can be tested without it.
//
//	file ─► Open ─► Recording: exchanges, each a request and what the server sent for it
//	                    │
//	client ─► Serve ────┘ finds the exchange of a request, and plays its steps
//
// A request has the answer of the recorded one that is equal to it: its method, and its
// params but for _meta and for the answers that it brings (inputResponses). Values are equal
// as JSON, and numbers of any size are compared exactly. A session counts the equal requests:
// the k-th has the k-th recorded answer, and behind the last one the last again. A request
// without an equal is answered with an error that shows the nearest.
//
// With the answer comes what the server sent besides (step.go), in its order: progress and
// other notifications, and requests of the server. Each of those is asked anew, and what
// follows waits for an answer, whatever that is. Nothing waits for the times that were
// recorded. A recorded request that was cancelled waits to be cancelled again.
//
// What a recording need not have is made up: answers to initialize, server/discover and
// ping.
//
// There are no goroutines: Serve plays what each message begins.
//
// Everything is bounded: the file by maxFile, and what is in it by that.
package replay
