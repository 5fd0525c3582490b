package observe

import "time"

// A Snapshot is the current state of a proxy or a host. Its JSON is that of /status.
type Snapshot struct {
	Process   Process    `json:"process"`
	Traffic   []Traffic  `json:"traffic"`   // by upstream: those that run here first, by name
	Upstreams []Upstream `json:"upstreams"` // servers that run here, by name, session and era, then spare processes
	Sessions  []Session  `json:"sessions"`  // of clients, the oldest first; empty on a host
	Links     []Link     `json:"links"`     // to hosts elsewhere, in config order; empty on a host

	Replicas []Replica   `json:"replicas,omitempty"` // proxies behind the same address, this one first; none for a proxy that is alone
	Rejected []Rejection `json:"rejected,omitempty"` // upstreams of a host that a proxy does not offer; see Link for a proxy
}

// A Rejection is an announced upstream that the proxy does not offer to clients.
type Rejection struct {
	Upstream string `json:"upstream"`
	Why      string `json:"why"`
	Event    string `json:"event"` // the same at both ends of the link
}

// A Process describes the running program.
type Process struct {
	Role     string    `json:"role"` // "proxy" or "host"
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	Began    time.Time `json:"began"`
	File     string    `json:"file,omitzero"`   // of the configuration; "" for none
	Dir      string    `json:"dir"`             // the working directory at the start
	Listen   []string  `json:"listen,omitzero"` // addresses for clients, or of a host for proxies
	Draining bool      `json:"draining"`

	MaxSessions int `json:"maxSessions,omitzero"` // limits.sessions of a proxy
}

// Traffic is what passes between all clients and one upstream, which may be at a host elsewhere. The figures of the
// last minute are zero if nobody counts.
type Traffic struct {
	Upstream string `json:"upstream"`
	Link     string `json:"link,omitzero"` // to its host; "" if it runs here

	// Of an upstream that runs here. The State is the first that applies of: crash loop, waiting, starting, running,
	// stopping, failed, resting, idle. Failed is set until one of its servers answers again.
	Required bool    `json:"required,omitzero"` // readiness waits for it
	State    string  `json:"state,omitzero"`
	Failed   Failure `json:"failed,omitzero"`

	Listed time.Time `json:"listed,omitzero"` // when the catalog last asked it for its lists; zero: never

	InFlight    int     `json:"inFlight"`         // calls that it has not answered
	Resting     int     `json:"resting,omitzero"` // clients whose servers were stopped because they were idle
	Suspended   int     `json:"suspended"`        // suspended calls of its clients; only of one that runs here
	QueuedBytes int     `json:"queuedBytes"`      // that wait until it reads
	Requests    int     `json:"requests"`         // that were answered or lost in the last minute
	Errors      int     `json:"errors"`           // of these: answered with an error, or lost
	PerSecond   float64 `json:"perSecond"`        // of the requests
	P50         float64 `json:"p50Ms"`            // half of them took at most this
	P99         float64 `json:"p99Ms"`            // 99 of 100 took at most this
}

// A Failure is the last failed end or start of an upstream's servers. With several clients it is that of the server
// with the most failures in a row.
type Failure struct {
	Cause  string    `json:"cause"`
	Says   string    `json:"says"`          // the cause in words that follow the upstream's name
	Event  string    `json:"event"`         // its id in errors and the log
	InARow int       `json:"inARow"`        // failures, with this one
	Next   time.Time `json:"next,omitzero"` // no start before; zero for any time
}

// An Upstream is a server that runs here: a process or a remote session, of one client or shared by all.
type Upstream struct {
	Name     string   `json:"name"`
	Session  string   `json:"session"`         // that it serves, as in the log
	Era      string   `json:"era"`             // of the streams to it
	Speaks   []string `json:"speaks,omitzero"` // known eras of its server
	State    string   `json:"state"`           // starting, running, stopping or Spare
	Failures int      `json:"failures"`        // of the upstream in a row before this server

	PID          int       `json:"pid,omitzero"` // of a process
	Started      time.Time `json:"started,omitzero"`
	InFlight     int       `json:"inFlight"`        // requests that it has not answered
	Unusable     int       `json:"unusable"`        // lines on its stdout that were no message
	Unattributed int       `json:"unattributed"`    // its dropped messages, whose client was not known
	Stderr       []string  `json:"stderr,omitzero"` // its last lines
}

// Spare is the state of a process that was started ahead: it has no session yet, and nothing was written to it.
const Spare = "spare"

// A Session is the session of one client, or of all requests of one principal.
type Session struct {
	ID        string    `json:"id"`                 // as in the log
	Client    string    `json:"client,omitzero"`    // the client's name for itself; "" if not given
	Principal string    `json:"principal,omitzero"` // of the session, if it belongs to a principal
	Transport string    `json:"transport"`          // stdio, websocket, http or http+sse
	Resumed   string    `json:"resumed,omitzero"`   // it came from another replica: "moved" by it, or "adopted" after its death
	Era       string    `json:"era"`                // "legacy" or "modern"; "" if not known yet
	Began     time.Time `json:"began"`
	InFlight  int       `json:"inFlight"` // unanswered requests without subscriptions
	Listens   int       `json:"listens"`  // open subscriptions

	QueuedBytes int `json:"queuedBytes"`      // that wait until the client reads
	Dropped     int `json:"dropped,omitzero"` // notifications of the client beyond limits.rate
}

// A Link leads to a host elsewhere.
type Link struct {
	Name      string   `json:"name"`
	Up        bool     `json:"up"`
	Through   string   `json:"through,omitzero"`    // the instance of the replica that the host has dialled; "" for this one
	Required  bool     `json:"required,omitzero"`   // readiness waits for it
	Why       string   `json:"why,omitzero"`        // it is down, in words that follow its name
	Lost      int      `json:"lost"`                // how often it was lost
	Upstreams []string `json:"upstreams,omitempty"` // announced and offered, by name; kept while the link is lost

	Rejected []Rejection `json:"rejected,omitempty"` // announced and not offered
}

// A Replica is one of several proxies behind the same address.
type Replica struct {
	Instance string `json:"instance"`         // the random name of its process, with which its session ids begin
	Self     bool   `json:"self,omitzero"`    // this process
	Address  string `json:"address"`          // for the other replicas
	State    string `json:"state"`            // "ready" or "draining"
	Version  string `json:"version"`          // of its program
	Sessions int    `json:"sessions"`         // of Streamable HTTP that it has, some seconds ago
	Linked   bool   `json:"linked,omitzero"`  // this process has a link to it, on which it passes requests on
	Differs  bool   `json:"differs,omitzero"` // its configuration is not that of this process

	Unreachable bool `json:"unreachable,omitzero"` // the link to it was lost, or could not be made

	Moves *Moves `json:"moves,omitempty"` // of sessions; of this process only
}

// Moves are what became of sessions that moved from one replica to another.
type Moves struct {
	Waiting int `json:"waiting"` // sessions of others that are here, and that their clients have not used since
	Kept    int `json:"kept"`    // sessions of others, which go on here if these die
	Taken   int `json:"taken"`   // sessions that others have moved here, so far
	Resumed int `json:"resumed"` // those of them and of the adopted ones that their clients have used since
	Adopted int `json:"adopted"` // sessions that were continued here, since the replica that had them has died
	Yielded int `json:"yielded"` // sessions that ended here, since another replica had continued them
	Found   int `json:"found"`   // sessions that were found at another replica than the one that made them, which is gone
	Missing int `json:"missing"` // those that nobody had
}

// Health is the output of healthcheck.
type Health struct {
	OK   bool     `json:"ok"`   // the process is ready, or runs if that was the question
	Says []string `json:"says"` // the lines of its answer
}

// Calls are the requests of clients in flight. Its JSON is that of /calls.
type Calls struct {
	Now     time.Time     `json:"now"`
	Calls   []OpenRequest `json:"calls"`   // the oldest first
	LeftOut int           `json:"leftOut"` // younger ones that are not in the list
}

// An OpenRequest is an unanswered request of a client. A host does not know the client.
type OpenRequest struct {
	Session   string    `json:"session"`            // as in the log
	Client    string    `json:"client,omitzero"`    // the client's name for itself; "" if not given
	Principal string    `json:"principal,omitzero"` // of the session, if it belongs to a principal
	Transport string    `json:"transport,omitzero"` // of the session; "" on a host
	Era       string    `json:"era"`                // "legacy" or "modern"
	Method    string    `json:"method"`             // "other" if MCP does not have it
	Upstream  string    `json:"upstream,omitzero"`  // that works on it; "" for none or several
	Tool      string    `json:"tool,omitzero"`      // the upstream's name for it; "" for none
	Began     time.Time `json:"began"`              // when it arrived
	WaitsFor  Wait      `json:"waitsFor"`
	Detail    string    `json:"detail,omitzero"` // of the wait, in a few words; "" for none
}

// A Wait is what a request waits for, in one word.
type Wait string

// Waits.
const (
	ForUpstream Wait = "upstream" // its server is working on it
	ForStart    Wait = "start"    // its server is starting
	ForBackOff  Wait = "back-off" // its server restarts at the time in Detail
	ForLink     Wait = "link"     // the link to its host is down
	ForLogin    Wait = "login"    // a login is needed
	ForClient   Wait = "client"   // the client has not answered a question of the server
	ForRoom     Wait = "room"     // its server does not read, or has reached its limit
	ForProxy    Wait = "proxy"    // the proxy is working on it, and may ask several servers
)

// A ConnectInfo is what a client sees at the address of serve before it connects: names and states, and no messages.
// It has no upstreams that the client may not know.
type ConnectInfo struct {
	URL       string    `json:"url,omitzero"` // of the proxy for clients, without a path; "" for the address that they used
	Proof     []string  `json:"proof"`        // of ByToken, ByLogin and ByCertificate; empty if clients need none
	Upstreams []Offered `json:"upstreams"`    // those that run here first, each in config order
	Operators []string  `json:"operators"`    // URLs of the page for operators; empty: it is only on a Unix socket
}

// Offered is an upstream that a client may use.
type Offered struct {
	Name  string `json:"name"`
	State string `json:"state"` // Idle, Starting, Running, Failing, Elsewhere or Away
}

// States of upstreams for clients.
const (
	Idle      = "idle" // no server runs; one starts on the next request
	Starting  = "starting"
	Running   = "running"
	Failing   = "failing"   // a server ended or did not start, and none runs
	Elsewhere = "elsewhere" // behind a link that is up
	Away      = "away"      // behind a link that is down
)

// Proofs of a client's identity.
const (
	ByToken       = "token"       // from an operator
	ByLogin       = "login"       // the token of an authorization server
	ByCertificate = "certificate" // of TLS
)
