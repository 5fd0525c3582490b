package session

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// classify finds out the era of a request. It is of the modern era if it claims so in
// _meta, or if only that era has its method. It keeps what the claim says with the call,
// and returns what is wrong with the claim.
func (s *session) classify(c *call) *jsonrpc.Error {
	c.era, c.view = mcp.Legacy, &s.views.legacy
	surely := s.stateless || c.notes.Method.ModernOnly()
	meta, err := c.notes.Claim()
	switch {
	case !surely && !meta.Claimed && (err == nil || !mayClaim(c.msg.Params)):
		return nil
	case err != nil:
		return invalidParams(err.Error())
	}
	c.era, c.view = mcp.Modern, nil
	level, _ := jsonrpc.Unquote(meta.LogLevel)
	c.level = slices.Index(mcp.LogLevels, level) + 1
	c.tasks, c.extended = extensionsOf(meta.Capabilities)
	if bad := meta.Check(); bad != nil {
		return bad
	}
	c.view = s.views.of(meta.Capabilities)
	return nil
}

// identity is the _meta of requests that the session makes for c. It has what the client
// says of itself, since an upstream may not offer the same to all clients. In the legacy
// era it is nil: initialize has said it.
func (c *call) identity() json.RawMessage {
	if c.era == mcp.Legacy {
		return nil
	}
	values := []jsonrpc.Value{
		{Key: mcp.KeyVersion, Text: c.notes.Raw(mcp.Version)},
		{Key: mcp.KeyClientInfo, Text: c.notes.Raw(mcp.ClientInfo)},
		{Key: mcp.KeyCapabilities, Text: c.notes.Raw(mcp.Capabilities)},
	}
	return jsonrpc.Set(nil, values...)
}

// mayClaim reports whether params that are ambiguous may hold the key that claims the
// modern era: it has to stand there, unless a letter or a slash of it is written as an
// escape.
func mayClaim(params json.RawMessage) bool {
	return bytes.Contains(params, keyVersion) || bytes.Contains(params, escapedASCII) || bytes.Contains(params, escapedSlash)
}

var (
	keyVersion   = []byte(mcp.KeyVersion)
	escapedASCII = []byte(`\u00`)
	escapedSlash = []byte(`\/`)
)

// extensionsOf reports whether a client's capabilities have the tasks extension, and
// whether they have one that is not known here.
func extensionsOf(capabilities json.RawMessage) (tasks, others bool) {
	if !bytes.Contains(capabilities, []byte(`"extensions"`)) {
		return false, false
	}
	extensions, _ := jsonrpc.Member(capabilities, "extensions")
	_ = jsonrpc.Each(extensions, func(key string, _ json.RawMessage) { // what is no object has none
		tasks = tasks || key == mcp.ExtensionTasks
		others = others || key != mcp.ExtensionTasks && key != mcp.ExtensionUI
	})
	return tasks, others
}

// modernNotified handles a notification of the modern era that is no cancellation. That
// era defines no other, so that only a sole upstream can know it.
func (s *session) modernNotified(m *jsonrpc.Message) {
	if u := s.upstreams.of(mcp.Modern).only(); u != nil {
		u.tell(m)
		return
	}
	s.drop("no owner", m)
}
