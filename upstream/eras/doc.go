// Package eras lets clients of one era of the protocol use servers of the other. It knows no
// host: it is given a function that opens streams.
//
// Requests, results, errors and capabilities are put in the words of the other era as functions
// of bytes (fields.go, request.go, result.go, welcome.go). [Bridge] serves the streams.
//
// # Legacy clients of a modern server
//
//	legacy client                                        modern server
//	  initialize ───────► ┌────────┐ ── server/discover ──►
//	  tools/call ───────► │        │ ── tools/call + _meta ►
//	  ◄── a question ──── │ legacy │ ◄── input_required ────
//	  answer ───────────► │        │ ── tools/call again ──►
//	  subscribe ────────► └────────┘ ── subscriptions/listen ►
//	       one stream        holds the session    one stream
//
// [Bridge.Legacy] serves a legacy client (legacy*.go). Everything that a legacy
// session is lives there, since the server has none: what initialize and setLevel
// said is stamped on each request, a result that asks for input becomes questions to
// the client and the request is sent again with the answers, and subscriptions
// become listens that follow one another. It ends with the client's stream.
//
// # Modern clients of a legacy server
//
//	modern client                                            legacy server
//	  tools/call ───────► ┌─────────┐     ┌─────────┐ ── initialize, once ►
//	  ◄─ input_required ─ │ account │ ──► │ session │ ── tools/call ──────►
//	  tools/call again ─► │  call   │     └─────────┘ ◄── a request ────────
//	  listen ───────────► └─────────┘ ──► │ session │ ── subscribe ────────►
//	       streams of one key            one stream each
//
// [Bridge.Modern] serves a stream of modern clients (modern*.go). Their requests stand alone, so the sessions that the server needs are kept between them.
// An account is what one key has on one upstream; its sessions are in groups, by the
// capabilities that their servers were told. When the server asks something the call is
// suspended, and the client is answered with what to ask. The requestState that it comes
// back with names the suspension. What outlives the streams ends with [Bridge.Stop]. What
// a key has that is not a principal's ends with the last stream of the key, since nobody
// comes back to it.
//
// It must be certain to which call a request of the server belongs. A legacy server over
// HTTP says it. One over stdio does not, so that once it has asked, each call has a session
// of its own. Three things remain:
//
//   - Nobody knows that a server asks before it does. If its first request comes while
//     several calls share a session it is refused, and so is what it asks for the others of
//     them. That happens once, for all clients. Calls one at a time, or a session for each,
//     until it is known would cost every server that never asks.
//   - What a server asks after it has answered a call, which it must not, is taken for a
//     request of the next call in that session. To use idle sessions in turn would make that
//     rarer. But calls that follow each other would have a different session each, and what
//     the server remembers of the last one would be in another.
//   - Where all sessions share one server process, sessions of their own do not help: the
//     host refuses what could belong to calls of two of them, for as long as one is
//     suspended. [Bridge.Unattributed] ends those that are old.
//
// A client that closes a dialog does not come back, and its call would hold a session for
// SuspendFor. So when others wait for a session, or for what else a suspension takes, the
// oldest one that is older than minSuspended ends as if its time were over. Its retry is
// refused as expired.
//
// # Ends
//
// Each side of a stream is a [peer.Peer]: package peer says who is answered, who is cancelled,
// and who learns of an end. Goroutines are those of the Peers, and for moments a timer, of a
// retry or of a listen. Legacy and Modern wait for theirs, [Bridge.Stop] for those of sessions.
// An account's lock guards everything in it. It is taken before that of a Peer.
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
package eras
