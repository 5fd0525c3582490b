// Package bridge lets clients of one era use servers of the other: it translates
// between a client's stream and streams that a host opens to the server.
//
//	legacy client                                        modern server
//	  initialize ───────► ┌────────┐ ── server/discover ──►
//	  tools/call ───────► │        │ ── tools/call + _meta ►
//	  ◄── a question ──── │ legacy │ ◄── input_required ────
//	  answer ───────────► │        │ ── tools/call again ──►
//	  subscribe ────────► └────────┘ ── subscriptions/listen ►
//	       one stream        holds the session    one stream
//
//	modern client                                        legacy server
//	  tools/call ───────► ┌────────┐     ┌──────┐ ── initialize, once ►
//	  ◄─ input_required ─ │ tenant │ ──► │ lane │ ── tools/call ──────►
//	  tools/call again ─► │  call  │     └──────┘ ◄── a question ───────
//	  listen ───────────► └────────┘ ──► │ lane │ ── subscribe ────────►
//	       streams of one key         pooled sessions, one stream each
//
// [Bridge.Legacy] serves a legacy client (legacy*.go). Everything that a legacy
// session is lives there, since the server has none: what initialize and setLevel
// said is stamped on each request, a result that asks for input becomes questions to
// the client and the request is sent again with the answers, and subscriptions
// become listens that follow one another. It ends with the client's stream.
//
// [Bridge.Modern] serves modern clients (modern*.go). Their requests stand alone, so
// the sessions that the server needs are kept between them, in a pool: a key has
// lanes on each upstream, each a session that was told one set of capabilities
// (pool.go, lane*.go). When the server asks something, the call is parked and the
// client is answered with what to ask; the requestState that it comes back with names
// the park (park*.go). What outlives the streams ends with
// [Bridge.Stop], and that of a key which is not a principal's with the last stream of
// the key, since nobody comes back to it (pool_leave.go).
//
// Whose a question is must be certain. A legacy server over HTTP says it; one over
// stdio does not, so that once it has asked, each call has a lane of its own. Three
// things remain:
//
//   - Nobody knows that a server asks before it does. If its first question comes while
//     several calls share a lane it is refused, and so is what it asks for the others of
//     them; that happens once, for all clients. Calls one at a time, or a lane for each,
//     until it is known would cost every server that never asks.
//   - What a server asks after it has answered a call, which it must not, is taken for a
//     question of the next call in that lane. To use idle lanes in turn would make that
//     rarer, and give calls that follow each other a different session each, with what
//     the server remembers of the last one in another.
//   - Where one server process is shared by all sessions, lanes are of no help: its host
//     refuses what could belong to calls of two of them, for as long as one is parked.
//     [Bridge.Unattributed] ends those that are old.
//
// A client that closes a dialog does not come back, and its call would hold a lane for
// ParkFor. So when others wait for a lane, or for what else a park takes, the oldest
// that is older than minPark ends as if its time were over (pool_room.go). Its retry is
// refused as expired.
//
// What results, errors and capabilities are in the other era is in fields.go, as
// functions of bytes.
//
// Goroutines of a legacy stream: readClient and readModern, which own Recv; one for
// the sendQueue of each side, which own Send; and for moments a timer, of a retry or
// of a listen. Legacy waits for them all. Of a modern stream: read (the caller's of
// Modern) and its sendQueue. Of a lane: run, which owns Recv, its sendQueue, and
// closeWhenEnded, which unblocks both; the pool waits for them. Besides there are
// timers: for questions that come together, the expiry of a park, calls that wait for
// an old one, an idle lane, a lost connection, a listen. When a stream ends, or the
// pool, its timers are stopped, and those that have fired are waited for (timer.go). A
// call costs no goroutine.
//
// Invariants:
//   - Params, results and what is asked stay the bytes that came: what belongs to one
//     era is spliced in or out. The state of a modern server goes back byte for byte.
//   - A request is answered once, by whoever takes it out of its table.
//   - A client is asked nothing that it did not declare, and nothing for a call that
//     it has cancelled.
//   - Ids and progress tokens towards a server are minted here, and new for each
//     retry. Progress that a client hears of one call only increases.
//   - When a server's stream ends nothing is sent again: the client's stream ends
//     with the same cause, and its proxy settles what was open.
//   - Everything is bounded: calls, questions, rounds, subscriptions, lanes, parks,
//     and what waits in a queue.
//
// Tasks are different protocols in the two eras and are not bridged: nobody is told
// that the other side has them, and tools that run as tasks alone are not listed to
// modern clients. The includeContext of sampling passes as it is: the package does not
// know how many servers its client sees, and a client that sees one means what the
// server means; with several "thisServer" may be all of them to it. The package does not find out which era anybody
// speaks, start servers, or time out calls.
package bridge
