package listen

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// Resources are the resources to which a client of the legacy era subscribes. They are remembered
// so that subscriptions survive a restart of their upstream.
type Resources struct {
	Kept *atomic.Int64 // counts the bytes of all URIs and params. Static

	mu    sync.Mutex // guards byURI; nothing else is locked under it
	byURI map[string]resource
}

// A resource is a subscription's params, and the upstream that serves it.
type resource struct {
	at     Upstream
	params json.RawMessage
}

// maxResources bounds the remembered subscriptions of one client.
const maxResources = 10000

// Size returns the bytes of a subscription that count in Kept.
func Size(uri string, params json.RawMessage) int { return len(uri) + len(params) }

// Add remembers a successful subscription, unless the upstream was hung up meanwhile. The caller
// must know that there is room for its bytes.
func (rs *Resources) Add(uri string, at Upstream, params json.RawMessage) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.byURI) >= maxResources || isDone(at) {
		return
	}
	rs.removeLocked(uri)
	rs.Kept.Add(int64(Size(uri, params)))
	if rs.byURI == nil {
		rs.byURI = make(map[string]resource)
	}
	rs.byURI[uri] = resource{at, params}
}

// isDone reports whether the upstream was hung up.
func isDone(u Upstream) bool {
	select {
	case <-u.Done():
		return true
	default:
		return false
	}
}

func (rs *Resources) removeLocked(uri string) {
	if r, ok := rs.byURI[uri]; ok {
		rs.Kept.Add(-int64(Size(uri, r.params)))
		delete(rs.byURI, uri)
	}
}

// Take forgets a subscription, and returns the upstream that served it; nil for none.
func (rs *Resources) Take(uri string) Upstream {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	at := rs.byURI[uri].at
	rs.removeLocked(uri)
	return at
}

// Of returns the params of all subscriptions at an upstream, sorted by URI.
func (rs *Resources) Of(at Upstream) (params []json.RawMessage) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, uri := range slices.Sorted(maps.Keys(rs.byURI)) {
		if r := rs.byURI[uri]; r.at == at {
			params = append(params, r.params)
		}
	}
	return params
}

// Move makes another upstream serve the subscriptions at one, and reports whether there are any.
func (rs *Resources) Move(from, to Upstream) (some bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for uri, r := range rs.byURI {
		if r.at == from {
			rs.byURI[uri] = resource{to, r.params}
			some = true
		}
	}
	return some
}

// Forget forgets the subscriptions at an upstream that was hung up.
func (rs *Resources) Forget(at Upstream) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for uri, r := range rs.byURI {
		if r.at == at {
			rs.removeLocked(uri)
		}
	}
}
