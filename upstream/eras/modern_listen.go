package eras

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

const (
	maxListens = 256  // of one stream; further ones are refused
	maxPending = 1024 // unsent updates of resources; beyond, see resourceChanged

	noticeFor = 20 * time.Millisecond // notifications within this time are merged

	// ackWithin is the time within which a listen is acknowledged, even if the server has not
	// answered for some URIs: the proxy waits for 8 s and would then report none. Servers have
	// ackLeast for their answers, however long their start took.
	ackWithin = 6 * time.Second
	ackLeast  = time.Second
)

// A modernListen is a subscriptions/listen of a client. It uses one session of its key, and a new one when that is
// lost. Its methods are called with account.mu held.
type modernListen struct {
	// Static after construction.
	s          *modernClient
	r          *peer.Request
	came       time.Time
	g          *group
	clientInfo json.RawMessage
	wants      [4]bool  // changes of lists, as in mcp.Filter
	uris       []string // without duplicates

	session  *legacySession  // nil while there is none
	asking   map[string]bool // URIs whose subscribe is not answered
	honoured map[string]bool // URIs
	lists    [4]bool         // acknowledged
	acked    bool
	ended    bool
	again    timers.Retry       // to have a session
	timer    *timers.Timer      // runs until the acknowledgment
	pending  []*jsonrpc.Message // unsent notifications in order, one for each list or URI
	places   map[string]int     // index in pending by method or URI
	flush    *timers.Timer      // of pending
}

// listen begins a listen.
func (s *modernClient) listen(r *peer.Request, said modernRequest) {
	want, err := mcp.ReadFilter(mcp.Read(r.Message))
	if err != nil {
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	l := &modernListen{s: s, r: r, came: time.Now(), clientInfo: said.ClientInfo, wants: want.Lists, uris: slices.Sorted(slices.Values(want.URIs))}
	switch {
	case len(s.listens) >= maxListens:
		r.Fail(jsonrpc.Overloaded(s.a.id.upstream))
		return
	case s.ended || !r.OnCancel(func(*jsonrpc.Message, jsonrpc.Span) { s.a.locked(l.end) }):
		return
	}
	r.Value = l
	l.g = s.a.groupLocked(said.Capabilities) // after the checks, since a refused listen must not leave a group behind
	s.listens[l] = struct{}{}
	l.g.listens[l] = struct{}{}
	if !l.bind() {
		l.fail(s.a.refusal())
	}
}

// bind gives the listen a session. It reports false if there is none.
func (l *modernListen) bind() bool {
	session := l.g.sessionFor(l.clientInfo, false)
	if session == nil {
		return false
	}
	l.session = session
	session.listens[l] = struct{}{}
	if session.state == sessionReady {
		l.begin()
	}
	return true
}

// begin subscribes once the session is ready.
func (l *modernListen) begin() {
	l.again.Reset()
	resumed, can := l.acked, &l.session.welcome
	if !resumed {
		for k := range l.lists {
			l.lists[k] = l.wants[k] && can.Lists[k]
		}
		l.timer = l.s.a.after(max(ackWithin-time.Since(l.came), ackLeast), l.ack)
	}
	l.asking, l.honoured = make(map[string]bool), make(map[string]bool)
	if can.Subscribe {
		l.subscribe()
	}
	switch {
	case resumed:
		l.catchUp()
	case len(l.asking) == 0:
		l.ack()
	}
}

func (l *modernListen) subscribe() {
	for _, uri := range l.uris {
		l.asking[uri] = true
	}
	for _, uri := range slices.Clone(l.uris) { // answers may come at once and change l.uris
		l.session.subs.Add(uri, mcp.Subscribing[*modernListen]{
			By: l, On: true, Params: mcp.URIParams(uri),
			Wanted: func() bool { return l.asking[uri] && !l.ended },
			Done: func(answer *jsonrpc.Message) {
				if answer != nil {
					l.subscribed(uri, answer.Error == nil)
				}
			},
		})
	}
}

// subscribed handles the answer to a subscribe.
func (l *modernListen) subscribed(uri string, ok bool) {
	if !l.asking[uri] {
		return
	}
	delete(l.asking, uri)
	if ok {
		l.honoured[uri] = true
	}
	if len(l.asking) == 0 && l.session.state == sessionReady {
		l.ack()
	}
}

// ack acknowledges what the client will be notified of: what the server has agreed to so far.
func (l *modernListen) ack() {
	if l.acked || l.ended || l.session == nil {
		return
	}
	l.acked = true
	l.timer.Stop()
	l.asking = nil // late subscriptions are released
	l.uris = slices.DeleteFunc(l.uris, func(uri string) bool { return !l.honoured[uri] })
	l.forgetOthers()

	honoured := mcp.Filter{Lists: l.lists}
	if len(l.uris) > 0 {
		honoured.URIs = l.uris
	}
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "notifications", Text: honoured.Text()})
	l.send(mcp.MethodAcknowledged, params)
	l.flushLater()
}

// send sends a notification of the listen.
func (l *modernListen) send(method string, params json.RawMessage) {
	m := jsonrpc.NewNotification(method, mcp.SetMeta(params, jsonrpc.Value{Key: mcp.KeySubscription, Text: l.r.ID.Raw()}))
	m.Related = l.r.ID
	l.s.peer.Send(m)
}

// lost handles the end of the session. Before the acknowledgment the listen fails; afterwards it gets another
// session.
func (l *modernListen) lost(err *jsonrpc.Message) {
	l.session = nil
	switch {
	case !l.acked:
		l.fail(err)
	case l.s.a.life.isStopped():
		l.finish()
	default:
		l.retry()
	}
}

func (l *modernListen) retry() {
	l.again.After(l.s.a.after, func() {
		if !l.ended && l.session == nil && !l.bind() {
			l.retry()
		}
	})
}

// fail answers the listen with an error.
func (l *modernListen) fail(err *jsonrpc.Message) {
	if !l.ended {
		l.r.Respond(&jsonrpc.Message{Error: err.Error})
	}
	l.end()
}

// finish ends the listen gracefully (2026-07-28 basic/patterns/subscriptions).
func (l *modernListen) finish() {
	if !l.ended {
		result := toModernResult(mcp.MethodListen, []byte(`{}`), nil)
		l.r.Respond(&jsonrpc.Message{Result: mcp.SetMeta(result, jsonrpc.Value{Key: mcp.KeySubscription, Text: l.r.ID.Raw()})})
	}
	l.end()
}

// end ends the listen without an answer.
func (l *modernListen) end() {
	if l.ended {
		return
	}
	l.ended = true
	delete(l.s.listens, l)
	delete(l.g.listens, l)
	l.timer.Stop()
	l.again.Stop()
	l.flush.Stop()
	if session := l.session; session != nil {
		delete(session.listens, l)
		session.used = time.Now()
		session.subs.ReleaseAll(l)
	}
	l.g.forget()
}

// catchUp notifies the client of everything that may have changed while there was no session.
func (l *modernListen) catchUp() {
	for _, c := range changes {
		l.listChanged(c.method, jsonrpc.NewNotification(c.method, nil))
	}
	for _, uri := range l.uris {
		l.note(uri, updated(uri))
	}
}

// resourceChanged handles an updated resource, which may be part of one that the listen watches. If too many updates
// are pending, it reports that one instead.
func (l *modernListen) resourceChanged(uri string, m *jsonrpc.Message) {
	watched, ok := l.watched(uri)
	if !ok {
		return
	}
	if _, known := l.places[uri]; !known && len(l.pending) >= maxPending {
		uri, m = watched, updated(watched)
	}
	l.note(uri, m)
}

// listChanged handles that a list has changed.
func (l *modernListen) listChanged(method string, m *jsonrpc.Message) {
	if l.wantsChange(method) {
		l.note(method, m)
	}
}

// wantsChange reports whether the listen tells a list_changed.
func (l *modernListen) wantsChange(method string) bool {
	wants := l.lists
	if !l.acked {
		wants = l.wants
	}
	return wants[slices.IndexFunc(changes, func(c change) bool { return c.method == method })]
}

// listensTo reports whether a listen of the stream tells a list_changed.
func (s *modernClient) listensTo(method string) bool {
	for l := range s.listens {
		if l.wantsChange(method) {
			return true
		}
	}
	return false
}

// note queues a notification to be sent soon, after the acknowledgment. It replaces an earlier one about the same
// list or URI.
func (l *modernListen) note(about string, m *jsonrpc.Message) {
	if at, known := l.places[about]; known {
		l.pending[at] = m
		return
	}
	if l.places == nil {
		l.places = make(map[string]int)
	}
	l.places[about] = len(l.pending)
	l.pending = append(l.pending, m)
	l.flushLater()
}

// forgetOthers drops early notifications that the acknowledgment does not cover.
func (l *modernListen) forgetOthers() {
	early := l.pending
	l.pending, l.places = nil, nil
	for _, m := range early {
		if m.Method == mcp.MethodResourceUpdated {
			uri, _ := mcp.Read(m).Text(mcp.Key)
			l.resourceChanged(uri, m)
			continue
		}
		l.listChanged(m.Method, m)
	}
}

func (l *modernListen) flushLater() {
	if l.acked && l.flush == nil && len(l.pending) > 0 {
		l.flush = l.s.a.after(noticeFor, l.flushNow)
	}
}

func (l *modernListen) flushNow() {
	l.flush = nil
	if l.ended {
		return
	}
	for _, m := range l.pending {
		l.send(m.Method, stripReserved(m.Params))
	}
	l.pending, l.places = nil, nil
}

// watched returns the URI of the listen that a resource equals or is part of.
func (l *modernListen) watched(uri string) (watched string, ok bool) {
	for _, mine := range l.uris {
		if uri == mine || strings.HasPrefix(uri, strings.TrimSuffix(mine, "/")+"/") {
			return mine, true
		}
	}
	return "", false
}
