// Package oauth proves to remote servers who we are, with tokens of their authorization
// servers (OAuth 2.1, as in the MCP specification, basic/authorization). What it offers are
// the Credentials of packages remote and link.
//
//	              ┌─ Login ─────────────► flow, device ─► a person, and a browser
//	Credentials ──┤    refresh ─► Store, which all processes share
//	              └─ ClientCredentials ─► tokens, in memory
//	                                         │ both
//	Challenge ──► Discovery ──► Place ──► client ──► token endpoint
//
// A [Login] is for people: an authorization code by a browser, or a device code. What it
// gets outlives the process. [ClientCredentials] are for programs, which get tokens for
// themselves, and get others as easily.
//
// A server is asked without a token first. Its 401 or 403 is a [Challenge], which leads to
// its metadata and those to its authorization server: the [Place] where tokens come from.
//
// # Goroutines
//
// Of a Login one for a refresh and one for a login that a server has asked for; of
// ClientCredentials one while a token is fetched. None depends on the request that began it,
// and Close waits for all.
//
// Invariants:
//   - Whoever needs a token at the same time waits for one fetch, refresh or login, and may
//     stop waiting without harm to the others.
//   - A token that was just got and is refused is no reason for a loop. Tokens are replaced,
//     authorization servers asked, and people asked, after pauses.
//   - What an authorization server has given, or is to be proved to it, goes to no other one.
//     All that is sent goes over TLS, unless the server itself is reached without it.
//   - No error and no log line has a token, a secret, a code, an assertion, or what a server
//     wrote.
//
// The package does not know MCP, nor when requests are sent.
package oauth
