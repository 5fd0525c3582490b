// Package session is the session of one client. It sends the client's requests to
// upstreams, brings back what they answer, ask and tell, and ends all of it together.
//
//	             ┌─────────────── session ───────────────┐
//	client ◄────►│ Peer: requests of the client,         │◄────► stream to
//	             │       server requests to it           │       one upstream
//	             │                     Peer: calls,      │
//	             │                     server requests   │◄────► stream to another
//	             └───────────────────────────────────────┘
//
// Both ends of a session are Peers. Package peer answers, cancels and ends what is in flight;
// Forward joins a request of the client with the call that it becomes at an upstream, and a
// server request with the call that it becomes at the client.
//
// A [Router] is a value: give it Upstreams and a Dialer, and call Serve with each
// client's Conn. A session has an upstreamConn for each upstream and era. It owns one
// stream, which is opened when it is first needed, and again after it ended.
//
// # Where things are
//
//   - request.go: a request of the client from its arrival to its answer. All requests begin in
//     begin and end in deliver, all sessions in serve.
//   - route.go: which handler a message of the client goes to. era.go: of which era it is,
//     and what a client of the modern era may get.
//   - lookup.go, owner.go: which upstream has a tool, a prompt or a resource.
//   - policy.go: what of all this a client may see and use. abandoned.go: what still counts
//     after its client is gone. roots.go: how often upstreams are notified of roots.
//   - list.go, fanout.go: merged lists, and how upstreams are asked for them. view.go: what
//     is known of lists. news.go: what the client has seen of them. What can be said of
//     lists as values is in proxy/catalog.
//   - initialize.go: how the proxy describes all upstreams to the client. startup.go: how
//     they are started for that. late.go: upstreams that missed a deadline.
//   - upstream_conn.go: one upstream. upstream_receive.go: its messages. upstream_info.go:
//     its description of itself. upstream_set.go: which upstreams there are.
//   - server_request.go: what upstreams ask the client.
//   - task.go: requests that go on after their answer. ownership.go: which principal owns
//     them.
//   - resource_subscription.go: resources/subscribe. subscription.go: subscriptions/listen.
//   - router.go: all sessions. memory.go: what they remember together.
//
// # Eras
//
// Each message of a client is of one era. The legacy era needs an initialize, the modern
// one does not. A session has upstream connections of both eras, as far as they are
// needed, and translates nothing: the host knows what its server speaks. The ids of both
// eras are in one table.
//
// One session of the modern era may serve many clients. What they see depends on their
// capabilities: a view is what clients with the same capabilities see.
//
// # Upstreams that come, go and are late
//
// Update replaces the set of upstreams, Returned says that a link is back. An upstream set
// never changes; a session gets another one, and a request keeps the one it began with.
// An upstream that stays keeps its stream when its names change.
//
// After one timeout, later requests skip an upstream until it answers: they ask the others
// first, and that one in the background. Then the client gets a list_changed.
//
// # Subscriptions
//
// A subscription is a request that stays open. Each upstream has a part of it, which is a
// subscriptions/listen of our own. A part that ended is opened again with back-off, and
// then the client is notified of everything that it may have missed.
//
//	           ┌─ subscription ─┐     ┌─ part ─► upstream
//	client ────┤ run            ├─────┼─ part ─► upstream
//	           └────────────────┘     └─ part ─► upstream
//
// # Goroutines
//
// Serve waits for all of them:
//
//   - those of the client's Peer, of which the caller is one
//   - run of each open upstream connection, with those of its Peer
//   - one for each request that needs more than one message to answer, and one for each
//     upstream that it asks
//   - one for each part of a subscription
//   - one for each question to an upstream in the background
//   - one while a list_changed is held back
//   - one for each upstream connection that is about to be opened again
//
// The goroutine that reads from the client never waits for an upstream, so that a
// cancellation always passes. It waits for the client only if thousands of answers are
// unread, and not for long.
//
// # Locks
//
// session.mu guards what the session adds to requests, and its upstream connections. Each Peer
// has a lock of its own, and so has each concern; its type says what that guards. They may
// be taken with session.mu held, never the other way. No lock is held across I/O.
//
// # Invariants
//
//   - Settle once, as package peer proves. Once the session's ctx has ended, only its end
//     takes requests.
//   - Ids and progress tokens towards an upstream are minted here, one integer for each
//     call. The client's own come back byte for byte.
//   - The one connection-closed error is built at the moment of settling.
//   - No call times out while its upstream waits for the client because of it.
//   - A merged list is one page: a cursor of a client is unknown.
//   - A stream is closed behind what its queue still holds, within lastWords: what a
//     client sends last arrives. Calls that were settled meanwhile do not.
//   - A message of an upstream of the modern era reaches the client only with the request
//     of the client that it belongs to. A subscription is acknowledged first, and what the
//     acknowledgment does not name is not delivered.
//   - What a client answers an upstream, and the state that came with the request, go to
//     that upstream and to no other.
//   - A name resolves by what upstreams list to clients with the same capabilities, and to
//     nothing that a policy denies to the client.
//   - A subscription holds up no drain: it ends with its result, also when the end is
//     forced.
//
// The package starts no processes and knows no transport. Both ends are Conns, so that it
// is tested in a synctest bubble.
package session
