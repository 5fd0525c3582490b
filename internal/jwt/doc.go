// Package jwt reads and writes JSON Web Tokens (RFC 7519). An [Issuer] verifies the tokens of an authorization server
// with [Keys] that it fetches. [Assertion] signs our own.
//
// It is the only package that uses the JOSE library. What a token says about itself only selects from what the
// configuration allows: its alg from the algorithms, its kid from the keys of its issuer. The headers jku, x5u, jwk and
// x5c, with which a token would bring its own key, are never used.
//
// The only goroutine is [Keys.Run], which belongs to its caller. It alone fetches keys. Verifying a token waits at most
// for the next fetch, and holds no lock meanwhile. The size of what is fetched is bounded, and so is how often tokens
// can cause a fetch.
package jwt
