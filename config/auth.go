package config

import "time"

// ListenTLS holds the paths of PEM files with which serve ends TLS. They are read again
// when they change. Cert and Key come together.
type ListenTLS struct {
	Cert, Key string
	ClientCA  string // clients are known by certificates of these authorities; empty: none are asked for
}

// Auth says who clients are. The zero value asks for nothing.
type Auth struct {
	Tokens []NamedToken
	JWT    []Issuer
}

// A NamedToken is a static token, and who has it.
type NamedToken struct {
	Key       string // where it is configured, for error lines: auth.tokens[0]
	Name      string // unlike that of all others; "default" is that of Config.TokenFile
	TokenFile string // read again when it changes
}

// An Issuer is an authorization server whose tokens (JWT) are accepted.
type Issuer struct {
	Key        string        // where it is configured, for error lines: auth.jwt[0]
	Issuer     string        // as in the claim iss, and where its metadata is found
	Audience   []string      // a token must be for one of these; never empty
	JWKSURL    string        // where its keys are; empty with JWKSFile, or to be discovered
	JWKSFile   string        // or the file with them, which is read again when it changes
	Algorithms []string      // that tokens may be signed with; never empty, never "none" or HS256
	Principal  string        // the claim that names the principal: "sub"
	Scopes     []string      // that every token must have
	Skew       time.Duration // by how much clocks may differ
}

// A Policy is a rule that says what some clients may. The first one that is about a client
// decides.
type Policy struct {
	Key string // where it is configured, for error lines: policies[0]
	Who Who

	// Globs on <upstream>__<original>, and on the URIs of resources. Deny wins. If any of
	// the three allows something, nothing else is allowed, of all three; else all is that is
	// not denied.
	Tools, Prompts, Resources Tools

	// Scopes are globs like those and the scopes that what they match needs. All that match
	// count.
	Scopes map[string][]string

	Limits PolicyLimits
}

// Who says which clients a policy is about: those to whom all applies that is set. It is
// never the zero value.
type Who struct {
	Any         bool              // all of them; nothing else is set
	Anonymous   bool              // who has proved nothing
	Operator    bool              // the client on stdio
	Token       string            // the name of a static token
	User        string            // the name of a Unix user, or the number of one that has none
	Certificate string            // the name in a client's certificate
	Issuer      string            // that vouches: of a JWT, or the authority of a certificate
	Principal   string            // the name of a JWT's principal; beside Issuer
	Claims      map[string]string // of a JWT: each is equal to this text, or holds it as an element or a word; beside Issuer
}

// PolicyLimits are for each principal of a policy. Zero means no limit of its own.
type PolicyLimits struct {
	Rate     float64 // requests a second; a burst may have those of one second, and at least 10
	InFlight int     // requests at once
	Sessions int
}

// UpstreamAuth is how we prove who we are to a remote server. At most one is set.
type UpstreamAuth struct {
	OAuth             *OAuth
	ClientCredentials *ClientCredentials
}

// OAuth is how a person logs in: with a browser, or with "mcp-proxy login".
type OAuth struct {
	ClientID         string   // given beforehand; an https URL is that of a client id metadata document; empty: we register
	ClientSecretFile string   // of a confidential client
	Scopes           []string // to ask for; nil: those that the server names
}

// ClientCredentials is how a program proves who it is: with exactly one of the three files.
type ClientCredentials struct {
	ClientID         string
	ClientSecretFile string
	PrivateKeyFile   string   // PEM or JWK: signs an assertion (private_key_jwt)
	AssertionFile    string   // an assertion that somebody else renews, as a token of a workload
	TokenURL         string   // empty: discovered
	Scopes           []string // to ask for; nil: those that the server names
}
