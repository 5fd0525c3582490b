package eras

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// A hello is what a legacy client's initialize said.
type hello struct {
	version string // that the client speaks
	can     mcp.Abilities
	info    json.RawMessage // clientInfo; nil if it has none
	caps    json.RawMessage // as modern requests carry them
	ready   bool            // the client sent initialized
	greeted bool            // initialize was answered with a result
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
	h := &hello{version: version, caps: Capabilities(at[2].Of(params))}
	if info := at[1].Of(params); info != nil && info[0] == '{' {
		h.info = info
	}
	h.can = AbilitiesOf(h.caps)
	return h, nil
}

// initialize asks the upstream what it is, and is answered with that.
func (l *legacy) initialize(r *peer.Request) {
	h, err := readHello(r.Message.Params)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		r.Fail(jsonrpc.InvalidParams(err.Error()))
	case l.hello != nil:
		r.Fail(&jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: already initialized"})
	default:
		c := l.beginLocked(r)
		if c == nil {
			return
		}
		l.hello = h
		l.stampLocked()
		l.askLocked(mcp.MethodDiscover, nil, func(answer *jsonrpc.Message) { l.discoveredLocked(c, answer) })
	}
}

// discoveredLocked answers initialize.
func (l *legacy) discoveredLocked(c *legacyCall, answer *jsonrpc.Message) {
	if answer.Error != nil {
		l.settleLocked(c, &jsonrpc.Message{Error: toLegacyError(mcp.MethodInitialize, answer.Error)})
		return
	}
	result, err := l.welcome(answer.Result)
	if err != nil {
		l.log.Warn("upstream describes itself unusably", "err", err)
		c.Fail(jsonrpc.InvalidResponse(l.upstream, err.Error()))
		return
	}
	capabilities, _ := jsonrpc.Member(result, "capabilities")
	l.lists.declared = declaredChanges(capabilities)
	l.hello.greeted = true
	l.settleLocked(c, &jsonrpc.Message{Result: result})
	l.lists.openLocked()
}

// welcome returns the result of initialize that the result of server/discover is.
func (l *legacy) welcome(discovered json.RawMessage) (json.RawMessage, error) {
	r, err := readModernResult(discovered)
	if err != nil || r.kind != resultComplete {
		return nil, cmp.Or(err, errors.New("unknown resultType"))
	}
	var at [2]jsonrpc.Span
	if err := jsonrpc.Find(discovered, jsonrpc.Span{}, at[:], "supportedVersions", "capabilities"); err != nil {
		return nil, err
	}
	if versions := at[0].Of(discovered); versions != nil && !speaksModern(versions) {
		return nil, errors.New("no common version")
	}
	info, _ := jsonrpc.Member(r.meta.Of(discovered), mcp.KeyServerInfo)
	if info == nil || info[0] != '{' {
		info = jsonrpc.Set(nil, jsonrpc.Value{Key: "name", Text: jsonrpc.Quote(l.upstream)}, jsonrpc.Value{Key: "version", Text: []byte(`""`)})
	}
	return jsonrpc.Set(r.toLegacy(mcp.MethodDiscover, l.hello.version),
		jsonrpc.Value{Key: "supportedVersions"},
		jsonrpc.Value{Key: "protocolVersion", Text: jsonrpc.Quote(l.hello.version)},
		jsonrpc.Value{Key: "capabilities", Text: Capabilities(at[1].Of(discovered))},
		jsonrpc.Value{Key: "serverInfo", Text: info}), nil
}

func speaksModern(versions json.RawMessage) bool {
	list, _ := jsonrpc.Elements(versions)
	return slices.ContainsFunc(list, func(v json.RawMessage) bool {
		version, _ := jsonrpc.Unquote(v)
		return slices.Contains(mcp.ModernVersions, version)
	})
}

// initializedLocked notes that the client takes notifications.
func (l *legacy) initializedLocked() {
	if l.hello != nil {
		l.hello.ready = true
		l.lists.openLocked()
	}
}

// unsaidLevel is what a client hears that never sets a level: a legacy server decides
// then, and most say what is worth saying; a modern one says nothing unless it is asked.
const unsaidLevel = "info"

// setLevel handles logging/setLevel: every request says the level from now on.
func (l *legacy) setLevel(r *peer.Request) {
	n := mcp.Read(r.Message)
	level, _ := n.Text(mcp.Key)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.hello == nil:
		r.Fail(errNotInitialized)
	case n.Err(mcp.Key) != nil || !slices.Contains(mcp.LogLevels, level):
		r.Fail(jsonrpc.InvalidParams(`"level" is not a log level`))
	default:
		l.level = level
		l.stampLocked()
		r.Respond(&jsonrpc.Message{Result: noResult})
	}
}

// stampLocked makes the stamp anew, which is never written to.
func (l *legacy) stampLocked() {
	text := jsonrpc.Set(nil,
		jsonrpc.Value{Key: mcp.KeyVersion, Text: jsonrpc.Quote(mcp.ModernVersions[0])},
		jsonrpc.Value{Key: mcp.KeyClientInfo, Text: l.hello.info},
		jsonrpc.Value{Key: mcp.KeyCapabilities, Text: l.hello.caps},
		jsonrpc.Value{Key: mcp.KeyLogLevel, Text: jsonrpc.Quote(l.level)})
	l.stamp = text[1 : len(text)-1 : len(text)-1]
}

// Keys of _meta that stamped reads: the progress token and those that it sets.
var stampKeys = append([]string{"progressToken"}, reservedKeys()...)

func reservedKeys() []string {
	var keys []string
	for _, v := range reserved {
		keys = append(keys, v.Key)
	}
	return keys
}

// stamped returns params as a modern request carries them: with the members of stamp
// in _meta, in place of what the client says under these keys, and id in place of its
// progress token, which is returned (nil for none).
func stamped(params json.RawMessage, stamp []byte, id jsonrpc.ID) (text, token json.RawMessage, err error) {
	if params == nil {
		params = noResult
	}
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(params, jsonrpc.Span{}, at[:], "_meta"); err != nil || params[0] != '{' {
		return nil, nil, cmp.Or(err, errors.New("params are not an object"))
	}
	if at[0].IsZero() {
		return jsonrpc.Replace(params, opening(params, 0, `"_meta":{`, stamp, `}`)), nil, nil
	}
	meta := at[0]
	if params[meta.Start] != '{' {
		return nil, nil, errors.New(`"_meta" is not an object`)
	}
	var in [7]jsonrpc.Span
	if err := jsonrpc.Find(params, meta, in[:], stampKeys...); err != nil {
		return nil, nil, err
	}
	if slices.ContainsFunc(in[1:], func(s jsonrpc.Span) bool { return !s.IsZero() }) {
		bare := jsonrpc.Set(meta.Of(params), reserved...)
		return stamped(jsonrpc.Replace(params, jsonrpc.Edit{Span: meta, With: bare}), stamp, id)
	}
	return jsonrpc.Replace(params, opening(params[:meta.End], meta.Start, "", stamp, ""),
		jsonrpc.Edit{Span: in[0], With: id.Raw()}), in[0].Of(params), nil
}

// opening is the edit that puts members first in the object that begins at start and
// ends with text.
func opening(text []byte, start int, before string, members []byte, after string) jsonrpc.Edit {
	with := append(append(append(make([]byte, 0, len(before)+len(members)+len(after)+1), before...), members...), after...)
	if rest := bytes.TrimLeft(text[start+1:], " \t\r\n"); rest[0] != '}' {
		with = append(with, ',')
	}
	return jsonrpc.Edit{Span: jsonrpc.Span{Start: start + 1, End: start + 1}, With: with}
}
