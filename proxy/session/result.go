package session

import (
	"encoding/json"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// checked returns an upstream's answer to a call of the modern era as the client may have
// it. Instead of a result that the client must not get, it gets an error.
func (c *call) checked(u *upstreamConn, answer *jsonrpc.Message) *jsonrpc.Message {
	if answer.Error != nil {
		return &jsonrpc.Message{ID: c.id, Error: checkedError(u, answer.Error), Extra: answer.Extra}
	}
	kind, err := catalog.ResultType(answer.Result)
	if err == nil && !c.admits(kind) {
		err = catalog.ErrResultType
	}
	if err != nil {
		u.log.Debug("unusable result from upstream", "method", c.method, "err", err)
		return jsonrpc.NewError(c.id, jsonrpc.InvalidResponse(u.up.Name, err.Error()))
	}
	c.kind = orDefault(kind, catalog.ResultComplete)
	result := answer.Result
	if c.kind == catalog.ResultComplete {
		result = catalog.Completed(c.method, kind, result)
	}
	return &jsonrpc.Message{ID: c.id, Result: result, Extra: answer.Extra}
}

// admits reports whether the call may be answered with a kind of result: one that its
// client knows, for this method (2026-07-28 basic/index, basic/patterns/mrtr). An
// extension that is not known here may have kinds of its own. Its client knows them, and
// a sole upstream may.
func (c *call) admits(kind string) bool {
	switch kind {
	case "", catalog.ResultComplete:
		return true
	case catalog.ResultInputRequired:
		return mcp.MethodOf(c.method).Asks
	case catalog.ResultTask:
		return c.tasks && c.method == mcp.MethodToolsCall
	}
	return c.extended && c.upstreams.only() != nil
}

// checkedError returns an upstream's error as a client of the modern era may have it. Some
// codes are of the legacy era alone (2026-07-28 basic/index). Others are about the hop to
// the upstream: a client would begin to negotiate with us.
func checkedError(u *upstreamConn, text json.RawMessage) json.RawMessage {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(text, jsonrpc.Span{}, at[:], "code") != nil {
		return text
	}
	as := func(code int64) json.RawMessage {
		return jsonrpc.Replace(text, jsonrpc.Edit{Span: at[0], With: strconv.AppendInt(nil, code, 10)})
	}
	switch code, _ := strconv.Atoi(string(at[0].Of(text))); code {
	case jsonrpc.CodeResourceNotFound:
		return as(jsonrpc.CodeInvalidParams)
	case mcp.CodeURLElicitation: // only words can still tell the user where to go
		return as(jsonrpc.CodeInternalError)
	case mcp.CodeHeaderMismatch, mcp.CodeUnsupportedVersion:
		u.log.Debug("unusable error from upstream", "code", code)
		return jsonrpc.InvalidResponse(u.up.Name, "unexpected error code").Raw()
	}
	return text
}
