// Package policy says what a client may. It asks nobody: it takes rules and identities, as
// values, and returns decisions.
//
//	rules, of a configuration ──New──► Policies ──For(identity)──► Grant ──Decide(kind, name)──► Decision
//	                                       └─────────────────────────┴──Begin, Admit──► limits, by principal
//
// The first rule that is about a client decides, and it alone. Who matches none may
// nothing. Without policies, which is a nil Grant, all is allowed and costs nothing.
//
// Its parts:
//
//   - rule.go: what a rule says, and whom it is about.
//   - grant.go: what one client may, by its rule.
//   - uri.go: in which ways servers read a URI, and what is refused since they do not agree.
//   - policies.go: all rules, and who has which grant.
//   - usage.go: rate, requests in flight and sessions, by principal.
//
// Grants and rules are immutable. There is no goroutine and no log here.
package policy
