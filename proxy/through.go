package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/cluster"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

const (
	// throughPath and a link's name are the path at which a replica lets others reach the host of that link, if the
	// host has dialled it. The request becomes a connection, on which the other replica is the proxy of a link, and
	// this one relays its streams to the host. Any other answer means that it has no such link.
	throughPath  = "/replica/links/"
	throughProto = "mcp-proxy-link"

	// seekEvery is the time between two searches for a replica with the host of a link, and before the first one:
	// a host whose link was lost dials again sooner than that.
	seekEvery = 500 * time.Millisecond

	// seekTimeout is how long a replica may take to answer.
	seekTimeout = time.Second
)

// replicaLinks are what a link has to do with other replicas, if the host dials: one of them may lead to the host, and
// others may use the link that the host has dialled here.
type replicaLinks struct {
	through link.Client   // to the host, through a replica that it has dialled
	lends   link.Server   // for other replicas, onto the client of the link
	ended   chan struct{} // has an element if a link was lost; capacity 1

	// All of it ends when among is done. Set by links.startLocked.
	among context.Context
	part  context.CancelFunc

	// Guarded by links.mu.
	via     string                  // the instance through which the link is, or was last; "" for the link of its own
	by      string                  // that to which through leads
	cut     context.CancelCauseFunc // ends through; set with by
	lending context.Context         // of the links of other replicas; nil while there is no link of its own
	endLoan context.CancelFunc      // of lending
	loans   int                     // links of other replicas
}

func (ls *links) newReplicaLinks(f *remoteLink) replicaLinks {
	return replicaLinks{
		through: link.Client{
			ID: ls.router.ID, Limits: ls.limits, Heartbeat: f.client.Heartbeat,
			Announced: func(upstreams []link.Upstream) { ls.announced(f, true, upstreams) },
			Lost:      func(event string, err error) { ls.lost(f, true, event, err) },
		},
		lends: link.Server{Through: &f.client, Heartbeat: f.client.Heartbeat},
		ended: make(chan struct{}, 1),
	}
}

// shared adds to h, which serves what other replicas pass on, the links that they may use.
func (ls *links) shared(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, ok := strings.CutPrefix(r.URL.Path, throughPath); ok {
			ls.serveReplica(w, r, name)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// serveReplica serves another replica as the host of a link, as long as the host is linked with this one. What this one
// reaches through others is not passed on.
func (ls *links) serveReplica(w http.ResponseWriter, r *http.Request, name string) {
	f, ctx := ls.lent(name)
	if f == nil || r.Header.Get("Upgrade") != throughProto || !ls.in.enter() {
		http.NotFound(w, r)
		return
	}
	defer ls.in.leave()
	c, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "no connection", http.StatusInternalServerError)
		return
	}
	c.SetDeadline(time.Time{})
	if buffered.Reader.Buffered() > 0 { // the other replica waits for the answer
		c.Close()
		return
	}
	if _, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+throughProto+"\r\n\r\n"); err != nil {
		c.Close()
		return
	}
	ls.countLoan(f, 1)
	defer ls.countLoan(f, -1)
	_ = f.lends.Serve(ctx, c)
}

func (ls *links) countLoan(f *remoteLink, n int) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	f.loans += n
}

// lent returns an accepting link whose host is linked with this process, and a ctx that ends with that; nil for none.
func (ls *links) lent(name string) (*remoteLink, context.Context) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	i := slices.IndexFunc(ls.all, func(f *remoteLink) bool { return f.config.Accept && f.config.Name == name })
	if i < 0 || ls.all[i].lending == nil {
		return nil, nil
	}
	return ls.all[i], ls.all[i].lending
}

// part ends what links have to do with other replicas, before this process leaves them.
func (ls *links) part() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, f := range ls.all {
		if f.part != nil {
			f.part()
		}
	}
}

// seek links f to its host through another replica whenever the host has not dialled this one, until f is removed.
func (ls *links) seek(f *remoteLink) {
	for rest(f.among, seekEvery); f.among.Err() == nil; rest(f.among, seekEvery) {
		if ls.isUp(f) {
			select {
			case <-f.ended:
			case <-f.among.Done():
			}
			continue
		}
		for start := time.Now(); ls.through(f) && time.Since(start) > seekEvery; start = time.Now() {
			// another replica may have the host, too
		}
	}
}

// isUp reports whether f is linked to its host.
func (ls *links) isUp(f *remoteLink) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return f.known && !f.down
}

// through links f to its host through another replica, the first one that has it, and returns when that link has ended.
// It returns false if there is none.
func (ls *links) through(f *remoteLink) bool {
	for _, other := range ls.replicas() {
		if ls.isUp(f) {
			return false // the host has dialled
		}
		c := dialThrough(f.among, other, f.config.Name)
		if c == nil {
			continue
		}
		ctx, cut := context.WithCancelCause(f.among)
		ls.mu.Lock()
		f.by, f.cut = other.Instance, cut
		before := f.lost
		ls.mu.Unlock()
		var watch sync.WaitGroup
		watch.Go(func() {
			ls.untilItLeaves(ctx, f, other.Instance)
			cut(errLeaves)
		})
		_ = f.through.Serve(ctx, c) // links.lost reports the end
		cut(nil)
		watch.Wait()
		if ls.losses(f) > before { // it was up
			return true
		}
	}
	return false
}

// untilItLeaves waits until the replica through which f is linked has said that nothing is left there, and no call is in
// flight at the host, or until ctx ends. That replica waits for others to hang up, as long as it may.
func (ls *links) untilItLeaves(ctx context.Context, f *remoteLink, instance string) {
	is := func(o cluster.Other) bool { return o.Instance == instance }
	for rest(ctx, seekEvery); ctx.Err() == nil; rest(ctx, seekEvery) {
		if !slices.ContainsFunc(ls.replicas(), is) && !ls.busy(f) {
			return
		}
	}
}

// busy reports whether calls are in flight at the host of f.
func (ls *links) busy(f *remoteLink) bool {
	ls.mu.Lock()
	names := ls.ownedLocked(f)
	ls.mu.Unlock()
	traffic := ls.router.Traffic()
	return slices.ContainsFunc(names, func(name string) bool { return traffic[name].InFlight > 0 })
}

// awaitHangUp waits until no other replica uses a link of this one, or ctx ends: what they have in flight may finish.
func (ls *links) awaitHangUp(ctx context.Context) {
	lent := func() (n int) {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		for _, f := range ls.all {
			n += f.loans
		}
		return n
	}
	for lent() > 0 && ctx.Err() == nil {
		rest(ctx, 20*time.Millisecond)
	}
}

var errLeaves = errors.New("the replica leaves")

// reachable returns the other replicas that can be asked now: first those that do not leave soon.
func (r *replicas) reachable() []cluster.Other {
	all := slices.DeleteFunc(r.Cluster.Others(), func(o cluster.Other) bool { return o.Via == nil })
	leaves := func(o cluster.Other) int {
		if o.State == cluster.Ready {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b cluster.Other) int {
		return cmp.Or(leaves(a)-leaves(b), strings.Compare(a.Instance, b.Instance))
	})
	return all
}

// dialThrough returns a connection to another replica that relays streams to the host of a link, nil if it does not.
func dialThrough(ctx context.Context, other cluster.Other, name string) net.Conn {
	ctx, cancel := context.WithTimeout(ctx, seekTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://replica"+throughPath+name, nil)
	if err != nil {
		return nil
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", throughProto)
	resp, err := other.Via.RoundTrip(r)
	if err != nil {
		return nil
	}
	c, ok := resp.Body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || !ok {
		resp.Body.Close()
		return nil
	}
	return throughConn{c, other.Instance}
}

// A throughConn is a connection to another replica as the carrier of a link, which needs no deadlines.
type throughConn struct {
	io.ReadWriteCloser
	instance string
}

// LocalAddr implements [net.Conn].
func (c throughConn) LocalAddr() net.Addr { return &net.UnixAddr{Net: "replica"} }

// RemoteAddr implements [net.Conn].
func (c throughConn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "replica", Name: c.instance} }

// SetDeadline implements [net.Conn].
func (c throughConn) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements [net.Conn].
func (c throughConn) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements [net.Conn].
func (c throughConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// chooseLocked chooses between two links to the host of f when one has announced something: its own. It returns false
// if that is the other one.
func (ls *links) chooseLocked(f *remoteLink, through bool) bool {
	switch {
	case through && f.lending != nil:
		f.cut(errOwnLink)
		return false
	case through:
		f.via = f.by
	case f.via != "":
		if !f.down { // the streams through the other replica end with this event
			ls.endedLocked(f, f.through.Event(), errOwnLink)
		}
		f.via = ""
		f.cut(errOwnLink)
	}
	return true
}

var errOwnLink = errors.New("the host has dialled this replica")

// lendLocked lets other replicas use the link of f, whose host has announced something.
func (ls *links) lendLocked(f *remoteLink, upstreams []link.Upstream) {
	if !f.config.Accept || ls.replicas == nil {
		return
	}
	_ = f.lends.Announce(upstreams) // the link has checked them
	if f.lending == nil {
		f.lending, f.endLoan = context.WithCancel(f.among)
	}
}

// endLoanLocked ends the links of other replicas, since that of f has ended.
func (f *remoteLink) endLoanLocked() {
	if f.lending != nil {
		f.endLoan()
		f.lending = nil
	}
}

// usesLocked reports whether clients use the link through another replica, or that of its own.
func (f *remoteLink) usesLocked(through bool) bool { return through == (f.via != "") }

// wayCtxLocked returns the ctx of the link that clients use.
func (f *remoteLink) wayCtxLocked() context.Context {
	if f.via != "" {
		return f.among
	}
	return f.ctx
}

// throughLocked says through which replica the link is, after its name.
func (f *remoteLink) throughLocked() string {
	if f.via == "" {
		return ""
	}
	return " through replica " + f.via
}

// logLocked returns the log, with the replica through which the link is.
func (f *remoteLink) logLocked() *slog.Logger {
	if f.via == "" {
		return f.log
	}
	return f.log.With("replica", f.via)
}

// open opens a stream to the host of f. If there is another way to it when the first fails, it tries that, too: nothing
// was sent.
func (ls *links) open(ctx context.Context, f *remoteLink, h link.Hello) (jsonrpc.Conn, error) {
	way := ls.way(f)
	c, err := way.Open(ctx, h)
	if next := ls.way(f); err != nil && next != way {
		return next.Open(ctx, h)
	}
	return c, err
}

// way returns the end of the link that leads to the host of f: through another replica while that has been the last
// one that was up, else its own.
func (ls *links) way(f *remoteLink) *link.Client {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if f.via != "" {
		return &f.through
	}
	return &f.client
}
