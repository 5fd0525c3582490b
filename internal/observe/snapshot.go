package observe

import "time"

// A Snapshot is the current state of a proxy or a host. Its JSON is what operators get.
type Snapshot struct {
	Process   Process    `json:"process"`
	Traffic   []Traffic  `json:"traffic"`   // by upstream: those that run here first, in name order
	Upstreams []Upstream `json:"upstreams"` // servers that run here, by name, session and era
	Sessions  []Session  `json:"sessions"`  // of clients, the oldest first; a host has none
	Links     []Link     `json:"links"`     // to hosts elsewhere, in config order; a host has none

	Rejected []Rejection `json:"rejected,omitempty"` // upstreams of a host that a proxy does not offer; a proxy's are with its links
}

// A Rejection is an announced upstream that the proxy does not offer to clients.
type Rejection struct {
	Upstream string `json:"upstream"`
	Why      string `json:"why"`
	Event    string `json:"event"` // the same at both ends
}

// A Process describes the running program.
type Process struct {
	Role     string    `json:"role"` // "proxy" or "host"
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	Began    time.Time `json:"began"`
	File     string    `json:"file,omitzero"`   // that its configuration was read from; "" for none
	Dir      string    `json:"dir"`             // in which it was started
	Listen   []string  `json:"listen,omitzero"` // addresses for clients, or of a host for proxies
	Draining bool      `json:"draining"`        // it is draining

	MaxSessions int `json:"maxSessions,omitzero"` // limits.sessions of a proxy
}

// Traffic is between all clients and one upstream, here or at a host elsewhere. Figures of the last minute are zero if
// nothing is counted.
type Traffic struct {
	Upstream    string  `json:"upstream"`
	Link        string  `json:"link,omitzero"`     // to its host; "" for one that runs here
	Required    bool    `json:"required,omitzero"` // readiness waits for it; of one that runs here
	State       string  `json:"state,omitzero"`    // of one that runs here: of crash loop, waiting, starting, running, stopping, failed and idle the first that applies
	Failed      Failure `json:"failed,omitzero"`   // of one that runs here, until one of its servers answers again
	InFlight    int     `json:"inFlight"`          // requests that it has not answered
	Suspended   int     `json:"suspended"`         // calls whose clients were told to come back with what it asked; of one that runs here
	QueuedBytes int     `json:"queuedBytes"`       // that wait until it reads
	Requests    int     `json:"requests"`          // that it has answered in the last minute, or failed to
	Errors      int     `json:"errors"`            // of those: answered with an error, or not at all
	PerSecond   float64 `json:"perSecond"`         // of the requests
	P50         float64 `json:"p50Ms"`             // half of them took no longer
	P99         float64 `json:"p99Ms"`             // likewise 99 of 100
}

// A Failure is the last failed end or start of an upstream's servers. With several clients it is that of the server
// that failed most often in a row.
type Failure struct {
	Cause  string    `json:"cause"`
	Says   string    `json:"says"`          // the same in words that follow the upstream's name
	Event  string    `json:"event"`         // its id in errors and the log
	InARow int       `json:"inARow"`        // it and the failures before it
	Next   time.Time `json:"next,omitzero"` // no start before; zero for any time
}

// An Upstream is a server that runs here: a process or a remote session, of one client or shared by all.
type Upstream struct {
	Name     string   `json:"name"`
	Session  string   `json:"session"`         // whose it is, as in the log
	Era      string   `json:"era"`             // of the streams to it
	Speaks   []string `json:"speaks,omitzero"` // the eras of its server, as far as is known
	State    string   `json:"state"`           // starting, running or stopping
	Failures int      `json:"failures"`        // ends in a row before it that count against it

	PID          int       `json:"pid,omitzero"` // of a process
	Started      time.Time `json:"started,omitzero"`
	InFlight     int       `json:"inFlight"`        // requests that it has not answered
	Unusable     int       `json:"unusable"`        // lines on its stdout that were no message
	Unattributed int       `json:"unattributed"`    // its messages that could be for any of several clients, and were dropped
	Stderr       []string  `json:"stderr,omitzero"` // its last lines
}

// A Session is the session of one client, or of all requests of one principal.
type Session struct {
	ID        string    `json:"id"`                 // as in the log
	Client    string    `json:"client,omitzero"`    // what the client calls itself; "" if it has not said
	Principal string    `json:"principal,omitzero"` // whose it is, for a session of a principal
	Transport string    `json:"transport"`          // stdio, websocket, http or http+sse
	Era       string    `json:"era"`                // "legacy", "modern", or "" if that is not known yet
	Began     time.Time `json:"began"`
	InFlight  int       `json:"inFlight"` // calls that are not answered; subscriptions are none
	Listens   int       `json:"listens"`  // open subscriptions

	QueuedBytes int `json:"queuedBytes"`      // that wait until the client reads
	Dropped     int `json:"dropped,omitzero"` // notifications of the client beyond limits.rate
}

// A Link leads to a host elsewhere.
type Link struct {
	Name      string   `json:"name"`
	Up        bool     `json:"up"`
	Required  bool     `json:"required,omitzero"`   // readiness waits for it
	Why       string   `json:"why,omitzero"`        // it is not up: in words that follow its name
	Lost      int      `json:"lost"`                // how often it was lost
	Upstreams []string `json:"upstreams,omitempty"` // that its host has announced and clients get, by name; kept while the link is lost

	Rejected []Rejection `json:"rejected,omitempty"` // others that its host has announced
}

// Health is the output of healthcheck.
type Health struct {
	OK   bool     `json:"ok"`   // the process is ready, or runs if that was the question
	Says []string `json:"says"` // the lines of its answer
}
