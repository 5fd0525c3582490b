package session

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// batchVersion is the one version in which messages may come in arrays.
const batchVersion = "2025-03-26"

// hello is what the client's initialize settled for the session.
type hello struct {
	params  json.RawMessage // for upstreams: the client's own, with the version agreed; nil before initialize
	version string
	ready   bool // the client takes server requests: it sent initialized, or a request after initialize

	level json.RawMessage // params of the last logging/setLevel
}

// serverInfo is what an upstream said in its answer to initialize.
type serverInfo struct {
	result       json.RawMessage // nil if it has not answered yet
	capabilities map[string]json.RawMessage
}

// initialize starts all upstreams and answers for them together. A client waits
// for a slow one only so long; its start goes on.
func (s *session) initialize(c *call) {
	params, version, err := negotiate(c.msg.Params, c.notes)
	if err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	s.mu.Lock()
	again := s.hello.params != nil
	if !again {
		s.hello.params, s.hello.version = params, version
		for _, u := range s.upstreams.of(mcp.Legacy).conns { // now: what the client says next waits for them
			u.openLocked()
		}
	}
	s.mu.Unlock()
	if again {
		s.fail(c, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: already initialized"})
		return
	}
	s.work(c, func(ctx context.Context) {
		if _, failed := s.startAll(ctx, mcp.Legacy, starts, (*upstreamConn).introduced); failed != nil {
			s.mu.Lock()
			s.hello = hello{level: s.hello.level} // it may come again
			s.mu.Unlock()
			s.settle(c, &jsonrpc.Message{ID: c.id, Error: failed.wire})
			return
		}
		result := s.welcome(version)
		s.promised(result)
		s.settle(c, jsonrpc.NewResult(c.id, result))
	})
}

// promised notes which lists the client was told about changes of.
func (s *session) promised(result json.RawMessage) {
	capabilities, _ := jsonrpc.Member(result, "capabilities")
	var lists [catalog.Kinds]bool
	for k := range catalog.Kinds {
		list, _ := jsonrpc.Member(capabilities, k.Capability())
		changes, _ := jsonrpc.Member(list, "listChanged")
		lists[k] = string(changes) == "true"
	}
	s.news.promise(lists)
}

// negotiate returns the client's params with the version that the session will
// speak: the client's own if it is known, else the newest (2025-11-25
// basic/lifecycle: "Otherwise, the server MUST respond with another protocol
// version it supports").
func negotiate(params json.RawMessage, n *mcp.Notes) (json.RawMessage, string, error) {
	if err := n.Err(mcp.Key); err != nil {
		return nil, "", err
	}
	version, ok := n.Text(mcp.Key)
	if !ok {
		return nil, "", errMissing("protocolVersion")
	}
	if err := n.Err(mcp.InMeta, mcp.Token); err != nil {
		return nil, "", err
	}
	if slices.Contains(mcp.LegacyVersions, version) {
		return params, version, nil
	}
	version = mcp.LegacyVersions[0]
	return jsonrpc.Replace(params, jsonrpc.Edit{Span: n.At(mcp.Key), With: jsonrpc.Quote(version)}), version, nil
}

// initialized handles an upstream's answer to initialize.
func (u *upstreamConn) initialized(a *attempt, answer *jsonrpc.Message) {
	if answer.Error != nil || answer.Result[0] != '{' { // nothing can be asked of it
		u.s.mu.Lock()
		defer u.s.mu.Unlock()
		if !a.ended {
			u.log.Debug("upstream refused initialize") // its host warns, ends the stream and says which event that is
			a.own = &jsonrpc.ClosedError{Cause: "initialize refused", Lasting: true}
			conn := a.conn
			time.AfterFunc(lastWords, func() { conn.Close() })
		}
		return
	}
	info := u.infoOf(answer.Result)
	lists := u.s.news.unannounced(u) // now: the client's next list, which waits for this, ends what was announced
	u.s.mu.Lock()
	u.info = info
	u.deaf.Store(false)
	u.missed.Store(false)
	first := []*jsonrpc.Message{jsonrpc.NewNotification(mcp.MethodInitialized, nil)}
	u.readyLocked(a, append(first, u.replayLocked()...))
	u.heardLocked(a)
	u.s.mu.Unlock()
	u.s.wg.Go(func() { u.s.news.returned(u, a, lists) })
}

// infoOf reads what an upstream says of itself, in whatever era.
func (u *upstreamConn) infoOf(result json.RawMessage) serverInfo {
	info := serverInfo{result: result, capabilities: make(map[string]json.RawMessage)}
	capabilities, err := jsonrpc.Member(result, "capabilities")
	if err == nil && capabilities != nil {
		err = jsonrpc.Each(capabilities, func(k string, v json.RawMessage) { info.capabilities[k] = v })
	}
	if err != nil {
		u.log.Warn("unusable capabilities from upstream", "err", err)
	}
	return info
}

// replayLocked returns the requests that bring a restarted upstream to where the
// session had it: its log level and subscriptions.
func (u *upstreamConn) replayLocked() []*jsonrpc.Message {
	var replay []*jsonrpc.Message
	request := func(method string, params json.RawMessage) {
		r := u.mintLocked()
		r.sent = true
		r.done = func(answer *jsonrpc.Message) {
			if answer.Error != nil {
				u.log.Debug("upstream did not take up where it was", "method", method)
			}
		}
		replay = append(replay, jsonrpc.NewRequest(r.id, method, ownToken(method, params, r.id)))
	}
	if _, ok := u.info.capabilities["logging"]; ok && u.s.hello.level != nil {
		request(mcp.MethodSetLevel, u.s.hello.level)
	}
	for _, params := range u.s.resourceSubs.of(u) {
		request(mcp.MethodSubscribe, params)
	}
	return replay
}

// declares reports whether the upstream declared a capability.
func (u *upstreamConn) declares(capability string) bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	_, ok := u.info.capabilities[capability]
	return ok
}

// offers is declares, but an upstream that has not answered initialize may have
// the capability, too.
func (u *upstreamConn) offers(capability string) bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	_, ok := u.info.capabilities[capability]
	return ok || u.info.result == nil
}

// clientReady opens the way for what upstreams have to ask and to tell.
func (s *session) clientReady() {
	s.mu.Lock()
	if s.hello.ready || s.hello.params == nil {
		s.mu.Unlock()
		return
	}
	s.hello.ready = true
	conns := s.upstreams.of(mcp.Legacy).conns
	s.mu.Unlock()
	for _, u := range conns {
		s.wg.Go(u.release)
	}
}

// welcome is the result of initialize.
func (s *session) welcome(version string) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.upstreams.of(mcp.Legacy).only(); u != nil && u.info.result != nil {
		return catalog.InVersion(u.info.result, version)
	}
	in := s.upstreams.of(mcp.Legacy).introduce(func(u *upstreamConn) json.RawMessage { return u.info.result })
	result := append([]byte(`{"protocolVersion":`), jsonrpc.Quote(version)...)
	result = append(append(result, `,"capabilities":`...), in.Capabilities...)
	result = append(append(result, `,"serverInfo":`...), s.p.serverInfo()...)
	if in.Instructions != "" {
		result = append(append(result, `,"instructions":`...), jsonrpc.Quote(in.Instructions)...)
	}
	return append(result, '}')
}

// serverInfo is how the proxy calls itself.
func (p *Router) serverInfo() json.RawMessage {
	return slices.Concat([]byte(`{"name":"mcp-proxy","version":`), jsonrpc.Quote(orDefault(p.Version, "dev")), []byte{'}'})
}

// introduce sums up what each upstream said, which is nil for one that has not.
func (set *upstreamSet) introduce(said func(*upstreamConn) json.RawMessage) catalog.Introduction {
	names, results := make([]string, len(set.conns)), make([]json.RawMessage, len(set.conns))
	for i, u := range set.conns {
		names[i], results[i] = u.up.Name, said(u)
	}
	return catalog.Introduce(set.era, names, results, !set.complete)
}
