// Package auth says who the clients of a proxy on HTTP are. [Current] is the Identifier of
// proxy/frontend: it goes by the [Clients] of the configuration that counts now, and knows
// how long a client may go on with what it has opened.
//
//	               ┌ static tokens (token.go)
//	Authorization ─┤
//	               └ JWT (jwt.go) ── what was verified (memory.go)
//	a certificate ── (certificate.go)
//	a Unix user ──── internal/identity
//
// The first of these that a request has decides, and a wrong one is refused even if the next
// would do: a client says with which it wants to be known. What a client can do about a
// refusal is in challenges and metadata (challenge.go).
//
// The goroutines, one and one for each issuer, are those of [Current.Run], which waits for
// them.
//
// No token reaches a log, an error or anybody else.
package auth
