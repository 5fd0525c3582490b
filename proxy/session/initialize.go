package session

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// batchVersion is the only version with arrays of messages.
const batchVersion = "2025-03-26"

// initialize starts all upstreams and answers for all. The client waits for a slow one for a
// limited time; its start continues.
func (s *session) initialize(r *request) *jsonrpc.Error {
	if len(r.msg.Params) > maxInitialize {
		return jsonrpc.InvalidParams("they are longer than 64 KiB")
	}
	params, version, err := negotiate(r.msg.Params, r.notes)
	if err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	if !s.handshake.begin(params, version) {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: already initialized"}
	}
	s.hello.Store(namedIn(params))
	s.lists.Initialized(params)
	for _, u := range s.upstreams.of(mcp.Legacy).visibleTo(r.grant).conns { // now, so that the client's next requests wait for them
		if !u.lists.IsLazy() {
			u.open()
		}
	}
	s.work(r, func(ctx context.Context) {
		if _, failed := s.startAll(ctx, r); failed != nil {
			s.handshake.undo()
			s.hello.Store(nil)
			s.settle(r, &jsonrpc.Message{ID: r.ID, Error: failed.Wire})
			return
		}
		result := s.welcome(r.grant, version)
		s.promised(result)
		s.passLogs(r)
		s.settle(r, jsonrpc.NewResult(r.ID, result))
	})
	return nil
}

// passLogs forwards what upstreams have logged during initialize with its answer: the client may
// leave at once afterwards.
func (s *session) passLogs(r *request) {
	for _, u := range s.upstreams.of(mcp.Legacy).visibleTo(r.grant).conns {
		for {
			in, ok := u.held.takeLog(&s.handshake.ready)
			if !ok {
				break
			}
			out := s.exposed(u, in.m, mcp.Read(in.m))
			out.Related = r.ID
			s.tell(out)
		}
	}
}

// promised records the lists for which the client was promised list_changed.
func (s *session) promised(result json.RawMessage) {
	capabilities, _ := jsonrpc.Member(result, "capabilities")
	var promised [catalog.Kinds]bool
	for k := range catalog.Kinds {
		list, _ := jsonrpc.Member(capabilities, k.Capability())
		changes, _ := jsonrpc.Member(list, "listChanged")
		promised[k] = string(changes) == "true"
	}
	s.lists.Promise(promised)
}

// negotiate returns the client's params with the version of the session: the client's own if we
// support it, else the newest (2025-11-25 basic/lifecycle: "Otherwise, the server MUST respond with
// another protocol version it supports").
func negotiate(params json.RawMessage, n *mcp.Notes) (json.RawMessage, string, error) {
	if err := n.Err(mcp.Key); err != nil {
		return nil, "", err
	}
	version, ok := n.Text(mcp.Key)
	if !ok {
		return nil, "", mcp.Missing("protocolVersion")
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

// clientReady lets upstreams send requests and notifications to the client. It returns false if the
// client has not sent initialize.
func (s *session) clientReady() bool {
	if params, _ := s.handshake.said(); params == nil {
		return false
	}
	if s.handshake.ready.CompareAndSwap(false, true) {
		for _, u := range s.upstreams.of(mcp.Legacy).conns {
			s.wg.Go(u.release)
		}
	}
	return true
}

// welcome returns the result of initialize. For an upstream that does not start in time it has what that has said to
// others, or before.
func (s *session) welcome(g *policy.Grant, version string) json.RawMessage {
	set := s.upstreams.of(mcp.Legacy).visibleTo(g)
	if u := set.only(); u != nil {
		if said := u.lists.LastSaid(); said != nil {
			return catalog.InVersion(said, version)
		}
	}
	in := set.introduce(func(u *upstreamConn) json.RawMessage { return u.lists.Says().Result })
	result := append([]byte(`{"protocolVersion":`), jsonrpc.Quote(version)...)
	result = append(append(result, `,"capabilities":`...), in.Capabilities...)
	result = append(append(result, `,"serverInfo":`...), s.router.serverInfo()...)
	if in.Instructions != "" {
		result = append(append(result, `,"instructions":`...), jsonrpc.Quote(in.Instructions)...)
	}
	return append(result, '}')
}

// introduce merges the descriptions of the upstreams. said returns nil for an upstream without one.
func (set *upstreamSet) introduce(said func(*upstreamConn) json.RawMessage) catalog.Introduction {
	names, results := make([]string, len(set.conns)), make([]json.RawMessage, len(set.conns))
	for i, u := range set.conns {
		names[i], results[i] = u.up.Name, said(u)
	}
	in := catalog.Introduce(set.era, names, results, !set.complete)
	for _, extension := range in.Twice {
		if set.s.router.memory.WarnOnce("extension " + extension) {
			set.s.log.Warn("several upstreams declare an extension; clients see the settings of the first", "extension", extension[:min(len(extension), maxName)])
		}
	}
	return in
}

// discover asks all upstreams for their descriptions and answers for all. The client waits as long
// as for initialize.
func (s *session) discover(r *request) *jsonrpc.Error {
	if err := r.notes.Err(mcp.InMeta, mcp.Token); err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	s.work(r, func(ctx context.Context) {
		said, failed := s.startAll(ctx, r)
		if failed != nil {
			s.settle(r, &jsonrpc.Message{ID: r.ID, Error: failed.Wire})
			return
		}
		result := s.upstreams.of(mcp.Modern).visibleTo(r.grant).discovered(said)
		if s.router.Policies.Differ() {
			result = catalog.Private(result)
		}
		s.settle(r, jsonrpc.NewResult(r.ID, result))
	})
	return nil
}

// supportedVersions are all versions that the proxy serves, modern ones first.
var supportedVersions = func() json.RawMessage {
	versions, _ := json.Marshal(mcp.Versions) // strings always marshal
	return versions
}()

// discovered returns the result of server/discover from the upstreams' answers.
func (set *upstreamSet) discovered(said map[*upstreamConn]json.RawMessage) json.RawMessage {
	if u := set.only(); u != nil && said[u] != nil {
		return set.s.router.discoveredBy(said[u])
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
	return mcp.SetMeta(jsonrpc.Set(nil, values...), jsonrpc.Value{Key: mcp.KeyServerInfo, Text: set.s.router.serverInfo()})
}

// discoveredBy returns a sole upstream's result of server/discover with the versions of this hop,
// and with all required members.
func (p *Router) discoveredBy(said json.RawMessage) json.RawMessage {
	kind, _ := catalog.ResultType(said) // read before
	result := catalog.Completed(mcp.MethodDiscover, kind, jsonrpc.Set(said, jsonrpc.Value{Key: "supportedVersions", Text: supportedVersions}))
	meta, _ := jsonrpc.Member(result, "_meta")
	if info, _ := jsonrpc.Member(meta, mcp.KeyServerInfo); info != nil {
		return result
	}
	return mcp.SetMeta(result, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: p.serverInfo()})
}
