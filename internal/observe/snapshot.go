package observe

import "time"

// A Snapshot is what a proxy or a host does at one time.
type Snapshot struct {
	Upstreams []Upstream // that run here, by name, session and era
	Sessions  []Session  // of clients, the oldest first; a host has none
	Links     []Link     // to hosts elsewhere, in config order; a host has none
}

// An Upstream is what one client has of an upstream that runs here, or all clients that
// share it.
type Upstream struct {
	Name     string
	Session  string    // whose it is, as in the log
	Era      string    // of the streams to it
	Speaks   []string  // the eras of its server, as far as is known
	State    string    // starting, running, stopping, ready, waiting or crash loop
	Failures int       // ends in a row that count against it; at a start: those before
	Cause    string    // of the last of them; "" for none
	Next     time.Time // no start before; zero for any time

	// Of the newest process or remote session; zero if there was none.
	PID      int
	Started  time.Time
	InFlight int      // requests that it has not answered
	Unusable int      // lines on its stdout that were no message
	Stderr   []string // its last lines
}

// A Session is that of one client, or of all requests of one principal.
type Session struct {
	ID        string // as in the log
	Client    string // what the client calls itself; "" if it has not said
	Principal string // whose it is, for a session of a principal
	Transport string // stdio, websocket, http or http+sse
	Era       string // "legacy", "modern", or "" if that is not known yet
	Began     time.Time
	InFlight  int // calls that are not answered
}

// A Link leads to a host elsewhere.
type Link struct {
	Name      string
	Up        bool
	Lost      int      // how often it was lost
	Upstreams []string // that its host has announced, by name; kept while the link is lost
}
