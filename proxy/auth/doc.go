// Package auth says who the clients of a proxy on HTTP are. [Clients] is the Identifier of
// proxy/frontend.
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
// The goroutines, one for each issuer, are those of [Clients.Run], which waits for them.
//
// No token reaches a log, an error or anybody else.
package auth
