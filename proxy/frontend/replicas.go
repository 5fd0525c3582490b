package frontend

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// Replicas are the other processes behind the address of this one. A client's requests arrive at any
// of them; those of a session are passed on to the one that has it. Its methods are called
// concurrently.
type Replicas interface {
	// Instance returns the name of this process among the replicas, with which its ids begin.
	Instance() string

	// NewID returns an id for a session of this process, from which each replica can tell the owner.
	// It has visible ASCII without quotes, backslashes and colons.
	NewID() string

	// Owner returns where the session with an id is, and for There, how to send it a request. via must
	// send a request as it is and only once, on a connection that the owner marks with FromReplica.
	// The errors of connections that a lost link has ended should have a *jsonrpc.ClosedError. id may
	// be any text.
	Owner(id string) (via http.RoundTripper, at Where)

	// Ready returns how to send a request to another replica that does not drain; false if there is
	// none.
	Ready() (via http.RoundTripper, ok bool)

	// Others returns all other replicas.
	Others() []Other

	// Digest returns a digest of what clients are offered. It differs if that may differ.
	Digest() string

	// Passed is called when the response to a request that was passed on has ended. err is nil if all of it
	// came, context.Canceled if its client or this process ended it, and else as that of via. A request for a
	// session that is Away counts, too.
	Passed(method string, took time.Duration, err error)

	// Became is called with what became of so many sessions of Streamable HTTP of this replica and another one.
	Became(what Became, instance string, n int)

	// Serves is called with the number of sessions of Streamable HTTP that are here, when it has changed.
	Serves(sessions int)
}

// Became is what became of sessions of this replica and another one.
type Became int

const (
	Taken   Became = iota // the other one has moved them here
	Adopted               // continued here, since the other one has died
	Yielded               // ended here, since the other one has continued them
	Missing               // begun by the other one, which is gone, and nobody has them any more
)

// An Other is another replica.
type Other struct {
	Instance string
	Since    time.Time         // when it joined, or joined again after it was declared dead
	Ready    bool              // it does not drain
	Via      http.RoundTripper // as of Owner; nil if it cannot be reached now
}

// Where is the place of a session.
type Where int

const (
	Here    Where = iota // in this process
	There                // in another process
	Away                 // in another process that cannot be reached now
	Gone                 // a replica made the id that is gone
	Nowhere              // no replica made the id
)

// FromReplica returns a ctx for the requests on a connection from another replica. It is for
// ConnContext of the http.Server that nobody else can reach: what these requests say about their
// client is believed.
func FromReplica(ctx context.Context) context.Context {
	return context.WithValue(ctx, replicaKey{}, true)
}

type (
	replicaKey struct{}
	hopsKey    struct{}
)

// maxHops bounds how often a request is passed on: to the replica that made its session, and from
// there to where that was moved, and moved again, or to others that do not drain.
const maxHops = 3

// hopsOf returns how often the request with ctx was passed on.
func hopsOf(ctx context.Context) int {
	hops, _ := ctx.Value(hopsKey{}).(int)
	return hops
}

func isFromReplica(ctx context.Context) bool { return ctx.Value(replicaKey{}) != nil }

// headerReplica is the header of a request that a replica passes on. Its value is an origin.
const headerReplica = "Mcp-Proxy-Replica"

// An origin is what the first replica knows about a request besides the request itself:
//
//	{"v":1,"remote":"192.0.2.7:50123","tls":true,"client":{"kind":"certificate","issuer":"Staff","name":"alice","expires":"2027-01-01T00:00:00Z"}}
//
// Replicas of other versions may write members that this one ignores.
type origin struct {
	Version int           `json:"v"`
	Remote  string        `json:"remote"` // address of the client
	TLS     bool          `json:"tls,omitempty"`
	Client  *originClient `json:"client,omitempty"` // nil: its headers identify it
	Hops    int           `json:"hops,omitempty"`   // how often the request was passed on; 0 is 1
}

// An originClient is the identity of a client whose proof is its connection.
type originClient struct {
	Kind    identity.Kind `json:"kind"`
	Issuer  string        `json:"issuer,omitempty"`
	Name    string        `json:"name"`
	Expires time.Time     `json:"expires,omitzero"`
}

const originVersion = 1

// originOf returns the text of the origin of r, which who sent, and which is passed on for that many
// times with this one.
func originOf(r *http.Request, who *identity.Identity, hops int) string {
	o := origin{Version: originVersion, Remote: r.RemoteAddr, TLS: r.TLS != nil, Hops: hops}
	if who.Kind == identity.Certificate || who.Kind == identity.User {
		o.Client = &originClient{who.Kind, who.Issuer, who.Name, who.Expires}
	}
	text, _ := json.Marshal(o)                                // it has strings and a valid time only
	return strings.ReplaceAll(string(text), "\x7f", `\u007f`) // the only one of them that no header may have
}

// client returns the client that the first replica has identified, nil for none.
func (o *origin) client() *identity.Identity {
	if o == nil || o.Client == nil {
		return nil
	}
	c := o.Client
	return &identity.Identity{Principal: identity.Principal{Kind: c.Kind, Issuer: c.Issuer, Name: c.Name}, Expires: c.Expires}
}

// readOrigin takes the header of an origin from r. If another replica passed r on, readOrigin returns
// r as it arrived there, and its origin; nil after it has refused an unusable one. The header of any
// other client means nothing.
func readOrigin(w http.ResponseWriter, r *http.Request) (*http.Request, *origin) {
	values := r.Header[headerReplica]
	r = r.Clone(r.Context())
	delete(r.Header, headerReplica)
	if !isFromReplica(r.Context()) {
		return r, nil
	}
	o := new(origin)
	if len(values) != 1 || json.Unmarshal([]byte(values[0]), o) != nil || o.Version < 1 {
		refuse(w, http.StatusBadRequest, headerReplica+" is invalid")
		return nil, nil
	}
	r = r.WithContext(context.WithValue(r.Context(), hopsKey{}, max(o.Hops, 1)))
	r.RemoteAddr = o.Remote
	if o.TLS { // a challenge has the URL that the client used
		r.TLS = new(tls.ConnectionState)
	}
	return r, o
}
