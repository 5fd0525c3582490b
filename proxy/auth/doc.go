// Package auth authenticates the clients of a proxy on HTTP. [Current] implements the Identifier of proxy/frontend: it
// uses the [Clients] of the current configuration, and ends what a client has opened when its proof ends.
//
//	               ┌ static tokens (token.go)
//	Authorization ─┤
//	               └ JWT (jwt.go), with a cache of verified ones
//	a certificate ── (certificate.go)
//	a Unix user ──── internal/identity
//
// The first proof of a request decides. A wrong one is refused even if the next one is right, because a client chooses
// how it wants to be known. Challenges and metadata (challenge.go) tell a client what to do about a refusal.
//
// [Current.Run] runs the goroutines, one and one for each issuer, and waits for them.
//
// No token reaches a log, an error or another server.
package auth
