// Package pool holds the sessions with servers that several clients use. It knows no host:
// it is given functions that start a server, and hears of a server's end by its stream.
//
// [Shared] has many streams, the members, use one session of their own era, each as if it
// were its own:
//
//	client ─ stream ─► member ─┐
//	client ─ stream ─► member ─┼─► session ─ stream ─► server
//	client ─ stream ─► member ─┘
//
// [Bridge] has modern clients use sessions with a legacy server:
//
//	modern client                                            legacy server
//	  tools/call ───────► ┌─────────┐     ┌─────────┐ ── initialize, once ►
//	  ◄─ input_required ─ │ account │ ──► │ session │ ── tools/call ──────►
//	  tools/call again ─► │  call   │     └─────────┘ ◄── a request ────────
//	  listen ───────────► └─────────┘ ──► │ session │ ── subscribe ────────►
//	       streams of one key            one stream each
//
// Both ends of all of these are a [peer.Peer], which has the ids, the tables and the queues.
// What is here says to whom a message belongs.
//
// # Shared sessions
//
// The session's initialize is this side's, and answers that of each member. Ids and
// progress tokens, tasks and their cursors, subscriptions, log levels and elicitations are
// told apart (session.go, and a file for each). A modern server is asked server/discover
// first, and ends when it has been without members for a while (modern.go, discover.go).
//
// # Modern clients of a legacy server
//
// Their requests stand alone, so the sessions that the server needs are kept between them.
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
// A call that is cancelled gets one stimulus (design of [peer.Peer], Leave): what possibly
// waits for a request that got the one error is left to itself for fadeFor, and cancelled
// then. For a moment after a cancellation the server may still speak of the call, and what
// it says is nobody else's.
//
// Goroutines are those of Peer: of a session, of a member and of a modern client's stream,
// which is run by the caller of Attach or Modern. Beside these there are timers. [Shared.Stop]
// and [Bridge.Stop] wait for all of them. A call costs no goroutine.
//
// Locks: a session's, or an account's, guards everything in it. It is taken before that of
// a Peer.
package pool
