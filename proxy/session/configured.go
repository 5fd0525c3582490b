package session

import (
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// An Upstream is the router's configuration of one upstream server.
type Upstream struct {
	Name string // [A-Za-z0-9_-]{1,32} without "__"
	Link string // to its host; "" for an upstream in this process. The same name at another host is another upstream

	// Prefix comes before "__" in exposed names, whatever the Router's Naming says. "" makes them
	// bare, nil follows Naming.
	Prefix *string

	StartTimeout   time.Duration // bounds the wait of initialize; zero means 30 s
	RequestTimeout time.Duration // without an answer, progress or an open server request; zero means none
	IdleStop       time.Duration // without use, after which its stream is closed until it is needed; zero: never

	Allow, Deny []string // globs on original tool names; Deny wins; no Allow means all
	Methods     []string // globs on methods of extensions, which are for no other upstream

	// Forward are headers of the client's HTTP request that it gets. What it lists may depend on them.
	Forward []Forward

	// Lazy means that a session with several upstreams starts this one when something needs it, and
	// takes its description and lists from the catalog until then.
	Lazy    bool
	Shared  bool   // all sessions use one server, so that a change of its lists is one for all
	Process bool   // its server ends with this process, and has nothing of others
	Digest  string // of its configuration, for the catalog; "": what it lists is not kept between runs
}

// allows reports whether clients may see and call a tool.
func (u *Upstream) allows(tool string) bool { return catalog.Allows(u.Allow, u.Deny, tool) }

// owns reports whether a method of an extension is configured to be for this upstream.
func (u *Upstream) owns(method string) bool {
	return len(u.Methods) > 0 && catalog.Allows(u.Methods, nil, method)
}

// A Forward is a header of the client's HTTP request that an upstream gets. Names are in canonical
// form.
type Forward struct {
	From, To string
	Identity bool // it says who the user is, so it is the same in all requests of a session
	Once     bool // it goes with the handshake of a WebSocket, and so with all requests there
}

// forwarded returns the headers of the client that the upstream gets, nil for none. If stream is true, these are the
// headers that go with the stream: those with Identity, and those with Once. Else they are the others, which go with
// each message.
func (u *Upstream) forwarded(came *jsonrpc.Forwarded, stream bool) (to map[string][]string) {
	if came == nil {
		return nil
	}
	for _, f := range u.Forward {
		if values := came.From[f.From]; values != nil && (f.Identity || f.Once) == stream {
			if to == nil {
				to = make(map[string][]string)
			}
			to[f.To] = values
		}
	}
	return to
}

// with returns the headers that the upstream gets with a message, nil for none.
func (u *Upstream) with(came *jsonrpc.Forwarded) *jsonrpc.Forwarded {
	if to := u.forwarded(came, false); to != nil {
		return &jsonrpc.Forwarded{To: to}
	}
	return nil
}

// alone returns a configuration with only this upstream, with bare names.
func (u *Upstream) alone() *configured {
	return &configured{upstreams: []Upstream{*u}, prefixes: []string{""}, complete: true, settled: true}
}

// Unknown are the upstreams behind a link that has never been up.
type Unknown struct {
	Link   string
	End    jsonrpc.ClosedError // for requests that only they could answer; its words follow the link's name
	Failed bool                // the link did not come up, so nothing waits for it
}

// configured are the upstreams of a router at one time. It is immutable.
type configured struct {
	upstreams []Upstream
	prefixes  []string // of their exposed names, with the separator; "" for bare ones
	unknown   []Unknown
	complete  bool          // all upstreams are known
	settled   bool          // no unknown upstream is worth waiting for
	replaced  chan struct{} // closed when there is a newer configuration
}

// sole reports whether there is one upstream, which describes itself, or none.
func (c *configured) sole() bool { return len(c.upstreams) < 2 && c.complete }

// named returns the upstream with a name, nil for none.
func (c *configured) named(name string) *Upstream {
	i := slices.IndexFunc(c.upstreams, func(u Upstream) bool { return u.Name == name })
	if i < 0 {
		return nil
	}
	return &c.upstreams[i]
}
