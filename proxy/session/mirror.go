package session

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Some parameters of a tool are repeated in headers of a call, for whoever stands
// between and does not read bodies (2026-07-28 server/tools, "x-mcp-header"). "Any
// server that processes the message body MUST validate" that both say the same.

// maxMirrors bounds what a table keeps of such parameters, in bytes. Tools beyond
// are not checked.
const maxMirrors = 1 << 20

// A mirrors is what the headers of calls have to repeat, by the upstream's own
// names of the tools that want it, which are few.
type mirrors struct {
	of    map[string][]mcp.Mirror
	bytes int // of it, about
}

// add adds what a listed tool wants repeated. One whose annotations are wrong wants
// nothing: over HTTP it would not have been listed.
func (ms *mirrors) add(name string, tool json.RawMessage) {
	schema, err := jsonrpc.Member(tool, "inputSchema")
	if err != nil {
		return
	}
	found, err := mcp.Mirrors(schema)
	size := sizeOf(name, found)
	if err != nil || size == 0 || ms.bytes+size > maxMirrors {
		return
	}
	if ms.of == nil {
		ms.of = make(map[string][]mcp.Mirror)
	}
	ms.of[name] = found
	ms.bytes += size
}

// sizeOf returns about how many bytes the mirrors of a tool take.
func sizeOf(name string, found []mcp.Mirror) (size int) {
	for _, m := range found {
		size += 128 + len(name) + len(m.Header)
		for _, key := range m.Path {
			size += 16 + len(key)
		}
	}
	return size
}

// checkHeaders returns what is wrong with the headers of a call that goes to an
// upstream's tool, nil for nothing as far as is known. It is not sure if a fresh
// list of the tools could say something else.
func (c *call) checkHeaders(u *upstreamConn, k kind, tool string) (bad *jsonrpc.Error, sure bool) {
	if k != tools || c.msg.Headers == nil {
		return nil, true
	}
	u.s.mu.Lock()
	t := u.catalogLocked(c.view).tables[tools]
	u.s.mu.Unlock()
	known := t != nil && t.names[tool]
	if known {
		bad = c.disagrees(t.mirrors.of[tool])
	}
	return bad, known && bad == nil || !u.mayLearnTools(c.view)
}

// disagrees compares the headers of a call with its arguments. Headers that the
// tool does not want are ignored.
func (c *call) disagrees(wanted []mcp.Mirror) *jsonrpc.Error {
	if len(wanted) == 0 {
		return nil
	}
	arguments, err := jsonrpc.Member(c.msg.Params, "arguments")
	if err != nil {
		return invalidParams(err.Error())
	}
	for _, m := range wanted {
		if !m.Agrees(c.msg.Headers[strings.ToLower(m.Header)], arguments) {
			return mcp.HeaderMismatch(m.Header)
		}
	}
	return nil
}

// relearn is how long calls go unchecked, and do not wait, once an upstream did not
// list its tools in time for one of them.
const relearn = time.Minute

// mayLearnTools reports whether the upstream should list its tools so that a call
// can be checked.
func (u *upstreamConn) mayLearnTools(w *view) bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.staleLocked(w, tools) && (u.tooLate.IsZero() || time.Since(u.tooLate) >= relearn)
}

// learnTools makes the upstream list its tools.
func (u *upstreamConn) learnTools(ctx context.Context, who asker) {
	ctx, cancel := context.WithTimeout(ctx, u.s.p.listTimeout())
	defer cancel()
	late := !u.freshen(ctx, tools, who) && errors.Is(ctx.Err(), context.DeadlineExceeded)
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if late {
		u.tooLate = time.Now()
	}
}
