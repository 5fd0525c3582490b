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

// healthy is how long a listen lives whose end is no failure: the next one begins
// soon.
const healthy = 10 * time.Second

// A listen is a subscriptions/listen on the modern stream, from its request to its
// end (2026-07-28 basic/patterns/subscriptions).
type listen struct {
	call  *peer.Call
	by    listener
	uris  map[string]bool // asked for, and once it is acknowledged those that it covers
	acked bool
	since time.Time // acked
}

// A listener is who needs a listen. Its methods are called with legacy.mu held.
type listener interface {
	acked(ln *listen, filter json.RawMessage)
	ended(ln *listen, answer *jsonrpc.Message) // nil if the server just cancelled it
	told(ln *listen, m *jsonrpc.Message)       // a change, after the acknowledgement
}

// listenLocked opens a listen.
func (l *legacy) listenLocked(by listener, filter json.RawMessage, uris map[string]bool) *listen {
	ln := &listen{by: by, uris: uris}
	ln.call = l.askLocked(mcp.MethodListen, jsonrpc.Set(nil, jsonrpc.Value{Key: "notifications", Text: filter}),
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

// listenOf returns the listen that a notification belongs to, of being the call that
// its stream names; nil if there is none: it has ended, or there never was one.
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

// againLocked has fn listen again after this one has ended, later each time that a listen does not last.
func (ln *listen) againLocked(l *legacy, r *timers.Retry, fn func()) {
	if ln.acked && time.Since(ln.since) > healthy {
		r.Reset()
	}
	r.After(l.afterLocked, fn)
}

// listChanges is what the client hears of changes in lists: one listen for all that
// the upstream declares, from initialized on.
type listChanges struct {
	l        *legacy
	declared []change
	current  *listen // nil for none
	again    timers.Retry
	deaf     bool // a listen ended, and a change may have been missed since
}

// openLocked listens, once the client is ready and if there is something to hear.
func (s *listChanges) openLocked() {
	h := s.l.hello
	if s.current != nil || len(s.declared) == 0 || !h.ready || !h.greeted {
		return
	}
	var filter []jsonrpc.Value
	for _, c := range s.declared {
		filter = append(filter, jsonrpc.Value{Key: c.filter, Text: []byte(`true`)})
	}
	s.current = s.l.listenLocked(s, jsonrpc.Set(nil, filter...), nil)
}

// acked tells the client about all that may have changed while nobody listened.
func (s *listChanges) acked(_ *listen, filter json.RawMessage) {
	for _, c := range s.declared {
		if on, _ := jsonrpc.Member(filter, c.filter); s.deaf && string(on) == "true" {
			s.l.client.Send(jsonrpc.NewNotification(c.method, nil))
		}
	}
	s.deaf = false
}

// ended listens again, unless the server does not know how.
func (s *listChanges) ended(ln *listen, answer *jsonrpc.Message) {
	if ln != s.current {
		return
	}
	s.current, s.deaf = nil, true
	if answer != nil && answer.Error != nil {
		if e, _ := ReadError(answer.Error); e.Code == jsonrpc.CodeMethodNotFound {
			s.l.log.Warn("upstream declares changes of lists that nobody can listen to")
			return
		}
	}
	ln.againLocked(s.l, &s.again, s.openLocked)
}

func (s *listChanges) told(_ *listen, m *jsonrpc.Message) {
	if m.Method != mcp.MethodResourceUpdated {
		s.l.client.Send(bare(m))
	}
}

// maxURIs bounds the resources that one client is subscribed to. Further
// subscriptions are refused.
const maxURIs = 4096

// subscriptions are the resources whose changes the client hears of. A listen
// covers them all. When they change, a new one is opened, and when it is
// acknowledged the one before it is cancelled: no change is missed. The server may
// tell one to both; what comes on the old one after the acknowledgement is dropped.
type subscriptions struct {
	l             *legacy
	wanted        map[string]bool // that the client was told it has
	asks          []subscribeAsk  // in the order in which they came
	current, next *listen         // next waits for its acknowledgement; nil for none
	again         timers.Retry
	deaf          bool // a listen ended, and a change may have been missed since
}

// A subscribeAsk is a resources/subscribe that waits for a listen which covers it.
type subscribeAsk struct {
	call *legacyCall
	uri  string
	on   *listen // that asks for it; nil for one that will
	gone bool    // unsubscribed meanwhile
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
		r.Respond(&jsonrpc.Message{Result: noResult})
	case s.wanted[uri]:
		r.Respond(&jsonrpc.Message{Result: noResult})
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

// changeLocked opens a listen for what is wanted now, unless there is one. While
// another waits for its acknowledgement, what is new waits, too.
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
		s.next = s.l.listenLocked(s, subscriptionFilter(uris), uris)
		for i := range s.asks {
			s.asks[i].on = s.next
		}
	}
}

func subscriptionFilter(uris map[string]bool) json.RawMessage {
	var list []json.RawMessage
	for _, uri := range slices.Sorted(maps.Keys(uris)) {
		list = append(list, jsonrpc.Quote(uri))
	}
	return jsonrpc.Set(nil, jsonrpc.Value{Key: "resourceSubscriptions", Text: Array(list...)})
}

// acked makes the new listen the current one, and answers who waited for it.
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

// covered returns those of uris that an acknowledgement names.
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

// caughtUpLocked forgets what the server does not tell any more, and tells the
// client of all that may have changed while nobody listened.
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

// answerLocked answers those asks which are meant: with failure, or with success if
// that is nil.
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
		s.l.settleLocked(a.call, &jsonrpc.Message{Result: noResult})
		return true
	})
}

// ended listens again. Who waits for a listen that was never acknowledged hears why.
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

// told passes on that a resource has changed, or one below it, unless the client has
// unsubscribed meanwhile.
func (s *subscriptions) told(ln *listen, m *jsonrpc.Message) {
	uri, _ := mcp.Read(m).Text(mcp.Key)
	if m.Method != mcp.MethodResourceUpdated || ln.uris[uri] && !s.wanted[uri] {
		return
	}
	s.l.client.Send(bare(m))
}

// abandonedLocked forgets a call that was cancelled. A listen that nobody else waits
// for may never be acknowledged: it goes, too.
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
