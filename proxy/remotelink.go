package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// A remoteLink is a link to a host elsewhere, and what that host has announced.
type remoteLink struct {
	config   config.Link
	log      *slog.Logger
	client   link.Client
	endpoint link.Endpoint // to dial; zero if the host dials
	proof    credentials   // of endpoint, closed by keepUp; nil for none

	// The link ends when ctx is done. Set by links.startLocked.
	ctx    context.Context
	hangUp context.CancelFunc

	replicaLinks

	// Guarded by links.mu.
	announced []announced          // last; kept while the link is lost
	rejected  []observe.Rejection  // announced and not offered
	known     bool                 // the host has announced something
	down      bool                 // lost since then
	since     time.Time            // when it came up
	failed    *jsonrpc.ClosedError // why the last attempt to bring it up failed; nil before the first since it was up
	lost      int                  // how often it was lost
}

// An announced is an upstream of a host elsewhere. Its err says why it cannot be offered: its
// settings are wrong, or a [*refusal].
type announced struct {
	session.Upstream
	err error
}

// dial returns the function that dials the host.
func (f *remoteLink) dial() func(context.Context) (net.Conn, error) {
	if f.proof != nil {
		return withTokenHint(f.endpoint.Dial, "the host, or a proxy in front of it, rejected our credentials of "+f.config.Key+".auth")
	}
	return withTokenHint(f.endpoint.Dial, "the host rejected our token: that in "+f.config.Key+".tokenFile must be the one in --token-file of the host")
}

// keepUp dials the host again and again until the link is removed.
func (f *remoteLink) keepUp() {
	_ = f.client.Redial(f.ctx, f.dial()) // ends only with its ctx
	if f.proof != nil {
		f.proof.Close()
	}
}

// endLocked returns why the link is not up.
func (f *remoteLink) endLocked() *jsonrpc.ClosedError {
	switch {
	case f.known:
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}
	case f.failed != nil:
		return f.failed
	}
	waits := "has not connected yet"
	if f.config.Dial != "" {
		waits = "has not answered yet"
	}
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Says: waits + " (" + jsonrpc.CauseLinkLost.String() + ")"}
}

// dialFailure returns why a link did not come up, without the details that only the log may have.
func dialFailure(err error) *jsonrpc.ClosedError {
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); ok { // from our credentials
		return &jsonrpc.ClosedError{Cause: end.Cause, Says: end.Says, Lasting: end.Lasting}
	}
	if status, ok := errors.AsType[*wsconn.StatusError](err); ok {
		end := &jsonrpc.ClosedError{Cause: jsonrpc.HTTPCause(status.Code)}
		end.Lasting = end.Cause.Kind == jsonrpc.KindRefused
		return end
	}
	if errors.Is(err, link.ErrNoAnswer) {
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseTimeout, Says: "does not answer the hello of the link (" + jsonrpc.CauseTimeout.String() + ")"}
	}
	cause := remote.CauseOf(err)
	if cause == jsonrpc.CauseRequestFailed {
		cause = jsonrpc.CauseConnectFailed
	}
	return &jsonrpc.ClosedError{Cause: cause, Says: "is unreachable: " + cause.String()}
}

// heartbeatOf returns the heartbeat of a link with that interval.
func heartbeatOf(every time.Duration) link.Heartbeat {
	return link.Heartbeat{Every: every, Dead: 3 * every}
}

// withTokenHint returns dial with a hint in its error if the other side rejects the token.
func withTokenHint(dial func(context.Context) (net.Conn, error), hint string) func(context.Context) (net.Conn, error) {
	return withHint(dial, func(status int) string {
		if status == http.StatusUnauthorized {
			return hint
		}
		return ""
	})
}

// withHint returns dial with a hint in its error if the other side refuses the link with an HTTP status; "" for none.
func withHint(dial func(context.Context) (net.Conn, error), hint func(status int) string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if status, ok := errors.AsType[*wsconn.StatusError](err); ok && hint(status.Code) != "" {
			err = fmt.Errorf("%w: %s", err, hint(status.Code))
		}
		return c, err
	}
}

// linkEvent returns the event of the end of a link that was up since began.
func linkEvent(id, what string, err error, began time.Time) observe.Event {
	e := observe.EventOf(observe.LinkEnded, "", &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Event: id, Err: err})
	e.What, e.Began = what, began
	return e
}

// rejections are the upstreams of a host that its proxies do not offer, as they report on their links.
type rejections struct {
	// Static.
	known func(upstream string) bool // whether the host has announced it
	log   *slog.Logger
	hooks observe.Hooks // it calls Happened

	mu     sync.Mutex // guards the fields below
	byLink map[string][]link.Rejection
	told   map[string]bool // logged events
}

// update replaces the rejections of the proxy at the other end of a link; nil when the link has ended.
func (r *rejections) update(of string, all []link.Rejection) {
	all = slices.DeleteFunc(all, func(one link.Rejection) bool { return !r.known(one.Upstream) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byLink == nil {
		r.byLink, r.told = make(map[string][]link.Rejection), make(map[string]bool)
	}
	if r.byLink[of] = all; len(all) == 0 {
		delete(r.byLink, of)
	}
	for _, one := range all {
		r.tellLocked(one)
	}
}

func (r *rejections) tellLocked(one link.Rejection) {
	if r.told[one.Event] || len(r.told) >= maxTold {
		return
	}
	r.told[one.Event] = true
	r.log.Error("upstream not offered by a proxy", "upstream", one.Upstream, "event", one.Event, "err", one.Why)
	if r.hooks.Happened != nil {
		r.hooks.Happened(notOffered(one.Upstream, one.Event, one.Why))
	}
}

// snapshot returns all rejections, sorted by upstream.
func (r *rejections) snapshot() (all []observe.Rejection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.byLink {
		for _, one := range of {
			all = append(all, observe.Rejection(one))
		}
	}
	slices.SortFunc(all, func(a, b observe.Rejection) int {
		return cmp.Or(cmp.Compare(a.Upstream, b.Upstream), cmp.Compare(a.Event, b.Event))
	})
	return all
}

// linkedProxies are the proxies elsewhere that have links to a host, or had one a moment ago. The
// host keeps the state of a proxy for a while after its last link, because the proxy may dial again.
type linkedProxies struct {
	keptFor time.Duration
	forget  func(proxy string, last bool) // ends the state of a proxy; last if no other is known

	mu   sync.Mutex // guards the field below, and keptFor once there are links
	byID map[string]*linkedProxy
}

type linkedProxy struct {
	links int
	gone  time.Time // when the last one ended
}

func (ps *linkedProxies) linked(proxy string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byID[proxy] == nil {
		if ps.byID == nil {
			ps.byID = make(map[string]*linkedProxy)
		}
		ps.byID[proxy] = &linkedProxy{}
	}
	ps.byID[proxy].links++
}

func (ps *linkedProxies) unlinked(proxy string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byID[proxy]
	if p.links--; p.links == 0 {
		p.gone = time.Now()
		time.AfterFunc(ps.keptFor, func() { ps.expire(proxy) }) // harmless after the host's stop
	}
}

func (ps *linkedProxies) expire(proxy string) {
	ps.mu.Lock()
	p := ps.byID[proxy]
	gone := p != nil && p.links == 0 && time.Since(p.gone) >= ps.keptFor
	if gone {
		delete(ps.byID, proxy)
	}
	last := len(ps.byID) == 0
	ps.mu.Unlock()
	if gone {
		ps.forget(proxy, last)
	}
}
