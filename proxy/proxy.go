package proxy

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// A Dialer opens streams to upstreams, wherever they are.
type Dialer interface {
	// Dial opens a stream to the named upstream. Streams with the same key
	// belong to one client. It must return soon after ctx is done. The end of
	// the returned Conn should be a [*jsonrpc.ClosedError].
	Dial(ctx context.Context, upstream, key string) (jsonrpc.Conn, error)
}

// The DialFunc type makes a function a [Dialer].
type DialFunc func(ctx context.Context, upstream, key string) (jsonrpc.Conn, error)

// Dial calls f.
func (f DialFunc) Dial(ctx context.Context, upstream, key string) (jsonrpc.Conn, error) {
	return f(ctx, upstream, key)
}

// An Upstream is what the router knows of one upstream server.
type Upstream struct {
	Name string // [A-Za-z0-9_-]{1,32} without "__"

	// Prefix stands before "__" in exposed names, whatever the Proxy's
	// Naming says; "" makes them bare, nil goes by Naming.
	Prefix *string

	StartTimeout   time.Duration // how long initialize may hold a client; zero means 30 s
	RequestTimeout time.Duration // without answer or progress; zero means the client's own

	Allow, Deny []string // globs on original tool names; Deny wins; no Allow means all
}

// Naming says when exposed names carry the upstream's name.
type Naming string

// NamePrefixAuto prefixes if more than one upstream is configured.
const (
	NamePrefixAuto   Naming = ""
	NamePrefixAlways Naming = "always"
	NamePrefixNever  Naming = "never"
)

// A Proxy serves clients from a set of upstreams. Its fields must not change
// once Serve was called.
type Proxy struct {
	Upstreams []Upstream // in config order, which is the order of merged lists
	Dialer    Dialer
	Naming    Naming
	Version   string // of the program, in serverInfo

	InFlight    int           // requests of one client at a time; zero means 1024
	MaxMessage  int           // bytes, for bounds on queues; zero means 16 MiB
	PageSize    int           // entries on one page of a merged list; zero means all
	ListTimeout time.Duration // for one upstream's part of a merged list; zero means 10 s
	Drain       time.Duration // for requests in flight after a half-close; zero means 5 s

	Log *slog.Logger // nil discards

	mu       sync.Mutex
	sessions map[*session]struct{}
	draining bool
	tables   map[tableKey]*table // last known, to seed new sessions
	warned   map[string]struct{} // name clashes told once
}

type tableKey struct {
	upstream string
	kind     kind
	prefix   string
}

// Serve is the session of one client with all upstreams. It owns c until it
// returns, closes it, and reports the one cause of the end, which satisfies
// errors.Is(err, [jsonrpc.ErrClosed]). Cancelling ctx ends it by force: what is
// in flight is settled with the connection-closed error first.
func (p *Proxy) Serve(ctx context.Context, c jsonrpc.Conn) error {
	return p.serve(ctx, c, p.Upstreams, false)
}

// ServeUpstream is Serve with one upstream, whose names stay bare.
func (p *Proxy) ServeUpstream(ctx context.Context, upstream string, c jsonrpc.Conn) error {
	for i, u := range p.Upstreams {
		if u.Name == upstream {
			return p.serve(ctx, c, p.Upstreams[i:i+1], true)
		}
	}
	c.Close()
	return jsonrpc.Closed(&jsonrpc.ClosedError{Cause: "unknown upstream"})
}

func (p *Proxy) serve(ctx context.Context, c jsonrpc.Conn, upstreams []Upstream, bare bool) error {
	s := newSession(p, c, upstreams, bare)
	p.mu.Lock()
	if p.sessions == nil {
		p.sessions = make(map[*session]struct{})
	}
	p.sessions[s] = struct{}{}
	draining := p.draining
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.sessions, s)
		p.mu.Unlock()
	}()
	if draining {
		s.startDrain()
	}
	return s.serve(ctx)
}

// Shutdown drains all sessions: each refuses new requests, and ends when its
// last one in flight is settled. It returns when all have ended or ctx is done;
// what is left then ends when the ctx of its Serve is cancelled.
func (p *Proxy) Shutdown(ctx context.Context) {
	p.mu.Lock()
	p.draining = true
	var ended []<-chan struct{}
	for s := range p.sessions {
		s.startDrain()
		ended = append(ended, s.ended)
	}
	p.mu.Unlock()
	for _, e := range ended {
		select {
		case <-e:
		case <-ctx.Done():
			return
		}
	}
}

// lastTable returns the table last seen by any session, nil if there is none.
func (p *Proxy) lastTable(k tableKey) *table {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tables[k]
}

func (p *Proxy) keepTable(k tableKey, t *table) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tables == nil {
		p.tables = make(map[tableKey]*table)
	}
	p.tables[k] = t
}

// warnOnce reports whether a warning about subject is still to be given.
func (p *Proxy) warnOnce(subject string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.warned[subject]; ok || len(p.warned) >= maxWarnings {
		return false
	}
	if p.warned == nil {
		p.warned = make(map[string]struct{})
	}
	p.warned[subject] = struct{}{}
	return true
}

// maxWarnings bounds how many name clashes are remembered and told.
const maxWarnings = 1000

func (p *Proxy) logger() *slog.Logger {
	if p.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return p.Log
}

func (p *Proxy) inFlight() int { return orDefault(p.InFlight, 1024) }

func (p *Proxy) queueBytes() int { return 2 * orDefault(p.MaxMessage, 16<<20) }

func (p *Proxy) listTimeout() time.Duration { return orDefault(p.ListTimeout, 10*time.Second) }

func (p *Proxy) drain() time.Duration { return orDefault(p.Drain, 5*time.Second) }

// newKey returns a key that names one client to the hosts; it is unguessable.
func newKey() string { return rand.Text() }

func orDefault[T comparable](v, byDefault T) T {
	var zero T
	if v == zero {
		return byDefault
	}
	return v
}
