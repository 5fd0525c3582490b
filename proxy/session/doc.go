// Package session is the session of one client: it fans the client's requests out
// to upstreams, brings answers and server requests back, and ends honestly.
//
//	                     ┌──────────── session ────────────┐
//	           readLoop  │ calls      (client's requests)  │  queue      writeLoop
//	client ──────Recv───►│ serverRequests (of upstreams)   │─────Send────────────► stream
//	       ◄─────Send────│ outbox                          │◄────Recv──────────── to one
//	          writeLoop  └─────────────────────────────────┘  run                 upstream
//
// A [Router] is a value: give it Upstreams and a Dialer and call Serve with each
// client's Conn. A session has one upstream connection for each upstream and era, which owns one
// stream, opened when first needed and again after it ended. Names and URIs
// resolve by the tables in catalog.go, which also say what headers have to repeat of
// a tool's arguments (mirror.go); the method tables are in route.go and, for the
// modern era, in era.go.
//
// The ids of tasks are exposed with the upstream's name, too (taskid.go), if there are
// several upstreams; what a client was given once stays good.
//
// Each message of a client is of an era, whatever others on its Conn are. What is
// of the legacy era needs an initialize, and travels on upstream connections of that era; what is
// of the modern era needs none, and travels on connections of its own, which are ready
// when their stream is open. Whether the upstream speaks that era is the host's
// business. Ids of the client are one table for both.
//
// A session of the modern era may be of many clients. What they are offered is kept
// by what they can do, in view.go: names and cursors of one are not lost when another
// one lists.
//
// Upstreams come and go while clients are served: Update replaces the set, and
// Returned says that a link is back. The upstream connections of a session at one time are its
// upstream set of an era, in upstream_set.go, which also has the prefixes of their names: a
// connection stays when names change. Only an upstream that is surely the only one is
// special, and that is decided for each request; what initialize said of it stands.
//
// Nobody waits twice for an upstream that was once not there in time, for its start or
// for a list: the Router remembers it until it has answered (late.go). Initialize and
// lists ask the others first, and it aside; what it lists then is compared with what
// the client has seen.
//
// A subscription, in subscription.go, is a subscriptions/listen: a call that stays. Each
// upstream has a part of it, in subscription_part.go, which is a listen of our own:
//
//	           ┌─ subscription ─┐     ┌─ part ─► upstream    made again after it ended,
//	client ────┤ run            ├─────┼─ part ─► upstream    not too eagerly; then the client
//	           └────────────────┘     └─ part ─► upstream    hears of all it may have missed
//
// Goroutines of a session, all waited for by Serve: readLoop, which is the
// caller's, and writeLoop; for each open upstream connection run and writeLoop; one for each
// request that needs more than one message to answer (initialize, discovery, lists,
// a name not yet known, a subscription), and for what it asks of each upstream, or aside of
// one that is late; one for each part of a subscription; one while a
// list_changed is held back; one for each upstream connection that is to be opened again since its
// link is back. readLoop never waits for an upstream, so that a cancellation always
// passes; it waits for the client to read only when that has left thousands of
// answers unread, and then not for long.
//
// Invariants:
//   - Settle once: whoever takes a call out of session.calls answers it. Nobody
//     else does, and a cancelled call is answered by nobody. Once the session's
//     ctx has ended, only its end takes.
//   - Ids and progress tokens on an upstream connection are minted here, one integer for each
//     request; the client's own come back byte for byte.
//   - The one connection-closed error is built at the moment of settling.
//   - No request times out while a request of its upstream is open at the client
//     that it may be the reason of.
//   - A cursor of the modern era is good as long as the list is the same, in any
//     session.
//   - A stream is closed behind what its queue still holds, within lastWords: what
//     a client says last arrives, requests that were settled meanwhile do not.
//   - An upstream set never changes. A call is routed by the one that it began with; an
//     upstream that has gone meanwhile refuses it. A subscription follows.
//   - Nothing of an upstream of the modern era reaches the client but with a request of
//     the client that it belongs to. The acknowledgment is first of a subscription, and what
//     it does not name is not delivered.
//   - What answers an upstream's requests, and the state that it gave with them, go
//     to that upstream and to no other.
//   - A name resolves by what upstreams list to clients with the capabilities of the
//     one that uses it.
//   - An answer of the modern era is looked at before the client has it: see result.go.
//   - A subscription holds up no drain: it ends with its result when the session is to, and
//     also when that is forced.
//   - session.mu guards all tables of a session and is never held across I/O.
//     Router.mu may be taken under it, never the other way.
//
// The package starts no processes and knows no transport: both ends are Conns,
// so that it can be tested in a synctest bubble.
package session
