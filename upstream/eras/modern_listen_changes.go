package eras

import (
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// catchUp tells of everything that may have changed while nobody listened.
func (l *modernListen) catchUp() {
	for _, method := range []string{mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged} {
		l.listChanged(method, jsonrpc.NewNotification(method, nil))
	}
	for _, uri := range l.uris {
		l.note(uri, updated(uri))
	}
}

func updated(uri string) *jsonrpc.Message {
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "uri", Text: jsonrpc.Quote(uri)})
	return jsonrpc.NewNotification(mcp.MethodResourceUpdated, params)
}

// hearUpdate handles that a resource was updated, which may be a part of what
// the listen subscribed to. When too much waits to be told, it tells of that as a whole.
func (l *modernListen) hearUpdate(uri string, m *jsonrpc.Message) {
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
	wants := l.lists
	if !l.acked {
		wants = l.wants
	}
	for k, c := range changes {
		if c.method == method && !wants[k] {
			return
		}
	}
	l.note(method, m)
}

// note has the client told of something, in a moment and after the ack. The
// newest word about a thing counts.
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

// forgetOthers drops what came before the ack and is not in it.
func (l *modernListen) forgetOthers() {
	early := l.pending
	l.pending, l.places = nil, nil
	for _, m := range early {
		if m.Method == mcp.MethodResourceUpdated {
			uri, _ := mcp.Read(m).Text(mcp.Key)
			l.hearUpdate(uri, m)
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
		l.send(m.Method, StripReserved(m.Params))
	}
	l.pending, l.places = nil, nil
}

// watched returns what the listen subscribed to that a resource is or is a part
// of, if anything.
func (l *modernListen) watched(uri string) (watched string, ok bool) {
	for _, mine := range l.uris {
		if uri == mine || strings.HasPrefix(uri, strings.TrimSuffix(mine, "/")+"/") {
			return mine, true
		}
	}
	return "", false
}
