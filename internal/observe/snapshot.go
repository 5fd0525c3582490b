package observe

import "time"

// A Snapshot is what a proxy or a host does at one time. Its JSON is what operators get.
type Snapshot struct {
	Upstreams []Upstream `json:"upstreams"` // that run here, by name, session and era
	Sessions  []Session  `json:"sessions"`  // of clients, the oldest first; a host has none
	Links     []Link     `json:"links"`     // to hosts elsewhere, in config order; a host has none
}

// An Upstream is what one client has of an upstream that runs here, or all clients that
// share it.
type Upstream struct {
	Name     string    `json:"name"`
	Session  string    `json:"session"`         // whose it is, as in the log
	Era      string    `json:"era"`             // of the streams to it
	Speaks   []string  `json:"speaks,omitzero"` // the eras of its server, as far as is known
	State    string    `json:"state"`           // starting, running, stopping, ready, waiting or crash loop
	Failures int       `json:"failures"`        // ends in a row that count against it; at a start: those before
	Cause    string    `json:"cause,omitzero"`  // of the last of them; "" for none
	Next     time.Time `json:"next,omitzero"`   // no start before; zero for any time

	// Of the newest process or remote session; zero if there was none.
	PID      int       `json:"pid,omitzero"`
	Started  time.Time `json:"started,omitzero"`
	InFlight int       `json:"inFlight"`        // requests that it has not answered
	Unusable int       `json:"unusable"`        // lines on its stdout that were no message
	Stderr   []string  `json:"stderr,omitzero"` // its last lines
}

// A Session is that of one client, or of all requests of one principal.
type Session struct {
	ID        string    `json:"id"`                 // as in the log
	Client    string    `json:"client,omitzero"`    // what the client calls itself; "" if it has not said
	Principal string    `json:"principal,omitzero"` // whose it is, for a session of a principal
	Transport string    `json:"transport"`          // stdio, websocket, http or http+sse
	Era       string    `json:"era"`                // "legacy", "modern", or "" if that is not known yet
	Began     time.Time `json:"began"`
	InFlight  int       `json:"inFlight"` // calls that are not answered
}

// A Link leads to a host elsewhere.
type Link struct {
	Name      string   `json:"name"`
	Up        bool     `json:"up"`
	Lost      int      `json:"lost"`                // how often it was lost
	Upstreams []string `json:"upstreams,omitempty"` // that its host has announced, by name; kept while the link is lost
}
