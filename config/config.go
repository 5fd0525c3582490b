package config

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// A Config is a whole, valid configuration with every default filled in.
type Config struct {
	// File is where it came from, as it was named; empty without a file.
	File string `mapstructure:"-"`

	// Read are the files that it was read from, absolute: File, and those that its values
	// come from.
	Read []string `mapstructure:"-"`

	Frontend `mapstructure:",squash"`

	SessionIdle   time.Duration // an HTTP session without traffic ends after this
	SessionGone   time.Duration // and after this if its GET stream closed and nothing came since
	ListTimeout   time.Duration // an upstream slower than this is left out of a merged list
	Drain         time.Duration // for requests in flight when the client's input ends; may be zero
	DrainDelay    time.Duration // readiness fails so long before the shutdown; may be zero
	ShutdownGrace time.Duration // the whole budget of a shutdown; may be zero
	Prefix        string        // "auto", "always" or "never"
	TokenStore    string        // where the tokens of logins are kept: "file" or "keyring"

	Limits    Limits     `mapstructure:"-"`
	Admin     Admin      `mapstructure:"-"` // where operators look in
	Logs      Logs       `mapstructure:"-"` // besides what always is
	Traces    Traces     `mapstructure:"-"` // of calls, and where they go
	Policies  []Policy   `mapstructure:"-"` // what clients may, in the order of the file; nil: everything
	Upstreams []Upstream `mapstructure:"-"` // in the order of the file; disabled ones are left out
	Links     []Link     `mapstructure:"-"` // in the order of the file
}

// Frontend is how clients reach serve, and how they prove who they are.
type Frontend struct {
	Listen         []string  // HOST:PORT or unix:///path
	TLS            ListenTLS `mapstructure:"-"` // that serve ends itself; the zero value: none
	PublicURL      string    // how clients reach us, without a slash at the end: https://mcp.example.com; empty: unknown
	TokenFile      string    // path of the bearer token; empty: clients need none
	Auth           Auth      `mapstructure:"-"` // who clients are, besides TokenFile
	Insecure       bool      // listening beyond loopback without a token is intended
	AllowedHosts   []string  // besides loopback names and the listen addresses; "*" is any
	AllowedOrigins []string  // besides loopback; "*" is any
}

// Changed names the top-level keys whose values are others in now: those that a reload does
// not apply, which are all but upstreams and links.
func (c *Config) Changed(now *Config) (keys []string) {
	before, after := reflect.ValueOf(*c), reflect.ValueOf(*now)
	for _, f := range reflect.VisibleFields(before.Type()) {
		switch {
		case f.Anonymous || slices.Contains([]string{"File", "Read", "Upstreams", "Links", "TokenFile", "Auth", "Policies"}, f.Name):
		case !reflect.DeepEqual(before.FieldByIndex(f.Index).Interface(), after.FieldByIndex(f.Index).Interface()):
			keys = append(keys, keyOf(f.Name))
		}
	}
	return keys
}

// keyOf is the key of a field: tls, publicURL.
func keyOf(field string) string {
	if field == strings.ToUpper(field) {
		return strings.ToLower(field)
	}
	return strings.ToLower(field[:1]) + field[1:]
}

// Logs says what is logged besides what always is.
type Logs struct {
	Calls bool // one line for each call
}

// Limits bound what clients may ask for. All are positive.
type Limits struct {
	Message  int64 // bytes of one message
	Depth    int   // levels of nesting in a message
	InFlight int   // requests in flight of one client
	Sessions int   // client sessions at once
}

// An Upstream is one configured server: a Process with a Command, a Remote with a URL, or a
// Replay, never two of them.
type Upstream struct {
	Name string // [A-Za-z0-9_-]{1,32} without "__"
	Key  string // where it is configured, for error lines: upstreams.docs
	Type string // what an entry of mcpServers says: "stdio", "http", "sse", "ws"; empty: nothing

	Process
	Remote
	Replay string // absolute path of a recording that answers in place of a server

	Era            string        // "legacy" or "modern": what the server speaks; empty: found out
	Shared         bool          // session: shared; else each client has its own
	Required       bool          // readiness waits for it
	Roots          []string      // shared only: URIs that answer roots/list outside of a call; nil: it is refused then
	StartTimeout   time.Duration // positive
	RequestTimeout time.Duration // zero: the client's own
	WriteTimeout   time.Duration // positive
	StopGrace      time.Duration // positive
	Prefix         *string       // overrides Config.Prefix for this upstream; may be ""
	Tools          Tools
}

// A Process is a server that we start.
type Process struct {
	Command    string // absolute if it was given with a slash, else looked up in PATH
	Args       []string
	Env        map[string]string
	InheritEnv []string // names besides the usual ones (a final * matches the rest), or "all"
	Cwd        string   // absolute; empty: the proxy's own
}

// A Remote is a server elsewhere.
type Remote struct {
	URL           string            // http, https, ws or wss
	Headers       map[string]string // names with their case kept, unique without regard to it
	HeadersFrom   map[string]string // header name to the path of a file that holds its value
	TLS           TLS
	Auth          UpstreamAuth // how we prove who we are there; excludes a header Authorization
	MaxConcurrent int          // requests at once; zero: no bound
}

// TLS holds the paths of PEM files; empty ones mean the system's roots and no
// client certificate. Cert and Key come together.
type TLS struct{ CA, Cert, Key string }

// Tools selects tools by globs on their original names. The zero value allows all.
type Tools struct {
	Allow []string // empty: all
	Deny  []string // wins over Allow
}

// A Link leads to a host elsewhere. Either we dial it (Dial), or it dials us (Accept).
type Link struct {
	Name      string       // as an upstream's
	Key       string       // where it is configured, for error lines: links.tools
	Dial      string       // unix, tcp, tls, ws or wss URL; empty with Accept
	Accept    bool         // needs TokenFile
	TokenFile string       // path of the bearer token: what the host must send (Accept), or what we send (ws and wss)
	TLS       TLS          // of a tls or wss Dial; Cert and Key are ours
	Auth      UpstreamAuth // of a ws or wss Dial; excludes TokenFile
	Insecure  bool         // a tcp or ws Dial of another machine is intended
	Required  bool         // readiness waits for it
	Upstreams []string     // globs on names and prefixes that the host may announce; nil: any

	// Heartbeat is how often the host is asked for a sign of life. After three
	// without an answer it is gone. Positive.
	Heartbeat time.Duration
}

// defaultLimits, defaultLink and defaultUpstream are the defaults below the top level;
// settings has those of the top level.
func defaultLimits() Limits {
	return Limits{Message: 16 << 20, Depth: 1000, InFlight: 1024, Sessions: 256}
}

func defaultLink() Link { return Link{Heartbeat: 5 * time.Second} }

func defaultUpstream() Upstream {
	return Upstream{
		StartTimeout: 30 * time.Second,
		WriteTimeout: 60 * time.Second,
		StopGrace:    2 * time.Second,
	}
}
