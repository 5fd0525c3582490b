// Package lists has what upstreams say of themselves and list: the catalog of a router, which all
// sessions share, and what one session knows from its own servers.
//
//	                                 ┌─► answers to initialize and lists
//	trials ──Ask──► Catalog ──Get────┤
//	                   │             └─► look-ups of names
//	                   ▼
//	                 Store: a file, for the next run
//
// # The catalog
//
// An Entry is what one upstream said to clients of one era with certain capabilities. It is
// immutable, and holds the bytes of the server. Policies and prefixes apply when an answer is made.
//
// Whatever enters the catalog is for all clients. So only trials put something in: sessions that are
// told nothing of a client but its capabilities. What a server of the modern era does not call
// public stays out (2026-07-28 server/utilities/caching). A server of the legacy era says nothing of
// that, and its lists are kept, also if a host has translated them for clients of the modern era.
//
// # Sessions
//
// A Session has an Upstream for each of its upstreams and eras, which sees the server through a
// Server. With several upstreams, a lazy one has no stream until a request needs it. Until its own
// server has answered, the catalog says what it lists (lazy.go). The first requests on a new stream
// of the legacy era are for its lists. What differs from what the client has seen is a list_changed
// (changes.go), and what differs from the catalog begins a trial.
//
// After one timeout, later requests skip an upstream until it answers: they ask only the others, and
// the session asks it in the background. When it answers, the client gets a list_changed (gather.go).
//
// # Locks
//
// Session and Upstream have locks of their own, under which only that of Memory is taken. They may be
// taken with the lock of the owner's session held, never the other way: methods of a Server are
// called without any lock of this package.
package lists
