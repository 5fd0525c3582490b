// Package identity says who a client is, in plain values: front ends find it out, and
// sessions, pools and policies go by it.
package identity

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"
)

// A Kind is what a client has proved itself with.
type Kind string

// Kinds.
const (
	Anonymous   Kind = "anonymous"   // with nothing, and nothing was asked for
	Token       Kind = "token"       // a static token, by its configured name
	JWT         Kind = "jwt"         // a token of an authorization server, by a claim of it
	Certificate Kind = "certificate" // a TLS certificate, by its subject
	User        Kind = "user"        // a Unix user on the other end of a socket
	Operator    Kind = "operator"    // who has started this program, on stdin and stdout
)

// A Principal is who a client is. Two clients with equal principals are one to the proxy.
// A principal of one kind or issuer is never one of another: the JWT whose subject is "ci"
// is not the token "ci".
type Principal struct {
	Kind   Kind
	Issuer string // who vouches for the name: that of a JWT, the authority of a certificate; else ""
	Name   string
}

// String is how logs name the principal: "token:ci", "anonymous",
// "jwt:alice@https://login.example.com". Two may look alike; compare principals themselves.
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

// Account is how metrics name the principal. There are as many as somebody has configured:
// a JWT or a certificate counts for who vouches for it, "jwt@https://login.example.com".
func (p Principal) Account() string {
	if p.Issuer != "" {
		p.Name = ""
	}
	return p.String()
}

// Key is a text that no other principal has.
func (p Principal) Key() string {
	return string(p.Kind) + " " + strconv.Quote(p.Issuer) + " " + strconv.Quote(p.Name)
}

// An Identity is a principal and what else its proof says. It must not be changed: many
// messages share one.
type Identity struct {
	Principal
	Scopes  []string        // what a JWT was granted
	Claims  json.RawMessage // of a JWT: its payload; else nil
	Expires time.Time       // when the proof ends; zero: never
}

// Lacks returns those of some scopes that the client was not granted; nil for none.
func (id *Identity) Lacks(scopes []string) (missing []string) {
	for _, s := range scopes {
		if !slices.Contains(id.Scopes, s) {
			missing = append(missing, s)
		}
	}
	return missing
}

// Nobody is who clients are where nothing is asked for.
var Nobody = &Identity{Principal: Principal{Kind: Anonymous}}

// TheOperator is whoever has started this program.
var TheOperator = &Identity{Principal: Principal{Kind: Operator}}

// MetadataPath is where the metadata of resources is (RFC 9728, section 3.1): the path of
// the resource follows.
const MetadataPath = "/.well-known/oauth-protected-resource"

// A Refusal is why a request is not served, and what its sender can do about it. It is the
// error of who identifies clients, and goes beside answers that a policy has refused: a
// front end with statuses then answers with that of the refusal.
type Refusal struct {
	Status     int           // of HTTP: 400, 401, 403, 429 or 503
	Code       string        // of RFC 6750: "invalid_token", "insufficient_scope", "invalid_request"; "" if nothing was given
	Text       string        // says to a human what is missing; no secret, and nothing of the token
	Scopes     []string      // all that the request needs
	RetryAfter time.Duration // with 429; else zero
	Log        bool          // worth a line in the log, of a 429
}

func (r *Refusal) Error() string { return r.Text }

// Reason is how metrics name the refusal: its code, or a word for its status.
func (r *Refusal) Reason() string {
	if r.Code != "" {
		return r.Code
	}
	if word, ok := reasons[r.Status]; ok {
		return word
	}
	return "other"
}

var reasons = map[int]string{400: "invalid_request", 401: "no_token", 403: "forbidden", 429: "limit", 503: "unavailable"}
