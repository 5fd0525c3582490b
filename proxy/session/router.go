package session

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A DialFunc opens a stream of an era to the named upstream. Streams with the same key belong to one
// client. Its ctx has the headers that say who the user is (jsonrpc.ForwardedIn). It must return soon after ctx ends. The end of the returned Conn should be a
// [*jsonrpc.ClosedError].
type DialFunc func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error)

// Limits bound a session.
type Limits struct {
	InFlight    int           // of one client at a time, of which a quarter may be subscriptions; zero means 1024
	MaxMessage  int           // bytes, for bounds on queues; zero means 16 MiB
	ListTimeout time.Duration // for a merged list, once for each late upstream; zero means 10 s
	Drain       time.Duration // for requests in flight after a half-close; zero means 5 s
	MaxStart    time.Duration // bounds the wait of initialize for all upstreams together; zero means 8 s
}

// A Router serves clients from a set of upstreams. Its fields must not change after the first call
// of Serve, ServePrincipal or Update.
type Router struct {
	// Upstreams are served until Update replaces them, and ignored after that. Their order is the
	// order of merged lists.
	Upstreams []Upstream
	Dial      DialFunc
	Naming    catalog.Naming

	// Starting reports whether the only server of an upstream has not answered anything yet. Nil, and
	// false, mean that this is not known.
	Starting func(upstream string) bool

	Version string // of the program, in serverInfo

	// ID distinguishes this Router from others with the same hosts, in the keys of principals.
	// Clients must not know it. It may be empty if the hosts serve no other Router.
	ID string

	// Several means that clients may be different principals. Then tasks and states of suspended
	// calls that an upstream gave to one are unknown to the others. It may be set at any time, and
	// must stay set; everything given before is then unknown to all.
	Several atomic.Bool

	Limits

	Log *slog.Logger // nil discards

	// AnonymousLog is the log of sessions whose client has proved nothing; nil: Log.
	AnonymousLog *slog.Logger

	Hooks observe.Hooks
	Tap   observe.Tap // wraps Conns for operators; nil wraps none

	// Policies decide what clients may do; nil allows everything. Change their rules only by
	// ReplacePolicies.
	Policies *policy.Policies

	// Catalog is what the upstreams say and list, for all sessions. Only its Log and its Store may be
	// set. CatalogAge is the age from which an entry is asked for again, when it is used; zero means
	// never.
	Catalog    lists.Catalog
	CatalogAge time.Duration

	// Changing is held while what clients may and what serves them change together. A request begins, and
	// a stream is opened, before that or behind it: what old policies allow never reaches a new server.
	Changing sync.RWMutex

	mu         sync.Mutex  // may be taken with a session's mu held, never the other way
	configured *configured // the current ones; nil before they are read from Upstreams
	sessions   map[*session]struct{}
	draining   bool
	secret     string // for the keys of principals; created when first needed

	memory lists.Memory
	owned  owners.Principals // what upstreams gave to principals, if there may be several
	trials trialSessions
}

func (p *Router) running() []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.sessions))
}

func (p *Router) isDraining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}

func (p *Router) logger() *slog.Logger {
	if p.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return p.Log
}

func (p *Router) inFlight() int { return cmp.Or(p.InFlight, 1024) }

func (p *Router) queueBytes() int { return 2 * cmp.Or(p.MaxMessage, 16<<20) }

func (p *Router) listTimeout() time.Duration { return cmp.Or(p.ListTimeout, 10*time.Second) }

func (p *Router) drain() time.Duration { return cmp.Or(p.Drain, 5*time.Second) }

// put sets an entry of a map, which is made when it is first needed.
func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}

// trialSessions are the trial sessions of a router: sessions with one upstream that only ask for its
// description and its lists, for the catalog.
type trialSessions struct {
	mu   sync.Mutex // guards the fields below
	ctx  context.Context
	stop context.CancelCauseFunc // of ctx; nil before the first trial
	over bool                    // end was called
	wg   sync.WaitGroup

	renewed map[lists.Key]time.Time // when renew last began a trial, or will
	failed  map[string]string       // by upstream: the configuration with which the last trial failed, see version
}

// serverInfo returns the proxy's own name and version.
func (p *Router) serverInfo() json.RawMessage {
	return slices.Concat([]byte(`{"name":"mcp-proxy","version":`), jsonrpc.Quote(cmp.Or(p.Version, "dev")), []byte{'}'})
}
