// Package shared has many clients use one session with a server. It knows no host: it is given
// functions that start a server, and learns of a server's end by its stream.
//
// [Servers] has many streams, the members, use one session of their own era, each as if it
// were its own:
//
//	client ─ stream ─► member ─┐
//	client ─ stream ─► member ─┼─► session ─ stream ─► server
//	client ─ stream ─► member ─┘
//
// Both ends of a session are a [peer.Peer], which has the ids, the tables and the queues.
// What is here says to whom a message belongs.
//
// The session's initialize is this side's, and answers that of each member. Ids and
// progress tokens, tasks and their cursors, subscriptions, log levels and elicitations are
// told apart (session.go, and a file for each). A modern server is asked server/discover
// first, and ends when it has been without members for a while (modern.go, discover.go).
//
// A call that is cancelled gets one stimulus (package peer, mark.go): what possibly waits for a
// request that got the one error may end by itself for [peer.FadeFor], and is cancelled then.
// For a moment after a cancellation the server may still speak of the call, and what it says
// is nobody else's.
//
// Goroutines are those of Peer: of a session, and of a member, which is run by the caller of
// Attach. Beside these there are timers. [Servers.Stop] waits for all of them. A call costs no
// goroutine.
//
// A session's lock guards everything in it. It is taken before that of a Peer.
package shared
