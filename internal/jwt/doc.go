// Package jwt reads and writes JSON Web Tokens (RFC 7519). An [Issuer] verifies those that
// others have signed, with [Keys] that it fetches. A [Key] signs our own.
//
// It is the only package that knows the JOSE library. What a token says about itself only
// selects among what the configuration allows: its alg among the algorithms, its kid among
// the keys of its issuer. The headers jku, x5u, jwk and x5c, with which a token would bring
// its own key, are never used.
//
// The one goroutine is that of [Keys.Run], which belongs to its caller: it alone fetches.
// Whoever verifies a token waits for its next set of keys at most, and no lock is held
// meanwhile. What is fetched is bounded, and so is how often tokens make it fetch.
package jwt
