// Package identity has plain values that say who a client is. Front ends find it out; sessions, pools and policies use
// it.
package identity

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"
)

// A Kind is how a client was authenticated.
type Kind string

// The name of a principal depends on its kind.
const (
	Anonymous   Kind = "anonymous"   // not at all, because the proxy asks for nothing
	Token       Kind = "token"       // by a static token; its configured name
	JWT         Kind = "jwt"         // by a token of an authorization server; one of its claims
	Certificate Kind = "certificate" // by a TLS certificate; its subject
	User        Kind = "user"        // by a Unix socket; the user at its other end
	Operator    Kind = "operator"    // on stdin and stdout: whoever has started this program
)

// A Principal is who a client is. The proxy treats clients with equal principals as one. Principals of different kinds
// or issuers are different: the JWT whose subject is "ci" is not the token "ci".
type Principal struct {
	Kind   Kind
	Issuer string // of a JWT, or the authority of a certificate; else ""
	Name   string
}

// String returns the principal for logs: "token:ci", "anonymous", "jwt:alice@https://login.example.com". Two different
// principals may look alike.
func (p Principal) String() string {
	s := string(p.Kind)
	if p.Name != "" {
		s += ":" + p.Name
	}
	if p.Issuer != "" {
		s += "@" + p.Issuer
	}
	return s
}

// Account returns the principal for metrics. To bound their number, JWTs and certificates have the name of their issuer
// only: "jwt@https://login.example.com".
func (p Principal) Account() string {
	if p.Issuer != "" {
		p.Name = ""
	}
	return p.String()
}

// Key returns a unique text.
func (p Principal) Key() string {
	return string(p.Kind) + " " + strconv.Quote(p.Issuer) + " " + strconv.Quote(p.Name)
}

// An Identity is a principal with the other contents of its proof. It must not be changed, because messages share it.
type Identity struct {
	Principal
	Scopes  []string        // granted to a JWT
	Claims  json.RawMessage // the payload of a JWT; else nil
	Expires time.Time       // zero: never
	Good    context.Context // of a JWT: done when its key or its issuer is withdrawn; else nil
}

// Lacks returns the scopes that the client was not granted, nil for none.
func (id *Identity) Lacks(scopes []string) (missing []string) {
	for _, s := range scopes {
		if !slices.Contains(id.Scopes, s) {
			missing = append(missing, s)
		}
	}
	return missing
}

// Nobody is the identity of clients where the proxy asks for nothing.
var Nobody = &Identity{Principal: Principal{Kind: Anonymous}}

// TheOperator is the identity of whoever has started this program.
var TheOperator = &Identity{Principal: Principal{Kind: Operator}}

// MetadataPath is the path of the metadata of resources (RFC 9728, section 3.1), before the path of the resource.
const MetadataPath = "/.well-known/oauth-protected-resource"

// Proofs are the kinds of proof by which a proxy identifies clients on HTTP.
type Proofs struct {
	Tokens       bool // static ones
	Issuers      bool // tokens of authorization servers
	Certificates bool
}

// A Refusal is why a request is not served, and what its sender can do about it. It is an error of authentication, or
// goes along with an answer that a policy refuses: front ends with HTTP statuses then use that of the refusal.
type Refusal struct {
	Status     int           // HTTP: 400, 401, 403, 429 or 503
	Code       string        // of RFC 6750, such as "invalid_token"; "" without credentials
	Text       string        // for people; has no secret, and nothing of the token
	Scopes     []string      // all scopes that the request needs
	RetryAfter time.Duration // with 429; else zero
	Log        bool          // worth a line in the log, of a 429
}

func (r *Refusal) Error() string { return r.Text }

// Reason returns the refusal for metrics: its code, or a word for its status.
func (r *Refusal) Reason() string {
	if r.Code != "" {
		return r.Code
	}
	if word, ok := reasons[r.Status]; ok {
		return word
	}
	return "other"
}

var reasons = map[int]string{
	400: "invalid_request", 401: "no_token", 403: "forbidden", 429: "limit", 503: "unavailable",
}
