package proxy

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// Rejections are what proxies do not offer of a host's upstreams, as their links say.
type rejections struct {
	// Static.
	known func(upstream string) bool // whether the host has announced it
	log   *slog.Logger
	hooks observe.Hooks // of which Happened is called

	mu     sync.Mutex // guards the fields below
	byLink map[string][]link.Rejection
	told   map[string]bool // events that the log has
}

// update takes over what the proxy at the other end of a link says; nil: the link has ended.
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

// snapshot returns them by name.
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
