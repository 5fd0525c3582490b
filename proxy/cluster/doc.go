// Package cluster makes this process one of several replicas behind one address: who the others are, which of them made
// an id, and a way to pass requests on to it.
//
//	         membership: TCP and UDP, encrypted with the keys
//	members ◄──────────────── gossip ◄──────────────► other replicas
//	   │ joined, updated, leaving, gone
//	   ▼
//	 peer ── http.Transport ── link.Client ═══ TLS ═══ link.Server ── http.Server ── Options.Handler
//	one for each other member                          one for all
//
// A Cluster has a random instance id. Membership (gossip.go, the one file that knows memberlist) tells which others
// live, and what they say of themselves. The first request to a member dials a link to it. The link is kept, and dialled
// again when it is lost, until the member has left or died. Then it ends; if the member died, at once in both
// directions, so that nobody waits for a heartbeat.
//
// # Keys
//
// Replicas share a file of keys and nothing else. From each key come, by HKDF, a key that encrypts membership, one that
// signs ids, and an authority. Each process makes a key pair when it starts and certifies it with the authority of the
// first key, with its instance as name. Both ends of a link verify the other's certificate with the authorities of all
// keys, and who dials also the name. So whoever has a key is a replica, and nobody else gets past the handshake.
//
// The file is read again when it changes. A new key is added to the file of each replica first, then moved to the first
// line of each, then the old one is taken away. That ends the links that were made with its certificates, which are made
// again, and Owner refuses the ids that it signed.
//
// # Ids
//
// An id says who made it, and a MAC proves that. [Cluster.Owner] verifies the MAC before it looks at anything else, so
// that invented ids cost nothing. The answer is Away, not Nowhere, while a member may still live: a link that is lost or
// could not be made says nothing about that, and only membership declares a member dead.
//
// # Goroutines
//
// Run watches the key file and the members, and runs one goroutine that joins, two that serve other members, and one for
// each member that was needed. It waits for all of them. memberlist's own end within the time of a probe after Run.
//
// # Events
//
// Each change of another member has an event, and a line in the log. When the link to a member is lost, requests fail
// with its event, and nobody knows yet whether the member has died. If it has, its death has the same event, and one line
// says so. If not, the line follows when the time has passed in which it would have been declared dead.
//
// # Bounds
//
// A member is declared dead within 6 s, in a cluster of up to ten. Another replica may pass on 65,536 requests at a
// time; more are refused. A request waits up to 5 s for a link that is being made.
//
// # Invariants
//
//   - members knows no more than membership said, and what it does on a call waits for nothing: memberlist holds its lock.
//   - A request is sent at most once: one with a body that failed on its stream is not repeated.
//   - Nothing is taken from a peer before its certificate is verified.
//
// The package does not know what a session is.
package cluster
