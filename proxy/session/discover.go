package session

import (
	"context"
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// discover asks all upstreams what they are and answers for them together. It
// holds the client as long as initialize does.
func (s *session) discover(c *call) {
	if err := c.notes.Err(mcp.InMeta, mcp.Token); err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	meta := c.notes.Raw(mcp.InMeta)
	s.work(c, func(ctx context.Context) {
		said, failed := s.startAll(ctx, mcp.Modern, mcp.MethodDiscover, func(u *upstreamConn, ctx context.Context) (json.RawMessage, *failure) {
			return u.discover(ctx, meta)
		})
		if failed != nil {
			s.settle(c, &jsonrpc.Message{ID: c.id, Error: failed.wire})
			return
		}
		s.settle(c, jsonrpc.NewResult(c.id, s.upstreams.of(mcp.Modern).discovered(said)))
	})
}

// discover asks an upstream what it is and keeps that. It returns nil if there is
// no answer that can be used, and if it is not there why.
func (u *upstreamConn) discover(ctx context.Context, meta json.RawMessage) (json.RawMessage, *failure) {
	answer, err := u.ask(ctx, mcp.MethodDiscover, catalog.ListParams(meta, nil))
	usable := err == nil && answer.Error == nil
	if usable {
		kind, bad := kindOf(answer.Result)
		usable = bad == nil && (kind == "" || kind == resultComplete)
	}
	if !usable {
		u.log.Debug("upstream cannot say what it is", "method", mcp.MethodDiscover, "err", err)
		if err == nil && isClosed(answer.Error) {
			return nil, &failure{wire: answer.Error}
		}
		return nil, nil
	}
	info := u.infoOf(answer.Result)
	u.s.p.memory.noteInTime(u.up.Name, mcp.MethodDiscover)
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.info = info
	return answer.Result, nil
}

// isClosed reports whether an error is the connection-closed one.
func isClosed(wire json.RawMessage) bool {
	data, _ := jsonrpc.Member(wire, "data")
	raw, _ := jsonrpc.Member(data, "reason")
	reason, _ := jsonrpc.Unquote(raw)
	return reason == jsonrpc.ReasonClosed
}

// supportedVersions are all that are served here, modern ones first.
var supportedVersions = func() json.RawMessage {
	versions, _ := json.Marshal(mcp.Versions) // strings always can be
	return versions
}()

// discovered is the result of server/discover, of what upstreams said now.
func (set *upstreamSet) discovered(said map[*upstreamConn]json.RawMessage) json.RawMessage {
	if u := set.only(); u != nil && said[u] != nil {
		return set.s.p.discoveredBy(said[u])
	}
	in := set.introduce(func(u *upstreamConn) json.RawMessage { return said[u] })
	var caching catalog.Caching
	for _, result := range said {
		caching.Add(catalog.CachingOf(result))
	}
	if in.Missing {
		caching.Partial()
	}
	values := []jsonrpc.Value{{Key: "supportedVersions", Text: supportedVersions}, {Key: "capabilities", Text: in.Capabilities}}
	if in.Instructions != "" {
		values = append(values, jsonrpc.Value{Key: "instructions", Text: jsonrpc.Quote(in.Instructions)})
	}
	values = append(values, caching.Members()...)
	return mcp.SetMeta(jsonrpc.Set(nil, values...), jsonrpc.Value{Key: mcp.KeyServerInfo, Text: set.s.p.serverInfo()})
}

// discoveredBy is the result of server/discover of the only upstream, with the versions
// of this hop and what it must say and does not.
func (p *Router) discoveredBy(said json.RawMessage) json.RawMessage {
	kind, _ := kindOf(said) // read before
	result := completed(mcp.MethodDiscover, kind, jsonrpc.Set(said, jsonrpc.Value{Key: "supportedVersions", Text: supportedVersions}))
	meta, _ := jsonrpc.Member(result, "_meta")
	if info, _ := jsonrpc.Member(meta, mcp.KeyServerInfo); info != nil {
		return result
	}
	return mcp.SetMeta(result, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: p.serverInfo()})
}
