// Package shared lets many clients use one session with a server. It does not know the host: it
// gets functions that start a server, and learns of a server's end from its stream.
//
// [Servers] serves many streams, the members, on one session of their own era, as if each had its
// own:
//
//	client ─ stream ─► member ─┐
//	client ─ stream ─► member ─┼─► session ─ stream ─► server
//	client ─ stream ─► member ─┘
//
// Both ends of a session are a [peer.Peer], which has the ids, the tables and the queues. This
// package decides which member a message belongs to.
//
// The session sends its own initialize, whose answer is the answer to each member. Ids and progress
// tokens, tasks and their cursors, subscriptions, log levels and elicitations are kept apart
// (task.go, level.go, server.go, named.go). A modern server is asked server/discover first, and ends
// when it has had no members for a while. A legacy server stays, unless its upstream says how long
// (idle.go).
//
// The proxy lists for its catalog as a member of its own, while clients have calls. A request of the server that
// could be about such a call waits until that is answered: a server answers a call after what it has asked for it
// (held.go).
//
// A cancelled call causes one stimulus (package peer, mark.go): a call that may wait for a request
// that got the one error has [peer.FadeFor] to end by itself, and is cancelled then. For a
// moment after a cancellation the server may still send messages for the call, and these are not
// attributed to other clients.
//
// Each session has a Peer, and so has each member; package peer says which goroutines a Peer has. A
// member in memory has none while it is idle. There are also timers. [Servers.Stop] waits for all of
// them. A call costs no goroutine.
//
// A session's lock guards everything in it, and is taken before that of a Peer.
package shared
