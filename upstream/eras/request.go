package eras

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxCapabilities bounds the bytes of a client's capabilities. Requests with more are refused.
const maxCapabilities = 16 << 10

// A modernRequest is the part of a modern request's params that does not belong to its method.
type modernRequest struct {
	Capabilities, ClientInfo json.RawMessage
	Token                    json.RawMessage // of progress; nil if the client wants none
	Level                    int             // of log messages, as [mcp.ReadLevel] returns it
	State, Input             json.RawMessage // requestState and inputResponses; nil if absent, the state also if null

	meta    []byte       // _meta for a legacy server, without the token and the closing brace
	at      jsonrpc.Span // of _meta
	foreign bool         // there are params that a legacy server does not know, or takes for something else
}

var (
	// hopKeys are the members of _meta that are not sent to a legacy server.
	hopKeys = append(slices.Clone(reserved), jsonrpc.Value{Key: "progressToken"})

	// foreignKeys are the params that are not sent to a legacy server, nor from a legacy client to
	// a modern one.
	foreignKeys = []jsonrpc.Value{{Key: "requestState"}, {Key: "inputResponses"}, {Key: "task"}}
)

// readModernRequest reads the notes of a request. It returns an error if they are ambiguous.
func readModernRequest(n *mcp.Notes) (modernRequest, error) {
	r := modernRequest{Capabilities: emptyObject, at: n.At(mcp.InMeta),
		State: orAbsent(n.Raw(mcp.RequestState)), Input: n.Raw(mcp.Responses),
		foreign: !n.Method.MaybeOfExtension() && (n.Has(mcp.RequestState) || n.Has(mcp.Responses) || n.Has(mcp.Task))}
	err := n.Err(mcp.InMeta, mcp.RequestState, mcp.Responses, mcp.Task)
	if err == nil && r.Input != nil && r.Input[0] != '{' {
		err = errors.New(`"inputResponses" is not an object`)
	}
	if err != nil || !n.Has(mcp.InMeta) {
		return r, err
	}
	return r, r.readMeta(n)
}

// orAbsent returns nil for null, which some clients write instead of omitting a member.
func orAbsent(value json.RawMessage) json.RawMessage {
	if string(value) == "null" {
		return nil
	}
	return value
}

// readMeta reads the known keys of _meta, which must be unique and spelled exactly. It copies the
// others unchanged.
func (r *modernRequest) readMeta(n *mcp.Notes) error {
	claim, err := n.Claim()
	meta := n.Raw(mcp.InMeta)
	if err == nil {
		err = n.Err(mcp.Token)
	}
	switch {
	case err != nil:
		return err
	case meta[0] != '{':
		return errors.New(`"_meta" is not an object`)
	case len(claim.Capabilities) > maxCapabilities:
		return errors.New("the client's capabilities are too long")
	}
	if claim.Capabilities != nil {
		r.Capabilities = claim.Capabilities
	}
	r.ClientInfo, r.Level, r.Token = claim.ClientInfo, mcp.ReadLevel(claim.LogLevel), n.Raw(mcp.Token)
	r.meta = bytes.TrimSuffix(jsonrpc.Set(meta, hopKeys...), []byte("}"))
	return nil
}

// name makes the request name another one, by its id at the legacy server, unless that is nil.
func (r *modernRequest) name(id json.RawMessage) {
	if id == nil {
		return
	}
	if len(r.meta) > 1 {
		r.meta = append(r.meta, ',')
	}
	r.meta = append(append(r.meta, `"`+mcp.KeySubscription+`":`...), id...)
}

// answers reports whether the request has input for a call.
func (r *modernRequest) answers() bool { return r.Input != nil && !isEmptyObject(r.Input) }

func isEmptyObject(text json.RawMessage) bool {
	return text[0] == '{' && bytes.TrimLeft(text[1:], space)[0] == '}'
}

// letGo releases the request's bytes, except for small parts that are needed until the answer.
func (r *modernRequest) letGo() {
	*r = modernRequest{Capabilities: bytes.Clone(r.Capabilities), Token: bytes.Clone(r.Token), Level: r.Level}
}

// legacyParams returns the params for a legacy server. The progress token is n, because clients may
// use equal tokens.
func (r *modernRequest) legacyParams(params json.RawMessage, n int64) json.RawMessage {
	meta := r.meta
	if r.Token != nil {
		if len(meta) > 1 {
			meta = append(meta, ',')
		}
		meta = strconv.AppendInt(append(meta, `"progressToken":`...), n, 10)
	}
	switch {
	case len(meta) > 1:
		params = jsonrpc.Replace(params, jsonrpc.Edit{Span: r.at, With: append(meta, '}')})
	case !r.at.IsZero():
		params = jsonrpc.Set(params, jsonrpc.Value{Key: "_meta"})
	}
	if r.foreign {
		params = jsonrpc.Set(params, foreignKeys...)
	}
	return params
}

// asInputRequest returns a legacy server's request as an entry of inputRequests, without members that
// only the legacy era has.
func asInputRequest(method string, params json.RawMessage) json.RawMessage {
	if params != nil {
		if mayHave(params, "_meta") {
			params = mcp.SetMeta(params, hopKeys...)
		}
		values := []jsonrpc.Value{{Key: "task"}}
		if method == mcp.MethodElicit {
			values = append(values, jsonrpc.Value{Key: "elicitationId"})
		}
		params = jsonrpc.Set(params, values...)
	}
	return jsonrpc.Set(nil, jsonrpc.Value{Key: "method", Text: jsonrpc.Quote(method)}, jsonrpc.Value{Key: "params", Text: params})
}

// inputRequired returns the result that asks for input.
func inputRequired(requests json.RawMessage, state string, serverInfo json.RawMessage) json.RawMessage {
	result := jsonrpc.Set(nil,
		jsonrpc.Value{Key: "resultType", Text: jsonrpc.Quote(resultInputRequired)},
		jsonrpc.Value{Key: "inputRequests", Text: requests},
		jsonrpc.Value{Key: "requestState", Text: jsonrpc.Quote(state)})
	if serverInfo == nil {
		return result
	}
	return mcp.SetMeta(result, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: serverInfo})
}
