// Package translate puts one era of the protocol in the words of the other: requests,
// results, errors and capabilities, as functions of bytes (fields.go, request.go,
// connectpage.go). And it lets legacy clients use servers that speak modern:
//
//	legacy client                                        modern server
//	  initialize ───────► ┌────────┐ ── server/discover ──►
//	  tools/call ───────► │        │ ── tools/call + _meta ►
//	  ◄── a question ──── │ legacy │ ◄── input_required ────
//	  answer ───────────► │        │ ── tools/call again ──►
//	  subscribe ────────► └────────┘ ── subscriptions/listen ►
//	       one stream        holds the session    one stream
//
// [Translator.Legacy] serves a legacy client (legacy*.go). Everything that a legacy
// session is lives there, since the server has none: what initialize and setLevel
// said is stamped on each request, a result that asks for input becomes questions to
// the client and the request is sent again with the answers, and subscriptions
// become listens that follow one another. It ends with the client's stream.
//
// Each side of a legacy stream is a [peer.Peer]: package peer says who is answered, who is
// cancelled, and who hears of an end. Goroutines are those of the two Peers, and for moments
// a timer, of a retry or of a listen. Legacy waits for them all.
//
// Invariants:
//   - Params, results and what is asked stay the bytes that came: what belongs to one
//     era is spliced in or out. The state of a modern server goes back byte for byte.
//   - A client is asked nothing that it did not declare, and nothing for a call that
//     it has cancelled.
//   - Ids and progress tokens towards a server are minted here, and new for each
//     retry. Progress that a client hears of one call only increases.
//   - When a server's stream ends nothing is sent again: the client's stream ends
//     with the same cause, and its proxy settles what was open.
//   - Everything is bounded: calls, questions, rounds, subscriptions, and what waits
//     in a queue.
//
// Tasks are different protocols in the two eras and are not translated: nobody is told
// that the other side has them, and tools that run as tasks alone are not listed to
// modern clients. The includeContext of sampling passes as it is: the package does not
// know how many servers its client sees, and a client that sees one means what the
// server means; with several "thisServer" may be all of them to it. The package does
// not find out which era anybody speaks, start servers, or time out calls.
package translate
