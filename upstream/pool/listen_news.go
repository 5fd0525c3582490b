package pool

import (
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

// catchUpLocked tells of everything that may have changed while nobody listened.
func (l *modernListen) catchUpLocked() {
	for _, method := range []string{mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged} {
		l.hearLocked(method, jsonrpc.NewNotification(method, nil))
	}
	for _, uri := range l.uris {
		l.noteLocked(uri, updated(uri))
	}
}

func updated(uri string) *jsonrpc.Message {
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "uri", Text: jsonrpc.Quote(uri)})
	return jsonrpc.NewNotification(mcp.MethodResourceUpdated, params)
}

// hearUpdateLocked handles that a resource was updated, which may be a part of what
// the listen subscribed to. When too much waits to be told, it tells of that as a whole.
func (l *modernListen) hearUpdateLocked(uri string, m *jsonrpc.Message) {
	watched, ok := l.watchedLocked(uri)
	if !ok {
		return
	}
	if _, known := l.places[uri]; !known && len(l.pending) >= maxPending {
		uri, m = watched, updated(watched)
	}
	l.noteLocked(uri, m)
}

// hearLocked handles that a list has changed.
func (l *modernListen) hearLocked(method string, m *jsonrpc.Message) {
	wants := l.kinds
	if !l.acked {
		wants = l.wants
	}
	switch method {
	case mcp.MethodToolsChanged:
		if !wants.Tools {
			return
		}
	case mcp.MethodPromptsChanged:
		if !wants.Prompts {
			return
		}
	case mcp.MethodResourcesChanged:
		if !wants.Resources {
			return
		}
	}
	l.noteLocked(method, m)
}

// noteLocked has the client told of something, in a moment and after the ack. The
// newest word about a thing counts.
func (l *modernListen) noteLocked(about string, m *jsonrpc.Message) {
	if at, known := l.places[about]; known {
		l.pending[at] = m
		return
	}
	if l.places == nil {
		l.places = make(map[string]int)
	}
	l.places[about] = len(l.pending)
	l.pending = append(l.pending, m)
	l.flushLaterLocked()
}

// forgetOthersLocked drops what came before the ack and is not in it.
func (l *modernListen) forgetOthersLocked() {
	early := l.pending
	l.pending, l.places = nil, nil
	for _, m := range early {
		if m.Method == mcp.MethodResourceUpdated {
			uri, _ := mcp.Read(m).Text(mcp.Key)
			l.hearUpdateLocked(uri, m)
			continue
		}
		l.hearLocked(m.Method, m)
	}
}

func (l *modernListen) flushLaterLocked() {
	if l.acked && l.flush == nil && len(l.pending) > 0 {
		l.flush = l.s.a.after(noticeFor, l.flushLocked)
	}
}

func (l *modernListen) flushLocked() {
	l.flush = nil
	if l.ended {
		return
	}
	for _, m := range l.pending {
		l.sendLocked(m.Method, translate.StripReserved(m.Params))
	}
	l.pending, l.places = nil, nil
}

// watchedLocked returns what the listen subscribed to that a resource is or is a part
// of, if anything.
func (l *modernListen) watchedLocked(uri string) (watched string, ok bool) {
	for _, mine := range l.uris {
		if uri == mine || strings.HasPrefix(uri, strings.TrimSuffix(mine, "/")+"/") {
			return mine, true
		}
	}
	return "", false
}
