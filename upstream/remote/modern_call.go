package remote

import (
	"net/http"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// ask posts a call, and once more where that can help, until its answer. The
// caller closes the exchange.
func (s *modern) ask(c *modernCall) (*exchange, *jsonrpc.Message, *failure) {
	m := c.m
	round := s.server.learnFor(c.ctx, m)
	x, reply, f := s.post(c, m)
	if f == nil && x.resp == nil { // refused here
		return x, reply, nil
	}
	if x.resp != nil && isDoubtful(x.resp.StatusCode, reply) {
		s.doubt()
	}
	if again := s.again(c, m, round, reply, f); again != nil {
		x.close()
		x, reply, f = s.post(c, again)
	}
	if f == nil && m.Method == mcp.MethodToolsList && reply.Result != nil {
		list := *reply
		list.Result = s.server.tools.learn(reply.Result, s.log)
		reply = &list
	}
	return x, reply, f
}

// post posts m for a call and reads until its reply.
func (s *modern) post(c *modernCall, m *jsonrpc.Message) (*exchange, *jsonrpc.Message, *failure) {
	header, bad := s.server.mirrored(m)
	x := &exchange{
		server: s.server, to: s, p: s.peer, header: header,
		id: m.ID, related: c.m.ID, reach: newReach(&s.delivered),
	}
	if bad != nil {
		return x, jsonrpc.NewError(m.ID, bad), nil
	}
	reply, f := x.run(c.ctx, m)
	return x, reply, f
}

// again returns what to post in place of m after its first answer; nil if that is
// the last. What has effects is posted again only if the server says that it did
// not run. round is that of the tools that m was posted with.
func (s *modern) again(c *modernCall, m *jsonrpc.Message, round int, reply *jsonrpc.Message, f *failure) *jsonrpc.Message {
	if c.ctx.Err() != nil {
		return nil
	}
	if f != nil {
		if !f.broke() || !mcp.MethodOf(m.Method).Safe {
			return nil
		}
		again := *m
		again.ID = ownID("again:" + m.ID.String()) // the other may still be running
		return &again
	}
	code, _ := strconv.Atoi(string(member(reply.Error, "code")))
	if code != mcp.CodeHeaderMismatch || m.Method != mcp.MethodToolsCall {
		return nil
	}
	s.server.refresh(c.ctx, m, round)
	return m
}

// mirrored returns the headers that repeat what m says (2026-07-28
// basic/transports/streamable-http, "Request Metadata"), or the answer to a request
// that has something to repeat which cannot be told or no header can carry.
func (s *Server) mirrored(m *jsonrpc.Message) (http.Header, *jsonrpc.Error) {
	h := http.Header{}
	if !visible(m.Method) {
		return h, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"}
	}
	h.Set(headerMethod, m.Method)
	meta, err := mcp.ReadMeta(m.Params)
	if err != nil {
		return h, invalidParams(err)
	}
	switch {
	case !visible(meta.Version) || len(meta.Version) > maxVersion:
		return h, mcp.UnsupportedVersion(meta.Version, mcp.Versions)
	case meta.Version != "":
		h.Set(headerVersion, meta.Version)
	}
	if key := mcp.MethodOf(m.Method).HeaderKey(); key != "" {
		err = s.name(h, m, key)
	}
	if err != nil {
		return h, invalidParams(err)
	}
	return h, nil
}

// name repeats what a request is about.
func (s *Server) name(h http.Header, m *jsonrpc.Message, key string) error {
	var at [2]jsonrpc.Span
	if err := jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], key, "arguments"); err != nil {
		return err
	}
	name, ok := jsonrpc.Unquote(at[0].Of(m.Params))
	if !ok {
		return nil // which the server may say
	}
	h.Set(headerName, mcp.EncodeHeader(name))
	if m.Method != mcp.MethodToolsCall {
		return nil
	}
	for _, mirror := range s.tools.mirrors(name) {
		if value, ok := mirror.Value(at[1].Of(m.Params)); ok {
			h.Set(mirror.Header, value)
		}
	}
	return nil
}

func invalidParams(err error) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: " + err.Error()}
}
