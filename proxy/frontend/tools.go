package frontend

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/mcp"
)

const (
	// listPatience is how long the first call with headers to check waits to learn
	// which tools there are. If that takes longer, calls go on unvalidated.
	listPatience = 3 * time.Second

	// maxMirrors bounds what a trunk remembers of parameters, in bytes. Tools
	// beyond are not validated.
	maxMirrors = 1 << 20
)

// A tools is what a trunk remembers of the tools that it served: the parameters
// that headers must repeat. trunk.mu guards it.
type tools struct {
	listed  bool          // to the last page
	asked   chan struct{} // closed when listTools has ended; nil before it began
	mirrors map[string][]mcp.Mirror
	bytes   int // of mirrors, about
}

// checkParams returns why a call is refused: its Mcp-Param headers do not agree
// with its arguments, as the schema of the tool demands. Others are ignored. Its
// Mcp-Name agrees with the body.
func (t *trunk) checkParams(r *http.Request, params json.RawMessage) *jsonrpc.Error {
	if hasParams(r.Header) {
		t.knowTools(r.Context(), params)
	}
	name, _ := mcp.DecodeHeader(r.Header.Get(headerName))
	t.mu.Lock()
	mirrors := t.tools.mirrors[name]
	t.mu.Unlock()
	if mirrors == nil {
		return nil
	}
	arguments, err := jsonrpc.Member(params, "arguments")
	if err != nil {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: `Invalid params: "arguments" is ambiguous`}
	}
	for _, m := range mirrors {
		if !m.Agrees(r.Header.Values(m.Header), arguments) {
			return mismatch(m.Header)
		}
	}
	return nil
}

// hasParams reports whether the sender repeats arguments in headers. Only then is
// it worth asking for the tools, which on /mcp starts all upstreams: a client that
// knows what to repeat has seen them here, or before this trunk was made.
func hasParams(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Mcp-Param-") {
			return true
		}
	}
	return false
}

// knowTools waits until the tools have been listed on this trunk, which happens
// once, or until it is known that they cannot be. params are those of the call
// that wants to know, and say who asks.
func (t *trunk) knowTools(ctx context.Context, params json.RawMessage) {
	t.mu.Lock()
	if t.closed || t.tools.listed {
		t.mu.Unlock()
		return
	}
	if t.tools.asked == nil {
		t.tools.asked = make(chan struct{})
		t.listing.Go(func() { t.listTools(params) })
	}
	asked := t.tools.asked
	t.mu.Unlock()
	select {
	case <-asked:
	case <-t.done:
	case <-ctx.Done():
	}
}

// listTools asks for all pages of tools/list. Send learns from the results.
func (t *trunk) listTools(call json.RawMessage) {
	defer close(t.tools.asked)
	meta, _ := jsonrpc.Member(call, "_meta")
	params := mcp.SetMeta(jsonrpc.Set(nil, jsonrpc.Value{Key: "_meta", Text: meta}),
		jsonrpc.Value{Key: "progressToken"}, jsonrpc.Value{Key: mcp.KeyLogLevel})
	patience := time.NewTimer(listPatience)
	defer patience.Stop()
	for {
		cursor, ok := t.listPage(params, patience.C)
		if !ok || cursor == nil {
			return
		}
		params = jsonrpc.Set(params, jsonrpc.Value{Key: "cursor", Text: cursor})
	}
}

// listPage returns the cursor of the next page, nil if there is none, or false if
// this one did not come.
func (t *trunk) listPage(params json.RawMessage, timeout <-chan time.Time) (cursor json.RawMessage, ok bool) {
	p := t.ask(jsonrpc.NewRequest(jsonrpc.IntID(0), "tools/list", params))
	defer t.abandon(p)
	for {
		select {
		case <-p.wake:
		case <-timeout:
			return nil, false
		}
		body, there := p.last()
		if !there { // a notification, though none was asked for
			continue
		}
		m, err := jsonrpc.Decode(body)
		if err != nil || m.Result == nil {
			return nil, false
		}
		cursor, err := jsonrpc.Member(m.Result, "nextCursor")
		return cursor, err == nil
	}
}

// learn takes the mirrors out of a result of tools/list.
func (t *trunk) learn(result json.RawMessage) {
	var at [2]jsonrpc.Span
	if jsonrpc.Find(result, jsonrpc.Span{}, at[:], "tools", "nextCursor") != nil {
		return
	}
	found := mirrorsOf(at[0].Of(result))
	t.mu.Lock()
	defer t.mu.Unlock()
	if at[1].IsZero() {
		t.tools.listed = true
	}
	for _, tool := range found {
		t.tools.setLocked(tool.name, tool.mirrors)
	}
}

type toolMirrors struct {
	name    string
	mirrors []mcp.Mirror
}

// mirrorsOf returns the tools of an array with their mirrors, most often none.
func mirrorsOf(list json.RawMessage) (found []toolMirrors) {
	elements, _ := jsonrpc.Elements(list)
	for _, tool := range elements {
		var at [2]jsonrpc.Span
		if jsonrpc.Find(tool, jsonrpc.Span{}, at[:], "name", "inputSchema") != nil {
			continue
		}
		name, _ := jsonrpc.Unquote(at[0].Of(tool))
		mirrors, err := mcp.Mirrors(at[1].Of(tool))
		if err != nil { // such a tool is not to be served; who serves it all the same is not helped with it
			mirrors = nil
		}
		found = append(found, toolMirrors{name, mirrors})
	}
	return found
}

// setLocked remembers the mirrors of a tool in place of those it had.
func (l *tools) setLocked(name string, mirrors []mcp.Mirror) {
	l.bytes -= sizeOf(name, l.mirrors[name])
	delete(l.mirrors, name)
	size := sizeOf(name, mirrors)
	if size == 0 || l.bytes+size > maxMirrors {
		return
	}
	if l.mirrors == nil {
		l.mirrors = make(map[string][]mcp.Mirror)
	}
	l.mirrors[name] = mirrors
	l.bytes += size
}

// sizeOf returns about how many bytes the mirrors of a tool take.
func sizeOf(name string, mirrors []mcp.Mirror) (size int) {
	for _, m := range mirrors {
		size += 128 + len(name) + len(m.Header)
		for _, key := range m.Path {
			size += 16 + len(key)
		}
	}
	return size
}
