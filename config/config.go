package config

import (
	"reflect"
	"slices"
	"time"
)

// A Config is a whole, valid configuration with every default filled in.
//
// The tags of its fields declare the keys of a file; doc.go lists them. In doc 'quotes'
// are code.
type Config struct {
	// File is the path of the file, as it was given; empty without a file.
	File string

	// Given has the flags and variables of the environment that take precedence over File, by the key of their
	// setting: "--token-file" for tokenFile, "--cwd" for the directory of an upstream.
	Given map[string]string

	// Read are the absolute paths of all files that were read: File, and those with values.
	Read []string

	Frontend

	Limits        Limits        `key:"limits" table:"limits"`
	SessionIdle   time.Duration `key:"sessionIdle" table:"limits" default:"30m" min:"1ns" doc:"an HTTP session without traffic ends after this time"`
	SessionGone   time.Duration `key:"sessionGone" table:"limits" default:"5m" min:"1ns" doc:"an HTTP session whose GET stream closed ends after this time, if its client does not return. A client returns when it opens the stream again, sends a request or receives a response. From then on 'sessionIdle' applies, since some clients continue without the stream. Requests in flight and unfinished tasks keep the session, for 'sessionIdle' at most"`
	ListTimeout   time.Duration `key:"listTimeout" table:"limits" default:"10s" min:"1ns" doc:"merged lists leave out an upstream that is slower than this. Later lists do not wait for it until it answers, or no other upstream can. A sole upstream, and one at '/mcp/NAME', has 'requestTimeout' for each page"`
	Drain         time.Duration `key:"drain" table:"limits" default:"5s" doc:"time for requests in flight when a stdio client closes stdin"`
	DrainDelay    time.Duration `key:"drainDelay" table:"limits" default:"0s" doc:"after SIGTERM '/readyz' fails, and 'serve' and 'host' keep serving for this time. Then 'shutdownGrace' begins. A second signal skips the rest of the delay"`
	ShutdownGrace time.Duration `key:"shutdownGrace" table:"limits" default:"8s" doc:"total time for a shutdown, including the upstreams"`

	// Upstreams and Links are in the order of the file; disabled ones are left out.
	Upstreams  []Upstream `key:"upstreams" table:"servers" doc:"[servers](#upstreams), by name"`
	Links      []Link     `key:"links" table:"servers" doc:"[hosts elsewhere](#links), by name"`
	Prefix     string     `key:"prefix" table:"servers" default:"auto" enum:"auto,always,never" doc:"names as 'upstream__name': 'auto' with several upstreams, 'always', 'never'"`
	TokenStore string     `key:"tokenStore" table:"servers" default:"file" enum:"file,keyring" doc:"where the tokens of logins are kept: 'file', or the 'keyring' of the system"`

	CacheDir   string        `key:"cacheDir" table:"servers" is:"path" shown:"the user's cache directory" doc:"keeps what servers list [between runs](operations.md#servers-that-start-when-they-are-needed)"`
	CatalogAge time.Duration `key:"catalogAge" table:"servers" default:"24h" doc:"lists that are older are asked for again when a client uses them; '0': never"`

	Cluster Cluster `key:"cluster" table:"replicas"`

	// Policies say what clients may do, in the order of the file; nil allows everything.
	Policies []Policy `key:"policies" table:"clients" empty:"leave it out if all clients may do everything, or write - {who: any}" doc:"[what they may do](#what-clients-may-do); without it everything"`

	Admin  Admin  `key:"admin" table:"operators"`
	Logs   Logs   `key:"logs" table:"operators"`
	Traces Traces `key:"traces" table:"operators"`
}

// Frontend is how clients reach serve, and how they authenticate.
type Frontend struct {
	Listen         []string  `key:"listen" table:"addresses" is:"address" default:"127.0.0.1:8080" doc:"'HOST:PORT' or 'unix:///path'. Beyond loopback only if clients authenticate ('tokenFile', 'auth' or 'tls.clientCA'), or with 'insecure: true'"`
	Insecure       bool      `key:"insecure" table:"addresses" doc:"listen beyond loopback although clients do not authenticate"`
	TLS            ListenTLS `key:"tls" table:"addresses"`
	PublicURL      string    `key:"publicURL" table:"addresses" is:"publicURL" doc:"how clients reach us, such as 'https://mcp.example.com': 'https', or 'http' for this machine. Its name is an allowed 'Host'"` // without a slash at the end
	AllowedHosts   []string  `key:"allowedHosts" table:"addresses" is:"host" doc:"allowed values of 'Host', besides loopback names and the listen addresses; '\"*\"': any"`
	AllowedOrigins []string  `key:"allowedOrigins" table:"addresses" is:"origin" doc:"allowed web origins, besides loopback; '\"*\"': any. All allowed origins get CORS headers"`
	TokenFile      string    `key:"tokenFile" table:"clients" is:"path" doc:"file with the bearer token that clients must send; read again when it changes"`
	Auth           Auth      `key:"auth" table:"clients" doc:"[who clients are](#who-clients-are), besides 'tokenFile'"`
}

// ListenTLS holds the paths of PEM files with which serve terminates TLS. They are read
// again when they change. Cert needs Key, and Key needs Cert.
type ListenTLS struct {
	Cert     string `key:"cert" is:"path" doc:"PEM file of our certificate: 'serve' terminates TLS itself"`
	Key      string `key:"key" is:"path" doc:"PEM file of its private key"`
	ClientCA string `key:"clientCA" is:"path" doc:"PEM file of authorities: clients authenticate with certificates of these"`
}

// Logs says what is logged besides the default.
type Logs struct {
	Calls bool `key:"calls" doc:"one info line for each call: client, target, duration and result. Beyond 100 lines a second calls are left out, and the next line says how many ('left_out'); failed calls have 100 lines of their own"`
}

// Cluster makes serve one of several replicas behind one address. Without KeyFile there is one, and
// nothing else is set but Listen.
type Cluster struct {
	KeyFile   string   `key:"keyFile" is:"path" doc:"[replicas](operations.md#replicas): the file that all of them share, a key in each line, hex or base64 of 32 bytes or more. The first signs, all verify. Read again when it changes"`
	Join      []string `key:"join" is:"member" doc:"other replicas, 'HOST' or 'HOST:PORT', the port as in 'listen'. A name stands for all its addresses. This process may be among them"`
	Listen    string   `key:"listen" is:"twoPorts" default:":7946" doc:"'HOST:PORT' for the replicas: membership on TCP and UDP, and links on TCP at the next port. All of it is encrypted, and refuses who does not have a key"`
	Advertise string   `key:"advertise" is:"member" shown:"that of 'listen'" doc:"'HOST' or 'HOST:PORT' by which other replicas reach 'listen', if that differs"`
	Required  bool     `key:"required" doc:"[readiness](operations.md) waits until this process has met another replica"`
}

// Limits bound what clients may use. All are positive.
type Limits struct {
	Message  int64 `key:"message" is:"size" default:"16MiB" doc:"size of one message, in either direction"`
	Depth    int   `key:"depth" default:"1000" min:"1" max:"1000" doc:"levels of nesting in a message"`
	InFlight int   `key:"inFlight" default:"1024" min:"1" doc:"requests in flight of one client"`
	Sessions int   `key:"sessions" default:"256" min:"1" doc:"client sessions at a time; more get 503 with 'Retry-After'. Each needs a file descriptor ('ulimit -n'), and some memory for each upstream"`
}

// Admin says where operators connect, besides the Unix socket that each command has.
type Admin struct {
	Listen    []string `key:"listen" is:"address" doc:"'HOST:PORT' or 'unix:///path' for [operators](operations.md), besides the socket that each process has"`
	TokenFile string   `key:"tokenFile" is:"file" doc:"file with the bearer token that operators on TCP send; without it they get only probes and metrics"`
	Payloads  bool     `key:"payloads" doc:"operators on a Unix socket may see the content of messages ('tap --payloads', with what looks like a secret left out), and record all of it ('tap --record')"`
}

// Traces says where traces of calls are sent. The zero value leaves it to the environment.
type Traces struct {
	Endpoint    string            `key:"endpoint" is:"collector" doc:"base URL of a collector that gets [traces](operations.md#traces) of calls (OTLP over HTTP). Without it the variables of OpenTelemetry apply, such as 'OTEL_EXPORTER_OTLP_ENDPOINT'; without these there are no traces"`
	Sample      *float64          `key:"sample" is:"fraction" shown:"'1'" doc:"fraction of the traces without a parent that is recorded, from 0 to 1"` // nil: the environment decides, else all
	HeadersFrom map[string]string `key:"headersFrom" is:"file" keys:"headerName" doc:"headers for the collector, with values from files that are read again when they change"`
	TLS         TLS               `key:"tls" doc:"PEM files for an 'https' endpoint: its authorities, our certificate and its private key"`
	Off         bool              // no traces, whatever the environment says; it has no key
}

// TLS holds the paths of PEM files; empty ones mean the system's roots and no
// client certificate. They are read again when they change. Cert needs Key, and Key needs Cert.
type TLS struct {
	CA   string `key:"ca" is:"path"`
	Cert string `key:"cert" is:"path"`
	Key  string `key:"key" is:"path"`
}

// An Upstream is a configured server: a Process with a Command, or a Remote with a URL, never
// both.
type Upstream struct {
	Name string // [A-Za-z0-9_-]{1,32} without "__"
	Key  string // its path, for error lines: upstreams.docs

	// Only entries of other programs have these keys.
	Type    string `key:"type" is:"serverType" foreign:"true"` // "stdio", "http", "sse", "ws"; empty if it is not given
	EnvFile string `key:"envFile" is:"file" foreign:"true"`    // its variables are in Env

	Process
	Remote

	Era            string        `key:"era" is:"era" shown:"'auto'" doc:"what it speaks: 'legacy' (until 2025-11-25), 'modern' (2026-07-28), or 'auto': [the proxy finds out](eras.md)"` // empty: auto
	Shared         bool          `key:"session" is:"session" shown:"'isolated'" doc:"'isolated': each client has its own process or session; 'shared': all clients share one"`
	Roots          []string      `key:"roots" is:"uri" shown:" " doc:"shared only: URIs that answer its 'roots/list' outside of a call. Without them such a request is refused"`
	Required       bool          `key:"required" doc:"[readiness](operations.md) waits for it. It starts with the proxy: a shared server keeps running unless it rests, and is restarted when it ends. An isolated command, or a session with a remote server, is tried until it answers 'initialize' once"`
	Start          string        `key:"start" enum:"lazy,eager" shown:"'lazy'" doc:"'lazy': beside other upstreams, [a client's server starts when the client needs it](operations.md#servers-that-start-when-they-are-needed); 'eager': it starts with its client. The default is 'eager' for 'required' ones. A sole upstream starts with its client"` // empty: the default
	StartTimeout   time.Duration `key:"startTimeout" default:"30s" min:"1ns" doc:"for the answer to 'initialize'. A client's own 'initialize' waits at most 8 s, and for a server that was late before only if no other answers. The start continues"`
	RequestTimeout time.Duration `key:"requestTimeout" default:"0s" doc:"for an answer or progress, without a maximum. It pauses while the client is asked something; '0': as long as the client waits"`
	WriteTimeout   time.Duration `key:"writeTimeout" default:"60s" min:"1ns" doc:"a server that does not read stdin for this time is stopped"`
	StopGrace      time.Duration `key:"stopGrace" default:"2s" min:"1ns" doc:"time between closing stdin and SIGTERM, and again before SIGKILL"`
	IdleStop       time.Duration `key:"idleStop" default:"0s" doc:"a server without work for this time [rests](operations.md#servers-that-rest): it is stopped, and the next request starts it again. '0': never. Not for a server that keeps state in memory"`
	Prefix         *string       `key:"prefix" is:"prefix" shown:"its name" doc:"replaces the upstream's name in the names that clients see; '\"\"': no prefix"`
	Tools          Tools         `key:"tools" doc:"globs on the server's own tool names; deny wins. Calls are refused, too"`
	Methods        []string      `key:"methods" is:"glob" shown:" " doc:"globs on methods of [extensions](eras.md#extensions) that it has to itself, such as 'acme/*': its requests and notifications are for no other upstream"`
}

// A Process is a server that we start.
type Process struct {
	Command    string            `key:"command" is:"command" doc:"the program of a server that speaks MCP on stdin and stdout"` // absolute if it was given with a slash, else looked up in PATH
	Args       []string          `key:"args" is:"loose" doc:"its arguments"`
	Env        map[string]string `key:"env" is:"loose" keys:"envName" doc:"environment variables for it"`
	InheritEnv []string          `key:"inheritEnv" is:"envName" doc:"our variables that it gets besides 'PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'TERM', 'LANG', 'LC_*', 'TZ', 'TMPDIR', proxy settings, 'SSL_CERT_FILE', 'SSL_CERT_DIR', 'NODE_EXTRA_CA_CERTS' and 'REQUESTS_CA_BUNDLE'. 'AWS_*' means all that begin with 'AWS_', '[all]' means all"`
	Spare      int               `key:"spare" default:"0" max:"8" doc:"not with 'session: shared': [processes that are started ahead](operations.md#spare-processes), for a command that starts slowly. A new client takes one, and then another is started"`
	Cwd        string            `key:"cwd" is:"path" shown:"the proxy's own" doc:"working directory. It is relative to the config file, and so is a command with a slash"` // absolute; empty: the proxy's own
}

// A Remote is a server that we connect to.
type Remote struct {
	URL            string            `key:"url" is:"url" doc:"instead of a command: a remote server, 'http(s)://' or 'ws(s)://'"`
	Headers        map[string]string `key:"headers" is:"header" keys:"headerName" doc:"for each HTTP request to it"` // names are unique without regard to case
	HeadersFrom    map[string]string `key:"headersFrom" is:"file" keys:"headerName" doc:"the same with values from files, which are read again when they change. If a file is missing or empty, requests fail"`
	TLS            TLS               `key:"tls" shown:"the system's" doc:"PEM files: the authority to trust, our certificate and its private key; read again when they change. 'HTTPS_PROXY' and the like are used"`
	Auth           UpstreamAuth      `key:"auth" doc:"only with 'url': [how we authenticate](#how-the-proxy-proves-who-it-is)"`
	ForwardHeaders []ForwardedHeader `key:"forwardHeaders" is:"headerName" shown:"'[]'" doc:"only with 'url': [headers of the client's request](#headers-of-clients) that it gets, names or maps of the keys below"`
	MaxConcurrent  int               `key:"maxConcurrent" default:"0" doc:"only with an 'http(s)' 'url': concurrent requests to it, of all clients together. Others wait; '0': no bound"`
}

// Tools selects tools by globs on their original names. The zero value allows all.
type Tools struct {
	Allow []string `key:"allow" is:"glob"` // empty: all
	Deny  []string `key:"deny" is:"glob"`  // wins over Allow
}

// A Link connects to a host elsewhere. Either we dial it (Dial), or it dials us (Accept).
type Link struct {
	Name string // as an upstream's
	Key  string // its path, for error lines: links.tools

	Dial      string        `key:"dial" is:"dialURL" doc:"where its host listens: 'unix:///path', 'tls://' or 'wss://'; on this machine also 'tcp://' or 'ws://'"`
	Accept    bool          `key:"accept" doc:"its host dials us, at '/link'"` // needs TokenFile
	TokenFile string        `key:"tokenFile" is:"path" doc:"file with the bearer token that the host must send ('accept'), or that we send ('ws', 'wss'). Each accepted host has its own: a link is to one host, and the newest that dials takes it over. Two hosts with one token take turns, at least 30 s each, and each logs it. Read again when it changes"`
	TLS       TLS           `key:"tls" doc:"PEM files for 'tls' and 'wss': the authority to trust, our certificate and its private key; read again when they change"`
	Auth      UpstreamAuth  `key:"auth" doc:"[how we authenticate](#how-the-proxy-proves-who-it-is), instead of 'tokenFile' ('ws', 'wss' to dial)"`
	Upstreams []string      `key:"upstreams" is:"glob" min:"1" shown:"any" doc:"globs on what the host may announce: names of upstreams, and prefixes where it sets some. No later link gets such a name, whether this one is up or not: [who has a name](#two-upstreams-with-one-name)"`
	Required  bool          `key:"required" doc:"[readiness](operations.md) waits until the link is up, and fails while it is down"`
	Heartbeat time.Duration `key:"heartbeat" default:"5s" min:"1ns" doc:"how often the host is pinged. After three pings without an answer the link is down"`
}

// Changed returns the top-level keys whose values differ in now and that a reload does not
// apply.
func (c *Config) Changed(now *Config) (keys []string) {
	applied := []string{"upstreams", "links", "tokenFile", "auth", "policies"}
	before, after := reflect.ValueOf(*c), reflect.ValueOf(*now)
	for _, f := range fieldsOf(before.Type()) {
		if !slices.Contains(applied, f.key) && !reflect.DeepEqual(before.FieldByIndex(f.index).Interface(), after.FieldByIndex(f.index).Interface()) {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// Auth says how clients authenticate. The zero value requires nothing.
type Auth struct {
	Tokens []NamedToken `key:"tokens"`
	JWT    []Issuer     `key:"jwt"`
}

// A NamedToken is a static token and the name of its owner.
type NamedToken struct {
	Key       string // its path, for error lines: auth.tokens[0]
	Name      string `key:"name" is:"tokenName" needed:"true" doc:"name of the client in policies and logs"` // unique; "default" is that of Config.TokenFile
	TokenFile string `key:"tokenFile" is:"file" needed:"true" doc:"file with the token; read again when it changes"`
}

// An Issuer is an authorization server whose tokens (JWT) are accepted.
type Issuer struct {
	Key        string        // its path, for error lines: auth.jwt[0]
	Issuer     string        `key:"issuer" is:"issuer" needed:"true" doc:"its URL, exactly as in the claim 'iss', including a slash at the end. 'https', or 'http' of this machine"`
	Audience   []string      `key:"audience" is:"nonEmpty" min:"1" or:"text" needed:"true" doc:"a token must be for one of these ('aud'), one or a list. With 'publicURL' a token for the URL that a client requests is accepted, too. It is never optional: without it a token for any other service would be accepted"`
	JWKSURL    string        `key:"jwksURL" is:"optionalURL" shown:"discovered" doc:"where its keys are"`
	JWKSFile   string        `key:"jwksFile" is:"path" doc:"or the file with its keys, which is read again when it changes"`
	Algorithms []string      `key:"algorithms" is:"algorithm" min:"1" default:"RS256,ES256,EdDSA" doc:"accepted signature algorithms: also 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES384', 'ES512'"`
	Principal  string        `key:"principal" is:"nonEmpty" default:"sub" doc:"the claim that names the client"`
	Scopes     []string      `key:"scopes" is:"scope" doc:"scopes that every token must have"`
	Skew       time.Duration `key:"skew" default:"30s" max:"5m" doc:"allowed difference of clocks, '5m' at most"`
}

// A Policy says what some clients may do. The first one that matches a client decides.
type Policy struct {
	Key string // its path, for error lines: policies[0]
	Who Who    `key:"who" is:"who" needed:"true" doc:"'any', 'anonymous' (clients that have not authenticated), 'operator' (the client of 'stdio'), or a map of the keys below"`

	// Globs on <upstream>__<original>, and on the URIs of resources. Deny wins. If any of
	// the three has an Allow, everything else of all three is denied; else everything else
	// is allowed.
	Tools     Tools `key:"tools" doc:"globs on 'upstream__name', whatever names the client sees. Deny wins. If 'tools', 'prompts' or 'resources' has 'allow', everything else of all three is denied. What is denied is hidden, too"`
	Prompts   Tools `key:"prompts" doc:"the same for prompts"`
	Resources Tools `key:"resources" doc:"the same for resources, by their URIs"`

	Methods []string `key:"methods" is:"glob" shown:" " doc:"globs on methods of [extensions](eras.md#extensions). A policy with any 'allow' or 'deny' denies the methods that the proxy does not know, but for these"`

	Events PolicyEvents `key:"events"`

	// Scopes are such globs, with the scopes that a client needs for what they match. All that
	// match apply.
	Scopes map[string][]string `key:"scopes" is:"scope" keys:"glob" min:"1" shown:" " doc:"globs as above, and the scopes that a client needs for what they match. All that match apply. Only a JWT has scopes"`

	Limits PolicyLimits `key:"limits"`
}

// Who says which clients a policy matches: a client must match every field that is set. It is
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

// PolicyEvents decide about the events of servers.
type PolicyEvents struct {
	Deliver []string `key:"deliver" is:"glob" shown:"none" doc:"globs on the URLs to which servers may send [events](eras.md#events) for the client, such as 'https://hooks.example.com/*'"`
}

// PolicyLimits apply to each principal of a policy by itself. Zero means no limit of its own.
type PolicyLimits struct {
	Rate     float64 `key:"rate" is:"rate" doc:"requests and notifications: '10/s', '600/m' or '1000/h'. A burst may have as many as one second, or 10. Notifications beyond it are dropped and counted in the status; 'initialized' and cancellations do not count"` // a second
	InFlight int     `key:"inFlight" min:"1" shown:" " doc:"requests at a time. With requests that were cancelled and not answered by a server, for 30 s, there may be four times as many. All limits apply to each client, over all its connections"`
	Sessions int     `key:"sessions" min:"1" shown:" " doc:"sessions at a time"`
}

// UpstreamAuth says how we authenticate to a remote server. At most one field is set.
type UpstreamAuth struct {
	OAuth             *OAuth             `key:"oauth" doc:"a person logs in, with 'mcp-proxy login': '{}', or with a client that is registered there"`
	ClientCredentials *ClientCredentials `key:"clientCredentials" doc:"a program logs in, with one of the three files"`
}

// OAuth is a login by a person, in a browser or with "mcp-proxy login".
type OAuth struct {
	ClientID         string   `key:"clientId" shown:"registered by us" doc:"the client's id, or the 'https' URL of its client id metadata document"`
	ClientSecretFile string   `key:"clientSecretFile" is:"path" doc:"file with the client's secret"` // of a confidential client
	Scopes           []string `key:"scopes" is:"scope" shown:"those that the server names" doc:"scopes to ask for"`
}

// ClientCredentials is a login by a program, with exactly one of the three files.
type ClientCredentials struct {
	ClientID         string   `key:"clientId" doc:"the client's id"`
	ClientSecretFile string   `key:"clientSecretFile" is:"path" doc:"file with the client's secret"`
	PrivateKeyFile   string   `key:"privateKeyFile" is:"path" doc:"PEM or JWK file of a key that signs an assertion (private_key_jwt)"`
	AssertionFile    string   `key:"assertionFile" is:"path" doc:"file with an assertion that another program renews, such as the token of a workload"`
	TokenURL         string   `key:"tokenURL" is:"optionalURL" shown:"discovered" doc:"the token endpoint"`
	Scopes           []string `key:"scopes" is:"scope" shown:"those that the server names" doc:"scopes to ask for"`
}

// Options say where [Load] finds a configuration. With the zero value it searches for a
// file.
type Options struct {
	// File is a .yaml, .yml, .json or .toml file. Without it, and without
	// Command, mcp-proxy.yaml (.yml, .json, .toml) is searched for in the
	// working directory, then in $XDG_CONFIG_HOME/mcp-proxy (by default
	// ~/.config/mcp-proxy).
	File string

	// Command is the command after "--": one upstream named main. It gets the whole
	// environment, as a command in a shell does. No file is searched for then, and a
	// given file must not have upstreams.
	Command []string

	// Servers are upstreams as NAME=COMMAND LINE or NAME=URL, also instead of a file.
	Servers []string

	// Env (NAME=VALUE), Cwd and Shared apply to the upstreams of Command and Servers.
	Env    []string
	Cwd    string
	Shared bool

	// URL is a remote server, http, https, ws or wss: one upstream that is named as the
	// host. As with Command, no file is searched for, and a given file must not have
	// upstreams. It excludes Command.
	URL string

	// Headers are sent to URL, each "Name: value"; variables in values are expanded.
	Headers []string

	// Listen, AllowedOrigins, TokenFile, Insecure, TLS and PublicURL override every other
	// source of their setting, if they are set. Paths count from the working directory.
	Listen         []string
	AllowedOrigins []string
	TokenFile      string
	Insecure       *bool
	TLS            ListenTLS // each file by itself
	PublicURL      string

	// Instead says what the command takes instead of a file: "a URL", "-- CMD ARGS". It is for the error without one.
	Instead []string

	// Host is set for mcp-proxy host: links are a mistake, and the settings about
	// listening for clients are read but not checked.
	Host bool
}
