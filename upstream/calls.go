package upstream

import (
	"bytes"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Calls returns what the servers that run now have not answered, in no order, if hooks are
// told of requests: else nobody keeps when they came. Of the clients it knows nothing.
func (h *Host) Calls() (all []observe.OpenRequest) {
	h.once.Do(h.init)
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		all = append(all, s.calls()...)
	}
	return all
}

func (s *stream) calls() []observe.OpenRequest {
	var st Status
	s.addStatus(&st)
	all := s.inFlight.seen()
	for i := range all {
		c := &all[i]
		c.Session, c.Upstream, c.Era = s.id.session(), s.name, string(s.id.era)
		if st.State == StateStarting {
			c.WaitsFor = observe.ForStart
		}
	}
	return all
}

// seen returns the calls of which somebody wants to know, but for listens: nobody waits for
// their answers.
func (f *inFlight) seen() (all []observe.OpenRequest) {
	var open []*openCall
	f.mu.Lock()
	for _, c := range f.calls.Each {
		if c.kind != listen && !c.began.IsZero() {
			open = append(open, c)
			all = append(all, observe.OpenRequest{Method: c.method, Began: c.began, WaitsFor: f.waitLocked(c)})
		}
	}
	f.mu.Unlock()
	for i, c := range open {
		all[i].Tool = c.tool()
	}
	return all
}

func (f *inFlight) waitLocked(c *openCall) observe.Wait {
	if f.requests.Any(func(r serverRequest) bool { return r.awaitedBy(c) }) {
		return observe.ForClient
	}
	return observe.ForUpstream
}

// maxParams bounds the params of a call that are kept for who may want to know its tool.
const maxParams = 2 << 10

// maxTool bounds what is told of a tool's name, in bytes.
const maxTool = 128

// keep keeps what may be told of a call.
func (c *openCall) keep(m *jsonrpc.Message) {
	c.began, c.method = time.Now(), mcp.NameOf(m.Method)
	if m.Method == mcp.MethodToolsCall && len(m.Params) <= maxParams {
		c.params = bytes.Clone(m.Params)
	}
}

// tool is the name of the tool that is called; "" for none, or if that was not kept.
func (c *openCall) tool() string {
	if c.params == nil {
		return ""
	}
	name, _ := mcp.ReadParams(mcp.MethodToolsCall, c.params).Text(mcp.Key)
	return name[:min(len(name), maxTool)]
}
