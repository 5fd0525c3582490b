package eras

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

const (
	startFor        = 2 * time.Second // servers ask for roots when they start, independently of calls
	maxCallRequests = 64              // of one call at a time; further ones are refused
)

// asked handles a request of the server.
func (l *legacySession) asked(r *peer.Request) {
	if r.Method == mcp.MethodPing {
		r.RespondIfRoom(&jsonrpc.Message{Result: emptyObject})
		return
	}
	c, refusal := l.whose(r)
	if refusal == nil {
		refusal = c.refuses(r.Message)
	}
	if refusal != nil {
		r.RespondIfRoom(jsonrpc.Failure(refusal))
		return
	}
	c.asked++
	r.Value = keyOf(c.asked)
	c.requests = append(c.requests, r)
	r.Assign(c, "", nil)
	r.OnCancel(func(*jsonrpc.Message, jsonrpc.Span) {
		l.a.locked(func() { c.done(r) })
	})
	if l.ofStart(r.Method) {
		c.gather(startCollectFor)
	} else {
		c.gather(collectFor)
	}
}

// ofStart reports whether a request may be one that servers make when they start.
func (l *legacySession) ofStart(method string) bool {
	return method == mcp.MethodRootsList && time.Since(l.began) < startFor
}

// keyOf returns the key in inputRequests of the nth request for a call.
func keyOf(n int) string { return "q" + strconv.Itoa(n) }

// whose returns the call that a request of the server belongs to. It must be certain, since the request could
// otherwise be shown to another client. Once an upstream sends requests that do not name their call, each call
// gets its own session.
func (l *legacySession) whose(r *peer.Request) (*modernCall, *jsonrpc.Error) {
	switch r.Method {
	case mcp.MethodRootsList, mcp.MethodSample, mcp.MethodElicit:
	default:
		return nil, jsonrpc.MethodNotFound(r.Method)
	}
	if !r.Message.Related.IsZero() && l.relates {
		if r.Of != nil {
			if c, ok := r.Of.Value.(*modernCall); ok {
				return c, nil
			}
		}
		return nil, errNotNeeded
	}
	c, n := l.atWork()
	ofStart := l.ofStart(r.Method)
	switch {
	case n != 1 && ofStart, n == 0 && r.Method == mcp.MethodRootsList:
		return nil, jsonrpc.MethodNotFound(r.Method)
	case ofStart: // may belong to the call, too
		return c, nil
	}
	if _, known := l.a.life.asking.LoadOrStore(l.a.id.upstream, true); !known {
		l.log.Debug("upstream sends requests: each call of modern clients has its own session")
	}
	switch n {
	case 0:
		return nil, errNoCall
	case 1:
		return c, nil
	}
	l.ambiguous(r.Method)
	return nil, peer.ErrUnattributed
}

// ambiguous handles a request that cannot be attributed. If only suspended calls are the reason, the oldest ends,
// for the sake of the next request.
func (l *legacySession) ambiguous(method string) {
	level := slog.LevelDebug
	if !l.warned {
		level, l.warned = slog.LevelWarn, true
	}
	l.log.Log(context.Background(), level, "upstream sent a request that cannot be attributed to one of its calls", "method", method)
	waits := 0
	for c := range l.calls {
		if c.works() && c.state == forwarded {
			waits++
		}
	}
	if waits > 1 {
		return
	}
	l.a.giveUpOldestLocked(func(p *suspension) bool { return p.isAtServer() && p.call.session == l })
}

// atWork returns the number of calls that the server works on, and one of them.
func (l *legacySession) atWork() (one *modernCall, n int) {
	for c := range l.calls {
		if c.works() {
			one = c
			n++
		}
	}
	return one, n
}

// refuses returns the reason why the client of a call cannot be asked; nil if it can.
func (c *modernCall) refuses(m *jsonrpc.Message) *jsonrpc.Error {
	switch {
	case c.state == cancelled:
		return errNotNeeded
	case !mcp.MethodOf(c.method).Asks:
		return errCannotAsk
	case len(c.requests) >= maxCallRequests:
		return errTooManyAsks
	}
	return abilitiesOf(c.Capabilities).Refuses(m.Method, m.Params)
}

// refuse answers all open server requests of a call with an error.
func (c *modernCall) refuse(err *jsonrpc.Error) {
	for _, q := range c.requests {
		q.Fail(err)
	}
	c.requests = nil
}

// done removes a request that has ended.
func (c *modernCall) done(r *peer.Request) {
	c.requests = slices.DeleteFunc(c.requests, func(other *peer.Request) bool { return other == r })
}

// notified handles a notification of the server.
func (l *legacySession) notified(m *jsonrpc.Message, of *peer.Call) {
	switch m.Method {
	case mcp.MethodProgress, mcp.MethodCancelled: // of calls that have ended
	case mcp.MethodLog:
		l.message(m, of)
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged, mcp.MethodResourcesChanged:
		for li := range l.g.listens { // all sessions have the same lists
			li.listChanged(m.Method, m)
		}
		l.a.noteChangeLocked(m.Method)
	case mcp.MethodResourceUpdated:
		l.updated(m)
	case mcp.MethodElicited, mcp.MethodTaskStatus: // not part of the modern era
	default:
		if c, _ := l.callOf(m, of); c != nil {
			c.pass(m)
		}
	}
}

// updated notifies the listens of the session that watch a resource.
func (l *legacySession) updated(m *jsonrpc.Message) {
	uri, ok := mcp.KeyOf(m)
	if !ok {
		return
	}
	for li := range l.listens {
		li.resourceChanged(uri, m)
	}
}

// pass sends the client a notification of a call.
func (c *modernCall) pass(m *jsonrpc.Message) {
	if params, ok := forClient(m, c.ID, c.clientID(), c.Token); ok {
		c.tell(m, params)
	}
}

// tell sends the client a notification of a call, with other params.
func (c *modernCall) tell(m *jsonrpc.Message, params json.RawMessage) {
	if c.r == nil || c.state != forwarded {
		return
	}
	c.s.peer.Send(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: c.r.ID})
}

// callOf returns the call that a notification belongs to; nil if that is not certain. said reports whether the
// notification says whose it is: it names a call, or came on the stream of one (of).
func (l *legacySession) callOf(m *jsonrpc.Message, of *peer.Call) (c *modernCall, said bool) {
	said = !m.Related.IsZero() && l.relates
	if id, named := mcp.Read(m).Named(); named && !id.IsZero() {
		call := l.server.Call(id)
		if said && call != of {
			return nil, true
		}
		said, of = true, call
	}
	switch {
	case said && of != nil:
		c, _ = of.Value.(*modernCall)
	case !said && len(l.calls) == 1:
		for only := range l.calls {
			c = only
		}
	}
	return c, said
}

// message routes a log message to its call, if that wants the level. If the call is not certain, but only one call
// of a client wants any log messages, that call gets it. Calls of a principal may belong to different clients.
func (l *legacySession) message(m *jsonrpc.Message, of *peer.Call) {
	c, said := l.callOf(m, of)
	if c == nil && !said && !l.a.holder.Principal {
		c = l.onlyListener()
	}
	if c == nil || c.Level == 0 {
		return
	}
	if mcp.ReadLevel(mcp.Read(m).Raw(mcp.Key)) >= c.Level {
		c.pass(m)
	}
}

func (l *legacySession) onlyListener() (only *modernCall) {
	for c := range l.calls {
		switch {
		case c.Level == 0:
		case only != nil:
			return nil
		default:
			only = c
		}
	}
	return only
}

// progress passes progress to the call that has its token. While the call is suspended, the last progress is kept.
func (l *legacySession) progress(c *modernCall, m *jsonrpc.Message) {
	switch {
	case c.session != l:
	case c.state == suspended:
		c.progress.kept = m
	default:
		c.tellProgress(m)
	}
}

// tellProgress sends progress to the client under its own token. After a suspension only increased progress is
// sent.
func (c *modernCall) tellProgress(m *jsonrpc.Message) {
	params := m.Params
	last := c.progress.last
	if c.Token == nil || c.suspension != nil && last != nil && progressIn(params) <= progressIn(last) {
		return
	}
	c.progress.last = params
	params, ok := forClient(m, c.ID, c.clientID(), c.Token)
	if !ok { // what it names besides the call is nobody's
		params = stripReserved(m.Params)
	}
	c.tell(m, jsonrpc.Set(params, jsonrpc.Value{Key: "progressToken", Text: c.Token}))
}

func progressIn(params json.RawMessage) float64 {
	text, _ := jsonrpc.Member(params, "progress")
	n, _ := strconv.ParseFloat(string(text), 64)
	return n
}

// levelWithin is how long calls wait for the answer to setLevel.
const levelWithin = time.Second

// raiseLevel sets the server's log level to the most verbose that the calls in progress want. Messages below a
// call's level are filtered later. It reports whether the call has to wait for the server's answer, so that it
// misses nothing.
func (l *legacySession) raiseLevel(c *modernCall) (wait bool) {
	if c.Level == 0 || !l.welcome.Logs || l.level.refused {
		return false
	}
	most := c.Level
	for other := range l.calls {
		if other.r != nil && other.Level != 0 {
			most = min(most, other.Level)
		}
	}
	if most != l.level.told && !l.level.asking {
		l.level.told, l.level.asking = most, true
		l.ask(mcp.MethodSetLevel, mcp.LevelParams(most), l.leveled)
		l.a.after(levelWithin, l.leveledLate)
	}
	return l.level.asking
}

// leveled handles the answer to setLevel. A server that refuses is not asked again in this session.
func (l *legacySession) leveled(m *jsonrpc.Message) {
	l.level.asking = false
	l.level.refused = m.Error != nil
	l.forwardAll()
}

// leveledLate ends the wait for a server that does not answer.
func (l *legacySession) leveledLate() {
	if l.level.asking && l.state == sessionReady {
		l.level.asking = false
		l.forwardAll()
	}
}
