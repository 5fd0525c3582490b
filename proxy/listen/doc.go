// Package listen has the subscriptions of one client: to resources in the legacy era, and
// subscriptions/listen in the modern one.
//
// A subscription is a request that stays open. It is split over the upstreams: each has a part of
// it, which is a subscriptions/listen of ours. A part that ended is opened again with back-off, and
// then the client is notified of everything that it may have missed.
//
//	                    ┌─ Subscription ─┐     ┌─ part ─► Upstream
//	Client ◄── Tell ────┤ Run            ├─────┼─ part ─► Upstream
//	       ─── Split ──►└────────────────┘     └─ part ─► Upstream
//
// The session is behind the interfaces [Client] and [Upstream]: it says which upstream has a
// resource or a task, what a policy allows, and what an upstream lists.
//
// # Goroutines
//
// Run is the goroutine of a subscription, and has one more for each part. It waits for them.
//
// # Invariants
//
//   - A subscription is acknowledged first. Notifications that come before that wait, and those that
//     the acknowledgment does not cover are dropped.
//   - After a part was interrupted, the client gets one notification of each list and resource.
//   - A part that is only for changes of lists keeps no upstream awake, and starts none.
//   - One lock guards all subscriptions of a client. No method of a Client or an Upstream is called
//     with it held, so it may be taken with any lock of the session held.
package listen
