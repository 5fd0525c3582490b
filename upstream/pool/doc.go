// Package pool holds the sessions with servers that several clients use.
//
// [Shared] has many streams use one session of their own era, each as if it were its
// own (session.go, member.go). [Bridge] has modern clients use sessions with a legacy
// server:
//
//	modern client                                        legacy server
//	  tools/call ───────► ┌────────┐     ┌──────┐ ── initialize, once ►
//	  ◄─ input_required ─ │ account │ ──► │ session │ ── tools/call ──────►
//	  tools/call again ─► │  call  │     └──────┘ ◄── a question ───────
//	  listen ───────────► └────────┘ ──► │ session │ ── subscribe ────────►
//	       streams of one key         pooled sessions, one stream each
//
// [Bridge.Modern] serves modern clients of a legacy server (bridge*.go). Their requests stand alone, so
// the sessions that the server needs are kept between them, in a pool: a key has
// sessions on each upstream, each a session that was told one set of capabilities
// (bridge_pool.go, session*.go). When the server asks something, the call is suspended and the
// client is answered with what to ask; the requestState that it comes back with names
// the suspension (suspension*.go). What outlives the streams ends with
// [Bridge.Stop], and that of a key which is not a principal's with the last stream of
// the key, since nobody comes back to it (bridge_leave.go).
//
// Whose a question is must be certain. A legacy server over HTTP says it; one over
// stdio does not, so that once it has asked, each call has a session of its own. Three
// things remain:
//
//   - Nobody knows that a server asks before it does. If its first question comes while
//     several calls share a session it is refused, and so is what it asks for the others of
//     them; that happens once, for all clients. Calls one at a time, or a session for each,
//     until it is known would cost every server that never asks.
//   - What a server asks after it has answered a call, which it must not, is taken for a
//     question of the next call in that session. To use idle sessions in turn would make that
//     rarer, and give calls that follow each other a different session each, with what
//     the server remembers of the last one in another.
//   - Where one server process is shared by all sessions, sessions are of no help: its host
//     refuses what could belong to calls of two of them, for as long as one is suspended.
//     [Bridge.Unattributed] ends those that are old.
//
// A client that closes a dialog does not come back, and its call would hold a session for
// SuspendFor. So when others wait for a session, or for what else a suspension takes, the oldest
// that is older than minSuspended ends as if its time were over (bridge_room.go). Its retry is
// refused as expired.
//
// Goroutines of a shared session: run, which is its Peer's, and what serves the server; of
// a member serve, which is the caller's of Attach, and its Peer's. [Shared.Stop] waits for
// them.
//
// Goroutines of a modern stream: read (the caller's of Modern) and its sendQueue. Of a
// session: run, which owns Recv, its sendQueue, and closeWhenEnded, which unblocks both;
// the pool waits for them. Besides there are timers: for questions that come together,
// the expiry of a suspension, calls that wait for an old one, an idle session, a lost connection, a
// listen. When a stream ends, or the pool, its timers are stopped, and those that have
// fired are waited for (timer.go). A call costs no goroutine.
package pool
