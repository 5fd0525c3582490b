// Package oauth authenticates us to remote servers with tokens of their authorization servers (OAuth 2.1, as in the
// MCP specification, basic/authorization). Login and ClientCredentials implement the Credentials of packages remote
// and link.
//
//	              ┌─ Login ─────────────► browse, device ─► a person with a browser
//	Credentials ──┤    refresh ─► Store, shared by all processes
//	              └─ ClientCredentials ─► tokens, in memory
//	                                         │ both
//	challenge ──► discover ──► place ──► client ──► token endpoint
//
// A [Login] serves people: it gets an authorization code through a browser, or uses a device code. Its tokens
// outlive the process. [ClientCredentials] serve programs, which can get a new token at any time.
//
// The first request to a server carries no token. The server's 401 or 403 is a challenge. The challenge leads to
// the server's metadata, and these to its authorization server: the place where tokens come from.
//
// # Goroutines
//
// A Login runs at most three goroutines: one refreshes the token, one runs a login that a server asked for, and one
// saves again what could not be saved. ClientCredentials run one while they fetch a token. No goroutine depends on the
// request that started it, and Close waits for all of them.
//
// Invariants:
//   - Concurrent callers share one fetch, refresh or login. A caller that stops waiting does not disturb the others.
//   - A server that refuses each new token causes no loop: between new tokens, requests to the authorization server
//     and prompts there are pauses.
//   - A secret of one authorization server is never sent to another one. Everything is sent over TLS, unless the MCP
//     server itself is reached without TLS.
//   - Errors and log lines contain no token, secret, code, assertion, or text that a server wrote.
//
// The package knows nothing of MCP but the requests that ask for a challenge before a login, and does not decide when
// others are sent.
package oauth
