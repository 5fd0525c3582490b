package session

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// classify sets the era of a request: modern if _meta claims so, or if only that era has the
// method. It stores the claim in the request, and returns what is wrong with it.
func (s *session) classify(r *request) *jsonrpc.Error {
	r.era = mcp.Legacy
	surely := s.ofPrincipal || r.notes.Method.ModernOnly()
	meta, err := r.notes.Claim()
	switch {
	case !surely && !meta.Claimed && (err == nil || !mcp.MayHave(r.msg.Params, []byte(mcp.KeyVersion))):
		return nil
	case err != nil:
		return jsonrpc.InvalidParams(err.Error())
	}
	r.era = mcp.Modern
	r.clientClaim = claimOf(meta)
	if bad := meta.Check(); bad != nil {
		return bad
	}
	r.caps = lists.CapsOf(meta.Capabilities)
	return nil
}

func claimOf(meta mcp.Meta) (c clientClaim) {
	level, _ := jsonrpc.Unquote(meta.LogLevel)
	c.level = slices.Index(mcp.LogLevels, level) + 1
	if !bytes.Contains(meta.Capabilities, []byte(`"extensions"`)) {
		return c
	}
	extensions, _ := jsonrpc.Member(meta.Capabilities, "extensions")
	_ = jsonrpc.Each(extensions, func(key string, _ json.RawMessage) { // other values have no members
		c.tasks = c.tasks || key == mcp.ExtensionTasks
		c.extended = c.extended || key != mcp.ExtensionTasks && key != mcp.ExtensionUI
	})
	return c
}

// checked returns an upstream's answer to a request of the modern era. It replaces results that the
// client must not get by errors. If the answer is a result, r was taken.
func (r *request) checked(u *upstreamConn, answer *jsonrpc.Message) *jsonrpc.Message {
	if answer.Error != nil {
		return &jsonrpc.Message{ID: r.ID, Error: checkedError(u, r.Method, answer.Error), Extra: answer.Extra}
	}
	kind, err := catalog.ResultType(answer.Result)
	if err == nil && !r.admits(kind) {
		err = catalog.ErrResultType
	}
	if err != nil {
		u.log.Debug("unusable result from upstream", "method", r.Method, "err", err)
		return jsonrpc.NewError(r.ID, jsonrpc.InvalidResponse(u.up.Name, err.Error()))
	}
	r.kind = cmp.Or(kind, catalog.ResultComplete)
	result := answer.Result
	if r.kind == catalog.ResultInputRequired {
		r.upstreams.s.noteStateOwner(u, result)
		u.noteSuspended(result)
	}
	if r.kind == catalog.ResultComplete {
		result = catalog.Completed(r.Method, kind, result)
		if mcp.MethodOf(r.Method).Cacheable && r.upstreams.s.router.Policies.Differ() {
			result = catalog.Private(result)
		}
	}
	return &jsonrpc.Message{ID: r.ID, Result: result, Extra: answer.Extra}
}

// admits reports whether the client may know a kind of result for this method (2026-07-28
// basic/index, basic/patterns/mrtr). An extension may have kinds of its own, for its methods and for
// others.
func (r *request) admits(kind string) bool {
	row := mcp.MethodOf(r.Method)
	switch kind {
	case "", catalog.ResultComplete:
		return true
	case catalog.ResultInputRequired:
		return row.Asks || row.Name == ""
	case catalog.ResultTask:
		return r.tasks && r.Method == mcp.MethodToolsCall
	}
	return r.extended || row.Name == ""
}

// checkedError returns an upstream's error with a code for clients of the modern era. Some codes
// exist only in the legacy era (2026-07-28 basic/index), but an extension may give them a meaning for
// its own methods. Others are about the hop to the upstream, and would make the client negotiate
// with us.
func checkedError(u *upstreamConn, method string, text json.RawMessage) json.RawMessage {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(text, jsonrpc.Span{}, at[:], "code") != nil {
		return text
	}
	as := func(code int64) json.RawMessage {
		return jsonrpc.Replace(text, jsonrpc.Edit{Span: at[0], With: strconv.AppendInt(nil, code, 10)})
	}
	known := mcp.MethodOf(method).Name != ""
	switch code, _ := strconv.Atoi(string(at[0].Of(text))); {
	case known && code == jsonrpc.CodeResourceNotFound:
		return as(jsonrpc.CodeInvalidParams)
	case known && code == mcp.CodeURLElicitation: // only the message can still tell the user where to go
		return as(jsonrpc.CodeInternalError)
	case code == mcp.CodeHeaderMismatch, code == mcp.CodeUnsupportedVersion:
		u.log.Debug("unusable error from upstream", "code", code)
		return jsonrpc.InvalidResponse(u.up.Name, "unexpected error code").Raw()
	}
	return text
}
