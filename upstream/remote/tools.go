package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// maxTools and maxToolBytes bound what is known about tools. One more takes
	// the place of any other.
	maxTools     = 8192
	maxToolBytes = 4 << 20

	// maxPages bounds a list of tools that is made for a call.
	maxPages = 64

	// relistAfter is how long after such a list the calls of tools that were not
	// in it go as they are: the server says -32020 if that is wrong.
	relistAfter = time.Minute
)

// tools is what a server's tools want repeated in headers. It is learnt from all
// lists that pass, and from those made for a call.
type tools struct {
	mu      sync.Mutex // guards the fields below; not held while a list is made
	known   map[string]tool
	bytes   int       // of known, about
	listed  time.Time // when the last list for a call ended
	rounds  int       // such lists that have ended
	listing *listing  // under way; nil if none is
}

// A tool is what is known of one.
type tool struct {
	mirrors []mcp.Mirror
	fault   string // why it is left out of lists; "" if it is not
	bytes   int
}

// A listing is the making of a list of tools. Calls of several streams wait for one.
type listing struct {
	done chan struct{} // closed at its end
	over bool          // false if who made it gave up; written before done is closed
}

// mirrors returns the parameters of a tool that headers repeat.
func (t *tools) mirrors(name string) []mcp.Mirror {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[name].mirrors
}

// learn notes the tools of a result of tools/list, and returns it without those
// that a client must not see, because what they want repeated is malformed
// (2026-07-28 server/tools, "x-mcp-header").
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

// learnOne notes one tool. It reports whether clients may see it.
func (t *tools) learnOne(definition json.RawMessage, log *slog.Logger) bool {
	name, named := jsonrpc.Unquote(member(definition, "name"))
	mirrors, err := mcp.Mirrors(member(definition, "inputSchema"))
	next := tool{mirrors: mirrors, bytes: len(name)}
	if err != nil {
		next = tool{fault: err.Error(), bytes: len(name) + len(err.Error())}
	}
	for _, m := range next.mirrors {
		next.bytes += len(m.Header)
		for _, key := range m.Path {
			next.bytes += len(key) + 16
		}
	}
	if named && t.put(name, next) && next.fault != "" {
		log.Warn("tool left out, its annotations for headers are malformed", "tool", clip(name), "err", clip(next.fault))
	}
	return next.fault == ""
}

// put notes a tool, unless that is too large. It reports whether it has become
// another one.
func (t *tools) put(name string, next tool) (changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
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

// clip bounds what a server named for the log.
func clip(text string) string {
	const most = 128
	if len(text) <= most {
		return text
	}
	return string(bytes.ToValidUTF8([]byte(text[:most]), nil)) + "…"
}

// learnFor sees to it that the tool that m calls is known, if that can be had. It
// returns the round of what is known.
func (s *Server) learnFor(ctx context.Context, m *jsonrpc.Message) (round int) {
	name, ok := jsonrpc.Unquote(member(m.Params, "name"))
	if m.Method != mcp.MethodToolsCall || !ok {
		return 0
	}
	t := &s.tools
	t.mu.Lock()
	_, known := t.known[name]
	lately := !t.listed.IsZero() && time.Since(t.listed) < relistAfter
	round = t.rounds
	t.mu.Unlock()
	if known || lately {
		return round
	}
	s.refresh(ctx, m, round)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rounds
}

// refresh lists the tools for the call m, within talkTimeout, unless that was done
// since the round seen. If somebody else is at it, it waits for them.
func (s *Server) refresh(ctx context.Context, m *jsonrpc.Message, seen int) {
	limited, cancel := context.WithTimeout(ctx, talkTimeout)
	defer cancel()
	for {
		l, mine := s.tools.join(seen)
		if mine {
			s.list(limited, m)
			s.tools.leave(l, ctx.Err() == nil)
			return
		}
		if l == nil {
			return
		}
		select {
		case <-l.done:
			if l.over {
				return
			}
		case <-limited.Done():
			return
		}
	}
}

// join returns the listing to wait for or, with true, to make; nil if there was
// one since the round seen.
func (t *tools) join(seen int) (l *listing, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.listing != nil:
		return t.listing, false
	case t.rounds > seen:
		return nil, false
	}
	t.listing = &listing{done: make(chan struct{})}
	return t.listing, true
}

// leave ends a listing. With false it was given up, and somebody else may make it.
func (t *tools) leave(l *listing, over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listing, l.over = nil, over
	if over {
		t.rounds++
		t.listed = time.Now()
	}
	close(l.done)
}

// list lists the tools, all pages of them, as whoever made the call m.
func (s *Server) list(ctx context.Context, m *jsonrpc.Message) {
	meta := jsonrpc.Set(member(m.Params, "_meta"), jsonrpc.Value{Key: "progressToken"}, jsonrpc.Value{Key: mcp.KeyLogLevel})
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "_meta", Text: meta})
	for page := range maxPages {
		request := jsonrpc.NewRequest(ownID("tools:"+strconv.Itoa(page)), mcp.MethodToolsList, params)
		reply, _, f := s.own(ctx, request)
		if f != nil || reply.Result == nil {
			s.tally.log.Debug("tools of the upstream are not known")
			return
		}
		s.tools.learn(reply.Result, s.tally.log)
		cursor := member(reply.Result, "nextCursor")
		if len(cursor) == 0 || cursor[0] != '"' {
			return
		}
		params = jsonrpc.Set(params, jsonrpc.Value{Key: "cursor", Text: cursor})
	}
}

// own posts a request that is nobody's, and returns its reply and the status that
// came with it, zero for none. What else comes is dropped. It takes no slot, since
// a call that has one may wait for it.
func (s *Server) own(ctx context.Context, m *jsonrpc.Message) (reply *jsonrpc.Message, status int, f *failure) {
	header, _ := s.mirrored(m)
	x := &exchange{server: s, to: nobody{}, p: &peer{url: s.URL, modern: true}, header: header, id: m.ID, reach: newReach(nil)}
	defer x.close()
	reply, f = x.run(ctx, m)
	if x.resp != nil {
		status = x.resp.StatusCode
	}
	return reply, status, f
}

// nobody is the receiver of what nobody wants.
type nobody struct{}

func (nobody) pass(*jsonrpc.Message, *peer) bool { return true }
func (nobody) put(received) bool                 { return true }
