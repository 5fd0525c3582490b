package observe

import "time"

// Calls are the calls in flight.
type Calls struct {
	Now     time.Time     `json:"now"`
	Calls   []OpenRequest `json:"calls"`   // the oldest first
	LeftOut int           `json:"leftOut"` // younger ones that are not told of
}

// An OpenRequest is an unanswered request of a client. A host does not know the client.
type OpenRequest struct {
	Session   string    `json:"session"`            // as in the log
	Client    string    `json:"client,omitzero"`    // what the client calls itself; "" if it has not said
	Principal string    `json:"principal,omitzero"` // whose session it is, for one of a principal
	Transport string    `json:"transport,omitzero"` // of the session; "" on a host
	Era       string    `json:"era"`                // "legacy" or "modern"
	Method    string    `json:"method"`             // "other" for one that MCP does not have
	Upstream  string    `json:"upstream,omitzero"`  // that works on it; "" for none or several
	Tool      string    `json:"tool,omitzero"`      // as the upstream calls it; "" for none
	Began     time.Time `json:"began"`              // when it came
	WaitsFor  Wait      `json:"waitsFor"`           //
	Detail    string    `json:"detail,omitzero"`    // about what it waits for, in few words; "" for nothing
}

// A Wait is what a call waits for, in one word.
type Wait string

// Waits.
const (
	ForUpstream Wait = "upstream" // its server is working on it
	ForStart    Wait = "start"    // its server starts
	ForBackOff  Wait = "back-off" // its server is no restart before the time in Detail
	ForLink     Wait = "link"     // the link to its host is down
	ForLogin    Wait = "login"    // a login is needed
	ForClient   Wait = "client"   // the client was asked something for it, and has not answered
	ForRoom     Wait = "room"     // its server does not read, or works on as many as it may
	ForProxy    Wait = "proxy"    // the proxy is working on it, and may ask several servers
)
