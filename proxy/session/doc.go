// Package session is the session of one client. It sends the client's requests to upstreams, and
// returns their answers, notifications and server requests to the client.
//
//	             ┌─────────────── session ───────────────┐
//	client ◄────►│ Peer: requests of the client,         │◄────► stream to
//	             │       server requests to it           │       one upstream
//	             │                     Peer: calls,      │
//	             │                     server requests   │◄────► stream to another
//	             └───────────────────────────────────────┘
//
// Both ends of a session are Peers. Package peer answers, cancels and ends calls and requests.
// Forward joins a request of the client with its call to an upstream, and a server request with its
// call to the client.
//
// A [Router] serves clients: give it Upstreams and a DialFunc, and call Serve with each client's
// Conn. A session has an upstreamConn for each upstream and era, which has one stream, opened when
// it is first needed, and again after it ended.
//
// # Where things are
//
// From those that nothing here refers to, to those that refer to the others:
//
//   - serve.go: a session and a Router from their begin to their end. trial.go: trial sessions for the
//     catalog. follow.go: changes of the upstreams and policies.
//   - route.go: the handler for each request of the client. notified.go, roots.go: its notifications.
//   - initialize.go: the description of the upstreams for the client. startup.go: how they start for
//     that. list.go: merged lists. lookup.go: the upstream that has a tool or a prompt. owner.go:
//     the one that has a resource. task.go: requests that continue after their answer. listen.go:
//     which upstreams have what a client subscribes to.
//   - extension.go: methods that the proxy does not know. listed.go: skills and events.
//   - policy.go: what of all this a client may use. in_flight.go, observe.go: reports for operators.
//   - forward.go: a request becomes a call to an upstream. settle.go: the end of each request.
//   - era.go: the era of a message, and what a client of the modern era may get.
//   - client_side.go: what the messages of an upstream mean for the client. server_request.go: its
//     requests. task_name.go: the names that clients know for its tasks. ownership.go: the principals
//     that have them.
//   - upstream_open.go: the streams to an upstream. upstream_send.go: what is sent to it. upstream_receive.go: what
//     comes from it. upstream_lists.go: how packages lists and listen see it. upstream_info.go: what
//     it is asked first. idle.go: how it rests when nobody needs it. trace.go, observe_upstream.go: reports
//     about its calls.
//   - request.go: a request of the client, and its call.
//   - session.go, router.go, upstream_set.go: the three types that know each other.
//   - upstream_conn.go: a connection to an upstream. It knows its session as a clientSide only.
//   - attempt.go, held_back.go, abandoned.go, handshake.go, timer.go, configured.go, listing.go: what these
//     consist of, each with its own lock.
//
// Package lists has what a session knows of lists, and decides who is told of changes. Package listen
// has the subscriptions. Package owners has the owners of tasks and resources. Package catalog has
// operations on lists as values.
//
// # Eras
//
// Each message of a client is of one era. The legacy era needs an initialize, the modern one does
// not. A session has upstream connections of both eras if it needs them, and translates nothing:
// the host knows the era of its server. The ids of both eras are in one table.
//
// One session of the modern era may serve many clients. Upstreams may show them different lists,
// depending on their capabilities.
//
// # Upstreams that come and go
//
// Update replaces the set of upstreams, Returned reports that a link is back. An upstream set is
// immutable: a session gets another one, and a request keeps the one with which it began. An
// upstream that stays keeps its stream when its names change.
//
// # Goroutines
//
// Serve waits for all of them:
//
//   - those of the client's Peer, including Serve's own
//   - those of each open upstream connection's Peer
//   - run, while it opens such a connection
//   - one for each request that needs more than one call, and one for each upstream that it asks
//   - one for each upstream of a subscription, which package listen has
//   - one for each background request to an upstream
//   - one while a list_changed is held back
//   - one for each upstream connection that is about to be opened again
//
// Trials outlive sessions. Shutdown of the Router waits for them.
//
// The goroutine that reads from the client never waits for an upstream, so that cancellations
// always pass. It waits for the client only if thousands of answers are unread, and not for long.
//
// # Locks
//
// session.mu makes one step of the end of a session, or of another upstream set, and what must not
// come in between. Each upstream connection has a lock for its stream. All other locks guard one
// concern or one Peer, as its type says. They are taken in this order: session.mu, upstreamConn.mu,
// others. Package listen calls nothing of the session with its lock held. Type clientSide says what
// an upstream connection calls of its session with its lock held. No lock is held across I/O.
//
// # Invariants
//
//   - Settle once, as package peer proves. Once the session's ctx has ended, only its end takes
//     requests.
//   - The session mints ids and progress tokens for upstreams, one integer for each call. The client
//     gets its own back byte for byte.
//   - The connection-closed error is built at the moment of settling.
//   - No call times out while its upstream waits for an answer of the client.
//   - A merged list is one page, so every cursor of a client is unknown.
//   - A stream is closed after its queue was sent, within lastWords, so that the last messages of a
//     client arrive. Calls that were settled meanwhile are not sent.
//   - A message of an upstream of the modern era reaches the client only with the request to which it
//     belongs.
//   - A client's answer to an upstream, and the state of that request, are sent to no other upstream.
//   - A name resolves by the lists for clients with the same capabilities, and never to something
//     that a policy denies to the client.
//   - A subscription does not delay a drain: it ends with its result, even when the end is forced.
//
// The package starts no processes and knows no transport. Both ends are Conns, so its tests run in
// a synctest bubble.
package session
