package eras

import (
	"encoding/json"
	"time"

	"github.com/cenkalti/backoff/v5"

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

// A relisten paces the attempts to listen again.
type relisten struct {
	*timers.Timer
	pause backoff.ExponentialBackOff
}

// laterLocked runs fn after a while, which grows with each listen that did not live.
func (r *relisten) laterLocked(l *legacy, ln *listen, fn func()) {
	if ln.acked && time.Since(ln.since) > healthy {
		r.pause.Reset()
	}
	r.pause.InitialInterval, r.pause.MaxInterval = 500*time.Millisecond, 30*time.Second
	r.pause.Multiplier, r.pause.RandomizationFactor = 2, 0.5
	r.Stop()
	r.Timer = l.afterLocked(r.pause.NextBackOff(), fn)
}

// listChanges is what the client hears of changes in lists: one listen for all that
// the upstream declares, from initialized on.
type listChanges struct {
	l        *legacy
	declared []change
	current  *listen // nil for none
	again    relisten
	deaf     bool // a listen ended, and a change may have been missed since
}

// A change is a notification about a list.
type change struct{ capability, filter, method string }

// changes are in the order of mcp.Filter.
var changes = []change{
	{"tools", "toolsListChanged", mcp.MethodToolsChanged},
	{"prompts", "promptsListChanged", mcp.MethodPromptsChanged},
	{"resources", "resourcesListChanged", mcp.MethodResourcesChanged},
}

// declaredChanges returns the changes that a server's capabilities promise.
func declaredChanges(capabilities json.RawMessage) []change {
	var declared []change
	for _, c := range changes {
		list, _ := jsonrpc.Member(capabilities, c.capability)
		if said, _ := jsonrpc.Member(list, "listChanged"); string(said) == "true" {
			declared = append(declared, c)
		}
	}
	return declared
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
	s.again.laterLocked(s.l, ln, s.openLocked)
}

func (s *listChanges) told(_ *listen, m *jsonrpc.Message) {
	if m.Method != mcp.MethodResourceUpdated {
		s.l.client.Send(bare(m))
	}
}

// bare returns a notification without what belongs to its listen.
func bare(m *jsonrpc.Message) *jsonrpc.Message {
	return &jsonrpc.Message{Method: m.Method, Params: orNil(StripReserved(m.Params)), Extra: m.Extra}
}
