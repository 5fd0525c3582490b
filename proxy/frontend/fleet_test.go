package frontend

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A fleet is several front ends behind one address, that reach each other on sockets of their own.
type fleet map[string]*replica

// A replica is one of a fleet. It is the Replicas of its front end.
type replica struct {
	*testServer
	name  string
	fleet fleet
	via   *http.Transport // by which others reach it
	hops  atomic.Int32    // requests that others have passed on to it

	digest string

	mu    sync.Mutex // guards the fields below
	place map[string]Where
	ready string
	links map[*linkConn]bool // connections of others to it
	lost  bool               // none can be dialled

	passed []string             // method and outcome of the requests that it passed on
	since  map[string]time.Time // when others joined again
	became []string             // what became of sessions
}

// newFleet starts replicas. setUp and serve, which may be nil, change a front end, and what serves
// the requests that others pass on.
func newFleet(t *testing.T, names string, setUp func(name string, h *HTTP), serve func(name string, h http.Handler) http.Handler) fleet {
	t.Helper()
	f := fleet{}
	for _, name := range strings.Fields(names) {
		r := &replica{name: name, fleet: f, place: make(map[string]Where), since: make(map[string]time.Time), links: make(map[*linkConn]bool)}
		f[name] = r
		r.testServer = newManualReplica(t, func(h *HTTP) {
			h.Replicas = r
			if setUp != nil {
				setUp(name, h)
			}
		})
		r.listen(serve)
	}
	return f
}

// newManualReplica is newManualServer, unless setUp sets Serve.
func newManualReplica(t *testing.T, setUp func(*HTTP)) *testServer {
	var conns <-chan jsonrpc.Conn
	ts := newTestServer(t, func(h *HTTP) {
		conns = manual(h)
		setUp(h)
	})
	ts.conns = conns
	return ts
}

// listen starts the server for requests that others pass on.
func (r *replica) listen(serve func(name string, h http.Handler) http.Handler) {
	var h http.Handler = r.HTTP
	if serve != nil {
		h = serve(r.name, h)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.hops.Add(1)
		h.ServeHTTP(w, req)
	}))
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return FromReplica(ctx) }
	server.Start()
	r.via = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return r.dial(ctx, server.Listener.Addr())
	}, DisableCompression: true}
	r.t.Cleanup(func() {
		for _, other := range r.fleet {
			other.HTTP.Close()
		}
		r.via.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
	})
}

func (r *replica) dial(ctx context.Context, to net.Addr) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return nil, linkLost
	}
	c, err := new(net.Dialer).DialContext(ctx, to.Network(), to.String())
	if err != nil {
		return nil, err
	}
	l := &linkConn{Conn: c, of: r}
	r.links[l] = true
	return l, nil
}

// cut ends all connections of others to r as the end of a link does, and refuses new ones.
func (r *replica) cut() {
	for _, l := range r.lose() {
		l.Conn.Close()
	}
}

// lose makes the next end of a connection to r that of a link, and refuses new ones.
func (r *replica) lose() []*linkConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = true
	for l := range r.links {
		l.lost.Store(true)
	}
	return slices.Collect(maps.Keys(r.links))
}

var linkLost = &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true, Event: "k3v9x2ma"}

// lostError is the connection-closed error of a lost link.
const lostError = `{"code":-32603,"message":"Connection closed: the replica that had the request was lost (link lost)","data":{"reason":"connection_closed","cause":"link lost","phase":"in_flight","retryable":false,"event":"k3v9x2ma"}}`

// A linkConn is a connection over a link.
type linkConn struct {
	net.Conn
	of   *replica
	lost atomic.Bool
}

func (c *linkConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && c.lost.Load() {
		err = linkLost
	}
	return n, err
}

func (c *linkConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && c.lost.Load() {
		err = linkLost
	}
	return n, err
}

func (c *linkConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.links, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// NewID implements [Replicas].
func (r *replica) NewID() string { return r.name + "." + rand.Text() + ".mac" }

// Owner implements [Replicas]: the name is in the id, unless the test has set where that one is.
func (r *replica) Owner(id string) (http.RoundTripper, Where) {
	name, _, _ := strings.Cut(id, ".")
	owner := r.fleet[name]
	r.mu.Lock()
	at, set := r.place[name]
	r.mu.Unlock()
	switch {
	case set && at != There:
		return nil, at
	case owner == nil:
		return nil, Nowhere
	case owner == r && !set:
		return nil, Here
	}
	return owner.via, There
}

// Others implements [Replicas].
func (r *replica) Others() (all []Other) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, other := range r.fleet {
		at, set := r.place[name]
		o := Other{Instance: name, Since: r.since[name], Ready: r.ready == "" || r.ready == name, Via: other.via}
		if set && at != There {
			o.Via = nil
		}
		if other != r && at != Gone {
			all = append(all, o)
		}
	}
	return all
}

// Instance implements [Replicas].
func (r *replica) Instance() string { return r.name }

// Serves implements [Replicas].
func (r *replica) Serves(int) {}

// Became implements [Replicas].
func (r *replica) Became(became Became, instance string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.became = append(r.became, fmt.Sprintf("%s %s %d", [...]string{"taken", "adopted", "yielded", "missing"}[became], instance, n))
}

// Digest implements [Replicas].
func (r *replica) Digest() string { return r.digest }

// sees sets where the sessions of another replica are for r. One that was gone joins again.
func (r *replica) sees(name string, at Where) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.place[name] == Gone && at != Gone {
		r.since[name] = time.Now()
	}
	r.place[name] = at
}

// Ready implements [Replicas].
func (r *replica) Ready() (http.RoundTripper, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready == "" {
		return nil, false
	}
	return r.fleet[r.ready].via, true
}

// Passed implements [Replicas].
func (r *replica) Passed(method string, _ time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	how := "ok"
	if errors.Is(err, context.Canceled) {
		how = "cancelled"
	} else if err != nil {
		how = "closed"
	}
	r.passed = append(r.passed, method+" "+how)
}

// through returns c, whose next requests arrive at r.
func (c *testClient) through(r *replica) *testClient {
	mine := *c
	i := strings.Index(c.url, "/m")
	mine.url, mine.http = r.url+c.url[i:], r.client
	return &mine
}
