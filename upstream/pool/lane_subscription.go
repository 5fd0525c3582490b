package pool

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A subscription is a URI that listens of a lane want to hear of. The server has at
// most one to it. Guarded by tenant.mu.
type subscription struct {
	holders map[*modernListen]struct{}
	on      bool // the server has it
	asking  bool // it is about to have it, or not to have it any more
}

// subscribeLocked makes a listen hear of a URI. It is told how that went.
func (l *lane) subscribeLocked(li *modernListen, uri string) {
	sub := l.subs[uri]
	if sub == nil {
		sub = &subscription{holders: make(map[*modernListen]struct{})}
		l.subs[uri] = sub
	}
	sub.holders[li] = struct{}{}
	l.stepLocked(uri, sub)
}

// unsubscribeLocked lets go of a URI.
func (l *lane) unsubscribeLocked(li *modernListen, uri string) {
	if sub := l.subs[uri]; sub != nil {
		delete(sub.holders, li)
		l.stepLocked(uri, sub)
	}
}

// stepLocked does what is next for a URI: one thing after the other, so that the last
// word that the server hears is the newest.
func (l *lane) stepLocked(uri string, sub *subscription) {
	wanted := len(sub.holders) > 0
	switch {
	case sub.asking || l.state != laneReady:
	case wanted == sub.on:
		for li := range sub.holders {
			li.subscribedLocked(uri, true)
		}
		if !wanted {
			delete(l.subs, uri)
		}
	default:
		method := mcp.MethodSubscribe
		if !wanted {
			method = mcp.MethodUnsubscribe
		}
		sub.asking = true
		params := jsonrpc.Set(nil, jsonrpc.Value{Key: "uri", Text: jsonrpc.Quote(uri)})
		l.askLocked(method, params, func(m *jsonrpc.Message) { l.steppedLocked(uri, sub, wanted, m.Error == nil) })
	}
}

// steppedLocked handles the server's answer. After a failed unsubscription nobody
// wants it either.
func (l *lane) steppedLocked(uri string, sub *subscription, wanted, ok bool) {
	sub.asking = false
	sub.on = wanted && ok
	if wanted && !ok {
		for li := range sub.holders {
			delete(sub.holders, li)
			li.subscribedLocked(uri, false)
		}
	}
	l.stepLocked(uri, sub)
}

// updatedLocked tells the listens of the lane that watch a resource.
func (l *lane) updatedLocked(m *jsonrpc.Message) {
	text, _ := jsonrpc.Member(m.Params, "uri")
	uri, ok := jsonrpc.Unquote(text)
	if !ok {
		return
	}
	for li := range l.listens {
		li.hearUpdateLocked(uri, m)
	}
}
