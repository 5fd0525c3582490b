// Package policy decides what a client may do. It takes rules and identities as values and returns decisions.
//
//	rules of a configuration ─Replace─► Policies ──For(identity)──► Grant ──Decide(kind, name)──► Decision
//	                                       └─────────────────────────┴──Begin, Admit──► limits, by principal
//
// The first rule that matches a client decides alone. A client that no rule matches may do nothing. Without policies,
// which is a nil Grant, everything is allowed and costs nothing.
//
//   - rule.go: what a rule says, and which clients it matches.
//   - grant.go: what one client may do by its rule.
//   - uri.go: how servers may read a URI; a URI that they may read in different ways is refused.
//   - policies.go: all rules, and the grant of each client.
//   - usage.go: rate, requests in flight and sessions, by principal.
//
// Grants and rules are immutable. The package starts no goroutines and logs nothing.
package policy
