package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// maxTools and maxToolBytes bound the memory for tools. A further tool evicts any
	// other.
	maxTools     = 8192
	maxToolBytes = 4 << 20

	// maxPages bounds the pages of a list that is made for a call.
	maxPages = 64

	// relistAfter is the least time between two lists for calls of unknown tools. Calls
	// meanwhile are posted without repeated headers: the server answers -32020 if it
	// needs them.
	relistAfter = time.Minute
)

// tools remembers which arguments a server's tools want repeated in headers. It learns from
// all lists that pass, from those made for a call, and from Server.Listed.
type tools struct {
	// Static after construction.
	t      *transport
	before func(tool string) ([]mcp.Mirror, bool) // Server.Listed

	turn chan struct{} // has an element while a list is made for a call; capacity 1

	mu     sync.Mutex // guards the fields below
	known  map[string]tool
	bytes  int       // of known, approximately
	listed time.Time // when the last list for a call ended
	rounds int       // number of such lists
}

// A tool is what a list says of one tool.
type tool struct {
	mirrors []mcp.Mirror
	fault   string // why clients must not see the tool; "" if they may
	bytes   int
}

func newTool(name string, mirrors []mcp.Mirror) tool {
	n := tool{mirrors: mirrors, bytes: len(name)}
	for _, m := range mirrors {
		n.bytes += len(m.Header)
		for _, key := range m.Path {
			n.bytes += len(key) + 16
		}
	}
	return n
}

// mirrors returns the arguments of a tool that headers repeat.
func (t *tools) mirrors(name string) []mcp.Mirror {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[name].mirrors
}

// learn records the tools in a result of tools/list. It returns the result without tools
// whose header annotations are malformed: clients must not see those (2026-07-28
// server/tools, "x-mcp-header").
func (t *tools) learn(result json.RawMessage, log *slog.Logger) json.RawMessage {
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(result, jsonrpc.Span{}, at[:], "tools"); err != nil || at[0].IsZero() {
		return result
	}
	elements, err := jsonrpc.Elements(at[0].Of(result))
	if err != nil {
		return result
	}
	kept := make([][]byte, 0, len(elements))
	for _, e := range elements {
		if t.learnOne(e, log) {
			kept = append(kept, e)
		}
	}
	if len(kept) == len(elements) {
		return result
	}
	list := append(append([]byte{'['}, bytes.Join(kept, []byte{','})...), ']')
	return jsonrpc.Replace(result, jsonrpc.Edit{Span: at[0], With: list})
}

// learnOne records one tool. It reports whether clients may see it.
func (t *tools) learnOne(definition json.RawMessage, log *slog.Logger) bool {
	name, named := jsonrpc.Unquote(jsonrpc.Get(definition, "name"))
	mirrors, err := mcp.Mirrors(jsonrpc.Get(definition, "inputSchema"))
	next := newTool(name, mirrors)
	if err != nil {
		next = tool{fault: err.Error(), bytes: len(name) + len(err.Error())}
	}
	if named && t.put(name, next) && next.fault != "" {
		log.Warn("tool left out: its header annotations are malformed", "tool", clip(name), "err", clip(next.fault))
	}
	return next.fault == ""
}

// put records a tool, unless it is too large. It reports whether the tool is new or its
// fault has changed.
func (t *tools) put(name string, next tool) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.putLocked(name, next)
}

func (t *tools) putLocked(name string, next tool) (changed bool) {
	last, known := t.known[name]
	t.forgetLocked(name)
	if next.bytes > maxToolBytes {
		return !known || last.fault != next.fault
	}
	if t.known == nil {
		t.known = make(map[string]tool)
	}
	t.known[name] = next
	t.bytes += next.bytes
	for other := range t.known {
		if len(t.known) <= maxTools && t.bytes <= maxToolBytes {
			break
		}
		if other != name {
			t.forgetLocked(other)
		}
	}
	return !known || last.fault != next.fault
}

func (t *tools) forgetLocked(name string) {
	t.bytes -= t.known[name].bytes
	delete(t.known, name)
}

// clip shortens a server's text for the log.
func clip(text string) string {
	const most = 128
	if len(text) <= most {
		return text
	}
	return string(bytes.ToValidUTF8([]byte(text[:most]), nil)) + "…"
}

// adopt records a tool that Server.Listed knows, unless it is known. It reports whether it is
// now.
func (t *tools) adopt(name string) bool {
	if t.before == nil {
		return false
	}
	mirrors, listed := t.before(name)
	if !listed {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.known[name]; !known { // a list that has passed meanwhile is newer
		t.putLocked(name, newTool(name, mirrors))
	}
	return true
}

// learnFor lists the tools if m calls one that nobody has listed. It returns the round of the
// tools that are known now.
func (t *tools) learnFor(ctx context.Context, m *jsonrpc.Message) (round int) {
	name, ok := mcp.Read(m).Text(mcp.Key)
	if m.Method != mcp.MethodToolsCall || !ok {
		return 0
	}
	t.mu.Lock()
	_, known := t.known[name]
	lately := !t.listed.IsZero() && time.Since(t.listed) < relistAfter
	round = t.rounds
	t.mu.Unlock()
	if known || lately || t.adopt(name) {
		return round
	}
	t.refresh(ctx, m, round)
	return t.round()
}

// refresh lists the tools for the call m, within talkTimeout, unless a list has ended since
// the round seen. If another call is listing them, it waits for that.
func (t *tools) refresh(ctx context.Context, m *jsonrpc.Message, seen int) {
	limited, cancel := context.WithTimeout(ctx, talkTimeout)
	defer cancel()
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-limited.Done():
		return
	}
	if t.round() > seen {
		return
	}
	t.list(limited, m)
	if ctx.Err() != nil { // given up: another call may list them
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rounds++
	t.listed = time.Now()
}

// round returns how often the tools were listed for a call.
func (t *tools) round() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rounds
}

// list reads all pages of the list of tools, with the _meta of the call m.
func (t *tools) list(ctx context.Context, m *jsonrpc.Message) {
	meta := jsonrpc.Set(mcp.Read(m).Raw(mcp.InMeta), jsonrpc.Value{Key: "progressToken"}, jsonrpc.Value{Key: mcp.KeyLogLevel})
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "_meta", Text: meta})
	log := t.t.failures.log
	for page := range maxPages {
		request := jsonrpc.NewRequest(ownID("tools:"+strconv.Itoa(page)), mcp.MethodToolsList, params)
		reply, _, f := ask(ctx, t.t, request)
		if f != nil || reply.Result == nil {
			log.Debug("cannot list the upstream's tools")
			return
		}
		t.learn(reply.Result, log)
		cursor := jsonrpc.Get(reply.Result, "nextCursor")
		if len(cursor) == 0 || cursor[0] != '"' {
			return
		}
		params = jsonrpc.Set(params, jsonrpc.Value{Key: "cursor", Text: cursor})
	}
}

// ask posts a request of our own to a server of the modern era. It returns the reply and
// the status of the response, zero without one. Other messages are dropped. It takes no
// slot, since a call that has one may wait for it.
func ask(ctx context.Context, t *transport, m *jsonrpc.Message) (reply *jsonrpc.Message, status int, f *failure) {
	header, _ := requestHeader(m, nil)
	x := &exchange{
		t: t, at: &endpoint{url: t.url, modern: true}, header: header,
		id: m.ID, reach: newReach(nil), pass: func(*jsonrpc.Message) bool { return true },
	}
	defer x.close()
	reply, f = x.run(ctx, m)
	return reply, x.status(), f
}

// requestHeader returns the headers that repeat parts of m (2026-07-28
// basic/transports/streamable-http, "Request Metadata"): method, version, name, and the
// arguments that mirrors returns for a tool. If m is invalid, the error is the answer to it.
func requestHeader(m *jsonrpc.Message, mirrors func(tool string) []mcp.Mirror) (http.Header, *jsonrpc.Error) {
	h := http.Header{}
	if !visible(m.Method) {
		return h, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"}
	}
	h.Set(headerMethod, m.Method)
	n := mcp.Read(m)
	meta, err := n.Claim()
	if err != nil {
		return h, invalidParams(err)
	}
	switch {
	case !visible(meta.Version) || len(meta.Version) > maxVersion:
		return h, mcp.UnsupportedVersion(meta.Version, mcp.Versions)
	case meta.Version != "":
		h.Set(headerVersion, meta.Version)
	}
	if n.Method.HeaderKey() == "" {
		return h, nil
	}
	if err := n.Err(mcp.Key, mcp.Arguments); err != nil {
		return h, invalidParams(err)
	}
	name, ok := n.Text(mcp.Key)
	if !ok {
		return h, nil // the server refuses it
	}
	h.Set(headerName, mcp.EncodeHeader(name))
	if n.Method.Mirrors {
		for _, mirror := range mirrors(name) {
			if value, ok := mirror.Value(n.Raw(mcp.Arguments)); ok {
				h.Set(mirror.Header, value)
			}
		}
	}
	return h, nil
}

func invalidParams(err error) *jsonrpc.Error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "Invalid params: " + err.Error()}
}
