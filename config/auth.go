package config

import "time"

// Auth says who clients are. The zero value asks for nothing.
type Auth struct {
	Tokens []NamedToken `key:"tokens"`
	JWT    []Issuer     `key:"jwt"`
}

// A NamedToken is a static token and the name of its owner.
type NamedToken struct {
	Key       string // where it is configured, for error lines: auth.tokens[0]
	Name      string `key:"name" is:"tokenName" needed:"true" doc:"name of the client in policies and logs"` // unique; "default" is that of Config.TokenFile
	TokenFile string `key:"tokenFile" is:"file" needed:"true" doc:"file with the token; read again when it changes"`
}

// An Issuer is an authorization server whose tokens (JWT) are accepted.
type Issuer struct {
	Key        string        // where it is configured, for error lines: auth.jwt[0]
	Issuer     string        `key:"issuer" is:"issuer" needed:"true" doc:"its URL, exactly as in the claim 'iss', including a slash at the end. 'https', or 'http' of this machine"`
	Audience   []string      `key:"audience" is:"nonEmpty" min:"1" or:"text" needed:"true" doc:"a token must be for one of these ('aud'), one or a list. With 'publicURL' a token for the URL that a client requests is accepted, too. It is never optional: without it a token for any other service would be accepted"`
	JWKSURL    string        `key:"jwksURL" is:"optionalURL" shown:"discovered" doc:"where its keys are"`
	JWKSFile   string        `key:"jwksFile" is:"path" doc:"or the file with its keys, which is read again when it changes"`
	Algorithms []string      `key:"algorithms" is:"algorithm" min:"1" default:"RS256,ES256,EdDSA" doc:"accepted signature algorithms: also 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES384', 'ES512'"`
	Principal  string        `key:"principal" is:"nonEmpty" default:"sub" doc:"the claim that names the client"`
	Scopes     []string      `key:"scopes" is:"scope" doc:"scopes that every token must have"`
	Skew       time.Duration `key:"skew" default:"30s" max:"5m" doc:"allowed difference of clocks, '5m' at most"`
}

// A Policy is a rule that says what some clients may do. The first one that matches a
// client decides.
type Policy struct {
	Key string // where it is configured, for error lines: policies[0]
	Who Who    `key:"who" is:"who" needed:"true" doc:"'any', 'anonymous' (clients that have not authenticated), 'operator' (the client of 'stdio'), or a map of the keys below"`

	// Globs on <upstream>__<original>, and on the URIs of resources. Deny wins. If any of
	// the three has an Allow, everything else of all three is denied; else what is not
	// denied is allowed.
	Tools     Tools `key:"tools" doc:"globs on 'upstream__name', whatever names the client sees. Deny wins. If 'tools', 'prompts' or 'resources' has 'allow', everything else of all three is denied. What is denied is hidden, too"`
	Prompts   Tools `key:"prompts" doc:"the same for prompts"`
	Resources Tools `key:"resources" doc:"the same for resources, by their URIs"`

	// Scopes are globs like those and the scopes that what they match needs. All that match
	// count.
	Scopes map[string][]string `key:"scopes" is:"scope" keys:"glob" min:"1" shown:" " doc:"globs as above, and the scopes that a client needs for what they match. All that match apply. Only a JWT has scopes"`

	Limits PolicyLimits `key:"limits"`
}

// Who says which clients a policy matches: those to whom all applies that is set. It is
// never the zero value.
type Who struct {
	Any         bool              `key:"any" shown:" " doc:"all clients"` // nothing else is set
	Anonymous   bool              `key:"anonymous" shown:" " doc:"clients that have not authenticated"`
	Operator    bool              `key:"operator" shown:" " doc:"the client on stdio"`
	Token       string            `key:"token" is:"tokenName" doc:"the name of a token in 'auth.tokens', or 'default'"`
	User        string            `key:"user" is:"principal" doc:"a user of this system on the other end of a Unix socket, where no tokens are configured: the name, or the number if it has none"`
	Certificate string            `key:"certificate" is:"principal" doc:"the common name in a client's certificate, else its first URI, DNS name or email address"`
	Issuer      string            `key:"issuer" is:"nonEmpty" doc:"the issuer of a client's JWT; beside 'certificate' the common name of its authority"`
	Principal   string            `key:"principal" is:"principal" doc:"beside 'issuer': the name in a JWT"`
	Claims      map[string]string `key:"claims" is:"principal" keys:"claim" shown:" " doc:"beside 'issuer': claims of a JWT. A claim is equal to the text, or a list or text of words that contains it"`
}

// PolicyLimits are for each principal of a policy. Zero means no limit of its own.
type PolicyLimits struct {
	Rate     float64 `key:"rate" is:"rate" doc:"requests and notifications: '10/s', '600/m' or '1000/h'. A burst may have as many as one second, or 10. Notifications beyond it are dropped and counted in the status; 'initialized' and cancellations do not count"` // a second
	InFlight int     `key:"inFlight" min:"1" shown:" " doc:"requests at a time. With requests that were cancelled and not answered by a server, for 30 s, there may be four times as many. All limits apply to each client, over all its connections"`
	Sessions int     `key:"sessions" min:"1" shown:" " doc:"sessions at a time"`
}

// UpstreamAuth is how we authenticate to a remote server. At most one is set.
type UpstreamAuth struct {
	OAuth             *OAuth             `key:"oauth" doc:"a person logs in, with 'mcp-proxy login': '{}', or with a client that is registered there"`
	ClientCredentials *ClientCredentials `key:"clientCredentials" doc:"a program logs in, with one of the three files"`
}

// OAuth is how a person logs in: with a browser, or with "mcp-proxy login".
type OAuth struct {
	ClientID         string   `key:"clientId" shown:"registered by us" doc:"the client's id, or the 'https' URL of its client id metadata document"`
	ClientSecretFile string   `key:"clientSecretFile" is:"path" doc:"file with the client's secret"` // of a confidential client
	Scopes           []string `key:"scopes" is:"scope" shown:"those that the server names" doc:"scopes to ask for"`
}

// ClientCredentials is how a program authenticates: with exactly one of the three files.
type ClientCredentials struct {
	ClientID         string   `key:"clientId" doc:"the client's id"`
	ClientSecretFile string   `key:"clientSecretFile" is:"path" doc:"file with the client's secret"`
	PrivateKeyFile   string   `key:"privateKeyFile" is:"path" doc:"PEM or JWK file of a key that signs an assertion (private_key_jwt)"`
	AssertionFile    string   `key:"assertionFile" is:"path" doc:"file with an assertion that another program renews, such as the token of a workload"`
	TokenURL         string   `key:"tokenURL" is:"optionalURL" shown:"discovered" doc:"the token endpoint"`
	Scopes           []string `key:"scopes" is:"scope" shown:"those that the server names" doc:"scopes to ask for"`
}
