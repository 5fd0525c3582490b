package eras

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

// healthy is how long a listen must last for its end not to count as a failure: the next one then begins soon.
const healthy = 10 * time.Second

// A listen is a subscriptions/listen on the modern stream, from the request to its end (2026-07-28
// basic/patterns/subscriptions).
type listen struct {
	call  *peer.Call
	by    listener
	uris  map[string]bool // requested; acknowledged ones once acked
	acked bool
	since time.Time // when it was acknowledged
}

// A listener needs a listen. Its methods are called with legacy.mu held.
type listener interface {
	acked(ln *listen, filter json.RawMessage)
	ended(ln *listen, answer *jsonrpc.Message) // nil if the server cancelled it
	changed(ln *listen, m *jsonrpc.Message)    // only after acked
}

// listenLocked opens a listen.
func (l *legacy) listenLocked(by listener, filter mcp.Filter, uris map[string]bool) *listen {
	ln := &listen{by: by, uris: uris}
	ln.call = l.askLocked(mcp.MethodListen, jsonrpc.Set(nil, jsonrpc.Value{Key: "notifications", Text: filter.Text()}),
		func(answer *jsonrpc.Message) { by.ended(ln, answer) })
	ln.call.Value = ln
	return ln
}

// acknowledgedLocked handles the first message of a listen.
func (ln *listen) acknowledgedLocked(m *jsonrpc.Message) {
	if ln.acked {
		return
	}
	ln.acked, ln.since = true, time.Now()
	ln.by.acked(ln, mcp.Read(m).Raw(mcp.Key))
}

// listenOf returns the listen of a notification; nil if there is none or it has ended. of is the call that its
// stream names.
func (l *legacy) listenOf(m *jsonrpc.Message, of *peer.Call) *listen {
	if m.Related.IsZero() {
		id, _ := mcp.Read(m).ID(mcp.Subscription)
		of = l.modern.Call(id)
	}
	if of == nil {
		return nil
	}
	ln, _ := of.Value.(*listen)
	return ln
}

// againLocked calls fn to listen again after ln has ended. The pause grows with each listen that
// does not last.
func (ln *listen) againLocked(l *legacy, r *timers.Retry, fn func()) {
	if ln.acked && time.Since(ln.since) > healthy {
		r.Reset()
	}
	r.After(l.afterLocked, fn)
}

// listChanges notifies the client of changed lists: with one listen, from initialized on, for all lists that the
// upstream declares.
type listChanges struct {
	l        *legacy
	declared [4]bool // as in mcp.Filter
	current  *listen // nil for none
	again    timers.Retry
	deaf     bool // a change may have been missed since a listen ended
}

// openLocked listens, once the client is ready and if the upstream declares any changes.
func (s *listChanges) openLocked() {
	h := s.l.hello
	if s.current != nil || s.declared == [4]bool{} || !h.ready || !h.greeted {
		return
	}
	s.current = s.l.listenLocked(s, mcp.Filter{Lists: s.declared}, nil)
}

// acked notifies the client of all lists that may have changed while there was no listen.
func (s *listChanges) acked(_ *listen, filter json.RawMessage) {
	for k, c := range changes {
		if on, _ := jsonrpc.Member(filter, c.filter); s.deaf && s.declared[k] && string(on) == "true" {
			s.l.client.Send(jsonrpc.NewNotification(c.method, nil))
		}
	}
	s.deaf = false
}

// ended listens again, unless the server does not know the method.
func (s *listChanges) ended(ln *listen, answer *jsonrpc.Message) {
	if ln != s.current {
		return
	}
	s.current, s.deaf = nil, true
	if answer != nil && answer.Error != nil {
		if e, _ := readError(answer.Error); e.Code == jsonrpc.CodeMethodNotFound {
			s.l.log.Warn("upstream declares changes of lists that nobody can listen to")
			return
		}
	}
	ln.againLocked(s.l, &s.again, s.openLocked)
}

func (s *listChanges) changed(_ *listen, m *jsonrpc.Message) {
	if m.Method != mcp.MethodResourceUpdated {
		s.l.client.Send(bare(m))
	}
}

// maxURIs bounds the resources that one client subscribes to. Further subscriptions are refused.
const maxURIs = 4096

// subscriptions are the client's resource subscriptions. One listen covers them all. When they change, a new
// listen is opened, and the old one is cancelled once the new one is acknowledged, so that no change is missed.
// The server may notify both; notifications on the old one are dropped after the acknowledgement.
type subscriptions struct {
	l             *legacy
	wanted        map[string]bool // that the client is subscribed to
	asks          []subscribeAsk  // in order of arrival
	current, next *listen         // next is not acknowledged yet; nil for none
	again         timers.Retry
	deaf          bool // a change may have been missed since a listen ended
}

// A subscribeAsk is a resources/subscribe that waits for a listen that covers it.
type subscribeAsk struct {
	call *legacyCall
	uri  string
	on   *listen // the listen that includes it; nil before
	gone bool    // unsubscribed again
}

// subscription handles resources/subscribe and resources/unsubscribe.
func (l *legacy) subscription(r *peer.Request) {
	n := mcp.Read(r.Message)
	uri, ok := n.Text(mcp.Key)
	s := &l.resources
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.hello == nil:
		r.Fail(errNotInitialized)
	case n.Err(mcp.Key) != nil || !ok:
		r.Fail(jsonrpc.InvalidParams(`"uri" is missing or not a string`))
	case r.Method == mcp.MethodUnsubscribe:
		s.removeLocked(uri)
		r.Respond(&jsonrpc.Message{Result: emptyObject})
	case s.wanted[uri]:
		r.Respond(&jsonrpc.Message{Result: emptyObject})
	case len(s.wanted)+len(s.asks) >= maxURIs:
		r.Fail(jsonrpc.Overloaded(l.upstream))
	default:
		if c := l.beginLocked(r); c != nil {
			s.asks = append(s.asks, subscribeAsk{call: c, uri: uri})
			s.changeLocked()
		}
	}
}

func (s *subscriptions) removeLocked(uri string) {
	delete(s.wanted, uri)
	for i := range s.asks {
		s.asks[i].gone = s.asks[i].gone || s.asks[i].uri == uri
	}
	s.changeLocked()
}

// changeLocked opens a listen for the current subscriptions, unless there is one already or another waits for its
// acknowledgement.
func (s *subscriptions) changeLocked() {
	if s.next != nil || s.l.ended {
		return
	}
	s.answerLocked(func(a subscribeAsk) bool { return s.current != nil && s.current.uris[a.uri] }, nil)
	uris := make(map[string]bool, len(s.wanted)+len(s.asks))
	maps.Copy(uris, s.wanted)
	for _, a := range s.asks {
		uris[a.uri] = true
	}
	switch {
	case len(uris) == 0 && s.current != nil:
		s.current.call.Cancel("unsubscribed")
		s.current = nil
	case len(uris) == 0 || s.current != nil && maps.Equal(uris, s.current.uris):
	default:
		s.next = s.l.listenLocked(s, mcp.Filter{URIs: slices.Sorted(maps.Keys(uris))}, uris)
		for i := range s.asks {
			s.asks[i].on = s.next
		}
	}
}

// acked makes the new listen the current one and answers the subscribes that waited for it.
func (s *subscriptions) acked(ln *listen, filter json.RawMessage) {
	if ln != s.next {
		return
	}
	ln.uris = covered(ln.uris, filter)
	old := s.current
	s.current, s.next = ln, nil
	if old != nil {
		old.call.Cancel("replaced")
	}
	s.caughtUpLocked()
	s.answerLocked(func(a subscribeAsk) bool { return a.on == ln && !ln.uris[a.uri] },
		jsonrpc.InvalidParams("the server does not notify about changes of this resource").Raw())
	s.changeLocked()
}

// covered returns the uris that an acknowledgement names.
func covered(uris map[string]bool, filter json.RawMessage) map[string]bool {
	list, _ := jsonrpc.Member(filter, "resourceSubscriptions")
	elements, _ := jsonrpc.Elements(list)
	named := make(map[string]bool)
	for _, e := range elements {
		if uri, ok := jsonrpc.Unquote(e); ok && uris[uri] {
			named[uri] = true
		}
	}
	return named
}

// caughtUpLocked removes resources that the server does not watch any more, and notifies the client of all others
// if changes may have been missed.
func (s *subscriptions) caughtUpLocked() {
	for _, uri := range slices.Sorted(maps.Keys(s.wanted)) {
		switch {
		case !s.current.uris[uri]:
			delete(s.wanted, uri)
		case s.deaf:
			s.l.client.Send(updated(uri))
		}
	}
	s.deaf = false
}

// answerLocked answers the asks for which meant returns true: with failure, or with success if that is nil.
func (s *subscriptions) answerLocked(meant func(subscribeAsk) bool, failure json.RawMessage) {
	s.asks = slices.DeleteFunc(s.asks, func(a subscribeAsk) bool {
		if !meant(a) {
			return false
		}
		if failure != nil {
			s.l.settleLocked(a.call, &jsonrpc.Message{Error: failure})
			return true
		}
		if !a.gone {
			s.wanted[a.uri] = true
		}
		s.l.settleLocked(a.call, &jsonrpc.Message{Result: emptyObject})
		return true
	})
}

// ended listens again. If the listen was never acknowledged, the subscribes that waited for it fail.
func (s *subscriptions) ended(ln *listen, answer *jsonrpc.Message) {
	switch ln {
	case s.current:
		s.current, s.deaf = nil, true
	case s.next:
		s.next = nil
		failure := jsonrpc.InvalidParams("the server does not notify about changes of resources").Raw()
		if answer != nil && answer.Error != nil {
			failure = toLegacyError(mcp.MethodSubscribe, answer.Error)
		}
		s.answerLocked(func(a subscribeAsk) bool { return a.on == ln }, failure)
	default:
		return
	}
	ln.againLocked(s.l, &s.again, s.changeLocked)
}

// changed forwards the update of a resource or of one below it, unless the client has unsubscribed.
func (s *subscriptions) changed(ln *listen, m *jsonrpc.Message) {
	uri, _ := mcp.Read(m).Text(mcp.Key)
	if m.Method != mcp.MethodResourceUpdated || ln.uris[uri] && !s.wanted[uri] {
		return
	}
	s.l.client.Send(bare(m))
}

// abandonedLocked removes a cancelled call. If no other call needs the unacknowledged listen, that is cancelled
// too, since it may never be acknowledged.
func (s *subscriptions) abandonedLocked(c *legacyCall) {
	waiting := len(s.asks)
	s.asks = slices.DeleteFunc(s.asks, func(a subscribeAsk) bool { return a.call == c })
	if len(s.asks) == waiting || s.next == nil || s.current == nil && len(s.wanted) > 0 ||
		slices.ContainsFunc(s.asks, func(a subscribeAsk) bool { return a.on == s.next }) {
		return
	}
	s.next.call.Cancel("unsubscribed")
	s.next = nil
	s.changeLocked()
}
