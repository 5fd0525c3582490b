package eras

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A hello is a legacy client's initialize.
type hello struct {
	version  string // of the client
	can      mcp.Abilities
	info     json.RawMessage // clientInfo; nil if it has none
	caps     json.RawMessage // as in modern requests
	extended bool            // it declares extensions that may have results of their own
	ready    bool            // the client sent initialized
	greeted  bool            // initialize was answered with a result
}

// readHello reads the params of initialize.
func readHello(params json.RawMessage) (*hello, error) {
	var at [3]jsonrpc.Span
	if err := jsonrpc.Find(params, jsonrpc.Span{}, at[:], "protocolVersion", "clientInfo", "capabilities"); err != nil {
		return nil, err
	}
	version, ok := jsonrpc.Unquote(at[0].Of(params))
	if !ok {
		return nil, errors.New(`"protocolVersion" is missing or not a string`)
	}
	if !slices.Contains(mcp.LegacyVersions, version) {
		version = mcp.LegacyVersions[0]
	}
	h := &hello{version: version, caps: withoutTasks(at[2].Of(params))}
	if info := at[1].Of(params); info != nil && info[0] == '{' {
		h.info = info
	}
	h.can, h.extended = abilitiesOf(h.caps), extends(h.caps)
	return h, nil
}

// welcome returns the result of initialize for a result of server/discover.
func (h *hello) welcome(upstream string, discovered json.RawMessage) (json.RawMessage, error) {
	r, err := readModernResult(discovered)
	if err != nil || r.kind != resultComplete && !isOwnKind(r.kind, mcp.MethodDiscover, true) { // its own kind is of no use to the client
		return nil, cmp.Or(err, errors.New(unknownResultType))
	}
	var at [2]jsonrpc.Span
	if err := jsonrpc.Find(discovered, jsonrpc.Span{}, at[:], "supportedVersions", "capabilities"); err != nil {
		return nil, err
	}
	if versions := at[0].Of(discovered); versions != nil && !mcp.SpeaksModern(versions) {
		return nil, errors.New("no common version")
	}
	info, _ := jsonrpc.Member(r.meta.Of(discovered), mcp.KeyServerInfo)
	if info == nil || info[0] != '{' {
		info = jsonrpc.Set(nil, jsonrpc.Value{Key: "name", Text: jsonrpc.Quote(upstream)}, jsonrpc.Value{Key: "version", Text: []byte(`""`)})
	}
	return jsonrpc.Set(r.toLegacy(mcp.MethodDiscover, h.version),
		jsonrpc.Value{Key: "supportedVersions"},
		jsonrpc.Value{Key: "protocolVersion", Text: jsonrpc.Quote(h.version)},
		jsonrpc.Value{Key: "capabilities", Text: withoutTasks(at[1].Of(discovered))},
		jsonrpc.Value{Key: "serverInfo", Text: info}), nil
}

// unsaidLevel is the log level of clients that set none. A legacy server would choose one itself; a
// modern one sends nothing unless asked.
const unsaidLevel = "info"

// stamp returns the members of _meta that each modern request of the client carries. The bytes must not be written
// to.
func (h *hello) stamp(level string) []byte {
	text := jsonrpc.Set(nil, append(h.claim(), jsonrpc.Value{Key: mcp.KeyLogLevel, Text: jsonrpc.Quote(level)})...)
	return text[1 : len(text)-1 : len(text)-1]
}

// claim returns the members of _meta with which a modern message says who sends it.
func (h *hello) claim() []jsonrpc.Value {
	return []jsonrpc.Value{
		{Key: mcp.KeyVersion, Text: jsonrpc.Quote(mcp.ModernVersions[0])},
		{Key: mcp.KeyClientInfo, Text: h.info},
		{Key: mcp.KeyCapabilities, Text: h.caps},
	}
}

// stampKeys are the keys of _meta that stamped reads: the progress token and those that it sets.
var stampKeys = append([]string{"progressToken"}, reservedKeys()...)

func reservedKeys() []string {
	var keys []string
	for _, v := range reserved {
		keys = append(keys, v.Key)
	}
	return keys
}

// stamped returns params for a modern request: the members of stamp replace the client's in _meta, and id replaces
// its progress token, which is returned too (nil for none).
func stamped(params json.RawMessage, stamp []byte, id jsonrpc.ID) (text, token json.RawMessage, err error) {
	if params == nil || string(params) == "null" {
		params = emptyObject
	}
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(params, jsonrpc.Span{}, at[:], "_meta"); err != nil || params[0] != '{' {
		return nil, nil, cmp.Or(err, errors.New("params are not an object"))
	}
	if at[0].IsZero() {
		return jsonrpc.Replace(params, opening(params, 0, `"_meta":{`, stamp, `}`)), nil, nil
	}
	meta := at[0]
	if string(meta.Of(params)) == "null" {
		return stamped(jsonrpc.Replace(params, jsonrpc.Edit{Span: meta, With: emptyObject}), stamp, id)
	}
	if params[meta.Start] != '{' {
		return nil, nil, errors.New(`"_meta" is not an object`)
	}
	var in [7]jsonrpc.Span
	if err := jsonrpc.Find(params, meta, in[:], stampKeys...); err != nil {
		return nil, nil, err
	}
	if string(in[0].Of(params)) == "null" { // no token
		none := jsonrpc.Set(meta.Of(params), jsonrpc.Value{Key: stampKeys[0]})
		return stamped(jsonrpc.Replace(params, jsonrpc.Edit{Span: meta, With: none}), stamp, id)
	}
	if slices.ContainsFunc(in[1:], func(s jsonrpc.Span) bool { return !s.IsZero() }) {
		bare := jsonrpc.Set(meta.Of(params), reserved...)
		return stamped(jsonrpc.Replace(params, jsonrpc.Edit{Span: meta, With: bare}), stamp, id)
	}
	return jsonrpc.Replace(params, opening(params[:meta.End], meta.Start, "", stamp, ""),
		jsonrpc.Edit{Span: in[0], With: id.Raw()}), in[0].Of(params), nil
}

// opening is the edit that inserts members at the beginning of the object at start. The object ends with text.
func opening(text []byte, start int, before string, members []byte, after string) jsonrpc.Edit {
	with := append(append(append(make([]byte, 0, len(before)+len(members)+len(after)+1), before...), members...), after...)
	if rest := bytes.TrimLeft(text[start+1:], " \t\r\n"); rest[0] != '}' {
		with = append(with, ',')
	}
	return jsonrpc.Edit{Span: jsonrpc.Span{Start: start + 1, End: start + 1}, With: with}
}

// bare returns a notification without the members of its listen.
func bare(m *jsonrpc.Message) *jsonrpc.Message {
	return &jsonrpc.Message{Method: m.Method, Params: orNil(stripReserved(m.Params)), Extra: m.Extra}
}

// withoutForeign returns a legacy client's params without members that mean something else in the modern era.
// Without declared tasks the task member is ignored (2025-11-25 basic/utilities/tasks), and input without a
// question is dropped.
func withoutForeign(method string, params json.RawMessage) json.RawMessage {
	if !mcp.MethodOf(method).Asks {
		return params
	}
	for _, foreign := range foreignKeys {
		if mayHave(params, foreign.Key) {
			params = without(params, foreign)
		}
	}
	return params
}

// without returns an object without a member. It returns the same text if the member is absent.
func without(object json.RawMessage, member jsonrpc.Value) json.RawMessage {
	if value, err := jsonrpc.Member(object, member.Key); err == nil && value == nil {
		return object
	}
	return jsonrpc.Set(object, jsonrpc.Value{Key: member.Key})
}
