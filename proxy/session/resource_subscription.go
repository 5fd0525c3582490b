package session

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// resourceSubs remembers the resources to which a client of the legacy era subscribes, so that
// subscriptions survive a restart of their upstream.
type resourceSubs struct {
	mu    sync.Mutex // guards byURI; nothing else is locked under it
	byURI map[string]resourceSub
	kept  *atomic.Int64 // of the session; static
}

// A resourceSub is a subscription's params, and the upstream that serves it.
type resourceSub struct {
	conn   *upstreamConn
	params json.RawMessage
}

// maxResourceSubs bounds the remembered subscriptions of one client.
const maxResourceSubs = 10000

// size returns the bytes that count in session.kept.
func (sub resourceSub) size(uri string) int { return len(uri) + len(sub.params) }

// add remembers a successful subscription.
func (rs *resourceSubs) add(uri string, sub resourceSub) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.byURI) >= maxResourceSubs || sub.conn.IsHungUp() {
		return
	}
	rs.removeLocked(uri)
	rs.kept.Add(int64(sub.size(uri))) // keep has checked for room, and the request still counts it
	put(&rs.byURI, uri, sub)
}

func (rs *resourceSubs) removeLocked(uri string) {
	if sub, ok := rs.byURI[uri]; ok {
		rs.kept.Add(-int64(sub.size(uri)))
		delete(rs.byURI, uri)
	}
}

// take forgets a subscription, and returns the upstream that served it; nil for none.
func (rs *resourceSubs) take(uri string) *upstreamConn {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	u := rs.byURI[uri].conn
	rs.removeLocked(uri)
	return u
}

// of returns the params of all subscriptions at an upstream, sorted by URI.
func (rs *resourceSubs) of(u *upstreamConn) (params []json.RawMessage) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, uri := range slices.Sorted(maps.Keys(rs.byURI)) {
		if sub := rs.byURI[uri]; sub.conn == u {
			params = append(params, sub.params)
		}
	}
	return params
}

// forget forgets the subscriptions at an upstream that was hung up.
func (rs *resourceSubs) forget(u *upstreamConn) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for uri, sub := range rs.byURI {
		if sub.conn == u {
			rs.removeLocked(uri)
		}
	}
}

// subscribe routes resources/subscribe, and remembers successful ones.
func (s *session) subscribe(r *request) *jsonrpc.Error {
	params, bad := r.sentAgain("uri")
	if bad != nil {
		return bad
	}
	uri, _ := r.notes.Text(mcp.Key)
	if !s.keep(r, resourceSub{params: params}.size(uri)) {
		return jsonrpc.Overloaded("")
	}
	s.whenAnswered(r, func(answer *jsonrpc.Message) {
		if answer.Error == nil && r.sent != nil {
			s.resourceSubs.add(uri, resourceSub{r.sent.conn, params})
		}
	})
	return s.byURI(r)
}

// unsubscribe forwards to the upstream of the subscription.
func (s *session) unsubscribe(r *request) *jsonrpc.Error {
	if err := r.notes.Err(mcp.Key); err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	uri, _ := r.notes.Text(mcp.Key)
	if u := s.resourceSubs.take(uri); u != nil {
		s.forward(r, u)
		return nil
	}
	return s.toOwnerOf(r, mcp.Key)
}
