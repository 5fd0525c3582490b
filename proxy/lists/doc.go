// Package lists has the catalog of a router: what each upstream says of itself and lists, so that
// clients get answers before a server runs.
//
//	                                 ┌─► answers to initialize and lists
//	trials ──Ask──► Catalog ──Get────┤
//	                   │             └─► look-ups of names
//	                   ▼
//	                 Store: a file, for the next run
//
// An Entry is what one upstream said to clients of one era with certain capabilities. It is
// immutable, and holds the bytes of the server. Policies and prefixes apply when an answer is made.
//
// Whatever enters the catalog is for all clients. So only trials put something in: sessions that are
// told nothing of a client but its capabilities. What a server of the modern era does not call
// public stays out (2026-07-28 server/utilities/caching).
package lists
