// Package eras lets clients of one era of the protocol use servers of the other. It does not
// know the host: it gets a function that opens streams.
//
// Functions of bytes translate requests, results, errors and capabilities (fields.go, request.go,
// result.go, legacy_hello.go). A [Bridge] serves the streams. The two directions do not know
// each other.
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
// [Bridge.Legacy] serves a legacy client (legacy*.go). It holds the whole legacy session, since the
// server has none: each request carries what initialize and setLevel have set. A result that asks
// for input becomes questions to the client, and the request is sent again with the answers.
// Subscriptions become listens, one after the other. The session ends with the client's stream.
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
// [Bridge.Modern] serves a stream of modern clients (modern*.go). Each of their requests stands
// alone, so the sessions that the server needs are kept between requests. An account is what one
// key has on one upstream. Its sessions are grouped by the capabilities that they declare. When
// the server asks something, the call is suspended and the client is answered with the question;
// the requestState that it comes back with names the suspension. [Bridge.Stop] ends what
// outlives the streams. What a key has that is not a principal's ends with the last stream of
// the key, since no client can come back to it.
//
// Results of a legacy server say nothing of caching. Those for a modern client must, so they say that
// they must not be cached. The description of the server has its own version and no modern one,
// from which the proxy knows that the server did not say that: its lists are as good for other
// clients as they are in the legacy era. So a stream in which no client listens also hears that a list has
// changed. The proxy tells its clients which versions it speaks itself.
//
// The call that a request of the server belongs to must be certain. A legacy server over HTTP
// names it. A server on stdio does not, so that each call has its own session once such a server
// has asked something. Three limits remain:
//
//   - Before its first request nobody knows that a server asks. If several calls share a session
//     then, that request and further ones for these calls are refused. This happens once, for
//     all clients. Running calls one at a time, or in a session each, until this is known would
//     slow down every server that never asks.
//   - A request that a server sends after it has answered the call, which is not allowed, is
//     attributed to the next call in that session. Rotating idle sessions would make that rarer,
//     but consecutive calls would then lose what the server remembers in its session.
//   - Where all sessions share one server process, separate sessions do not help: the host
//     refuses requests that could belong to calls of two sessions, for as long as a call is
//     suspended. [Bridge.Unattributed] ends suspended calls that are old.
//
// A client that closes a dialog does not come back, and its call would hold a session for
// SuspendFor. So when other calls need a session or another bounded resource, the oldest call
// that has been suspended for longer than minSuspended ends as if it had expired. Its retry is
// refused as expired.
//
// # Ends
//
// Each side of a stream is a [peer.Peer]: package peer answers, cancels and reports ends.
// The goroutines are those of the Peers and, briefly, of timers for retries and listens. Legacy and
// Modern wait for theirs, [Bridge.Stop] for those of sessions. The lock of an account guards
// everything in it, and is taken before that of a Peer.
//
// Invariants:
//   - Params, results and questions keep their bytes; members of one era are spliced in or
//     out. The requestState of a modern server is returned byte for byte.
//   - A client is asked only what it has declared, and nothing for a call that it has
//     cancelled.
//   - Ids and progress tokens towards a server are ours, and new for each retry. The
//     progress of one call that a client gets only increases.
//   - When a server's stream ends nothing is sent again: the client's stream ends
//     with the same cause, and its proxy settles the open requests.
//   - Everything is bounded: calls, questions, rounds, subscriptions, and queues.
//
// Tasks are different protocols in the two eras and are not translated: they are not
// declared, and tools that only run as tasks are not listed to modern clients. The
// includeContext of sampling passes unchanged: the package does not know how many servers its
// client sees. The package does not find out the era of a server, start servers, or time out
// calls.
package eras
