package observe

// A ConnectInfo is what a client is told at the address of serve, before it connects: names and
// states, and nothing of what passes. A client that may not know of an upstream is not told of it.
type ConnectInfo struct {
	URL       string    `json:"url,omitzero"` // how clients reach the proxy, without a path; "" for the address that they have used
	Proof     []Proof   `json:"proof"`        // what a client may prove who it is with; empty: nothing is asked for
	Upstreams []Offered `json:"upstreams"`    // those that run here first, each in config order
	Operators []string  `json:"operators"`    // URLs of the page for operators; empty: it is on a Unix socket alone
}

// Offered is an upstream that a client may use.
type Offered struct {
	Name  string       `json:"name"`
	State Availability `json:"state"`
}

// Availability is one of few words for what an upstream is at.
type Availability string

// What upstreams are at, for clients.
const (
	Idle      Availability = "idle"      // no server of it runs; one starts when it is needed
	Starting  Availability = "starting"  //
	Running   Availability = "running"   //
	Failing   Availability = "failing"   // its server has ended, or did not start, and none runs
	Elsewhere Availability = "elsewhere" // behind a link, which is up
	Away      Availability = "away"      // behind a link, which is not up
)

// A Proof is one of few words for what a client proves who it is with.
type Proof string

// Proofs.
const (
	ByToken       Proof = "token"       // from an operator
	ByLogin       Proof = "login"       // the token of an authorization server
	ByCertificate Proof = "certificate" // of TLS
)
