package remote

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// regional is a tool whose region is repeated in the header that name says.
func regional(name, header string) string {
	return fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":%q},"in":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}}}}}`, name, header)
}

// A catalog is a server's tools, in pages of one. Its call checks that a header
// repeats the region.
type catalog struct {
	*fake
	tools   atomic.Pointer[[]string]
	header  atomic.Pointer[string] // that calls must have
	lists   atomic.Int32
	headers chan http.Header // of the calls
}

func newCatalog(t *testing.T, header string, tools ...string) *catalog {
	c := &catalog{fake: newFake(t), headers: make(chan http.Header, 1000)}
	c.set(header, tools...)
	c.handle(mcp.MethodToolsList, c.list)
	c.handle(mcp.MethodToolsCall, c.call)
	return c
}

func (c *catalog) set(header string, tools ...string) {
	c.tools.Store(&tools)
	c.header.Store(&header)
}

func (c *catalog) list(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
	c.lists.Add(1)
	page, tools := 0, *c.tools.Load()
	cursor, _ := jsonrpc.Unquote(jsonrpc.Get(m.Params, "cursor"))
	fmt.Sscanf(cursor, "page %d", &page)
	if page == len(tools)-1 {
		reply(w, m, `{"tools":[`+tools[page]+`]}`)
		return
	}
	reply(w, m, fmt.Sprintf(`{"tools":[%s],"nextCursor":"page %d"}`, tools[page], page+1))
}

func (c *catalog) call(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
	c.headers <- r.Header
	if r.Header.Get(*c.header.Load()) == "" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		w.Write(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -32020, Message: "Header mismatch"}).Append(nil))
		return
	}
	reply(w, m, `{"content":[]}`)
}

const arguments = `"name":"sql","arguments":{"region":"Zürich","in":{"n":42.0}}`

// TestToolHeaders lists the tools before the first call, with all pages, once.
func TestToolHeaders(t *testing.T) {
	f := newCatalog(t, "Mcp-Param-Region", regional("other", "Other"), regional("sql", "region"))
	s, _ := server(t, f.URL)
	c := dialModern(t, s)
	for id := range int64(3) {
		c.request(id, mcp.MethodToolsCall, params(arguments))
		wantResult(t, c.recv(), id, `{"content":[]}`)
		h := <-f.headers
		if h.Get("Mcp-Param-Region") != "=?base64?WsO8cmljaA==?=" || h.Get("Mcp-Param-N") != "42" || h.Get("Mcp-Param-Other") != "" || h.Get("Mcp-Name") != "sql" {
			t.Errorf("headers %v", h)
		}
	}
	c.request(4, mcp.MethodToolsCall, params(`"name":"sql","arguments":{"region":null}`))
	c.recv()
	if h := <-f.headers; len(h.Values("Mcp-Param-Region")) > 0 {
		t.Errorf("null is repeated: %v", h)
	}
	if got := strings.Count(strings.Join(f.all(), " "), "tools/list"); got != 2+2 { // two pages, and again because of the null
		t.Errorf("listed %d pages", got)
	}
}

// TestToolHeadersLearnt from lists that pass, on any stream.
func TestToolHeadersLearnt(t *testing.T) {
	f := newCatalog(t, "Mcp-Param-Region", regional("sql", "Region"))
	s, _ := server(t, f.URL)
	a, b := dialModern(t, s), dialModern(t, s)
	a.request(1, mcp.MethodToolsList, params(""))
	wantResult(t, a.recv(), 1, `{"tools":[`+regional("sql", "Region")+`]}`)
	b.request(1, mcp.MethodToolsCall, params(arguments))
	wantResult(t, b.recv(), 1, `{"content":[]}`)
	if n := f.lists.Load(); n != 1 {
		t.Errorf("listed %d times", n)
	}
}

// TestToolHeadersShared makes one list for all calls that need it, says in it who
// asks, and makes it without a slot.
func TestToolHeadersShared(t *testing.T) {
	f := newCatalog(t, "Mcp-Param-Region", regional("sql", "Region"))
	release := make(chan struct{})
	asked := make(chan *jsonrpc.Message, 100)
	f.handle(mcp.MethodToolsList, func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		asked <- m
		select {
		case <-release:
			f.list(w, r, m)
		case <-r.Context().Done():
		}
	})
	s, _ := server(t, f.URL)
	s.MaxConcurrent = 3
	a, b := dialModern(t, s), dialModern(t, s)
	withToken := strings.Replace(params(arguments), `"_meta":{`, `"_meta":{"progressToken":9,`, 1)
	a.request(1, mcp.MethodToolsCall, withToken)
	first := conntest.Await(t, "list", asked)
	if string(first.Params) != "{"+modernMeta+"}" {
		t.Errorf("listed with %s", first.Params)
	}
	b.request(1, mcp.MethodToolsCall, withToken)
	b.request(2, mcp.MethodToolsCall, withToken)
	a.cancel(1) // whose list it was: another makes it
	second := conntest.Await(t, "list", asked)
	if i, ok := second.ID.Int(); ok {
		t.Errorf("listed with the id %d, which may be a client's", i)
	}
	close(release)
	b.recv()
	b.recv()
	if len(asked) > 0 || len(f.headers) != 2 {
		t.Errorf("%d more lists, %d calls", len(asked), len(f.headers))
	}
}

// TestToolHeadersUnknown goes without when there is no list to be had, and does not
// ask for one again and again.
func TestToolHeadersUnknown(t *testing.T) {
	for name, list := range map[string]func(w http.ResponseWriter, m *jsonrpc.Message){
		"refused":  func(w http.ResponseWriter, _ *jsonrpc.Message) { w.WriteHeader(500) },
		"an error": func(w http.ResponseWriter, m *jsonrpc.Message) { w.Write(jsonrpc.NewError(m.ID, mcpError).Append(nil)) },
		"no tools": func(w http.ResponseWriter, m *jsonrpc.Message) { reply(w, m, `{"tools":7}`) },
		"endless":  func(w http.ResponseWriter, m *jsonrpc.Message) { reply(w, m, `{"tools":[],"nextCursor":"x"}`) },
		"nonsense": func(w http.ResponseWriter, m *jsonrpc.Message) {
			reply(w, m, `{"tools":[1,{},{"name":7},{"name":"sql","inputSchema":[]}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newCatalog(t, "Mcp-Name")
			f.handle(mcp.MethodToolsList, func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
				f.lists.Add(1)
				list(w, m)
			})
			s, _ := server(t, f.URL)
			c := dialModern(t, s)
			for id := range int64(3) {
				c.request(id, mcp.MethodToolsCall, params(arguments))
				wantResult(t, c.recv(), id, `{"content":[]}`)
			}
			if n := f.lists.Load(); n != 1 && n != maxPages {
				t.Errorf("listed %d times", n)
			}
		})
	}
}

var mcpError = &jsonrpc.Error{Code: -32603, Message: "x"}

// TestHeaderMismatch lists anew and posts once more, then gives the server's own
// error.
func TestHeaderMismatch(t *testing.T) {
	f := newCatalog(t, "Mcp-Param-Region", regional("sql", "Region"))
	s, _ := server(t, f.URL)
	c := dialModern(t, s)
	c.request(1, mcp.MethodToolsCall, params(arguments))
	wantResult(t, c.recv(), 1, `{"content":[]}`)

	f.set("Mcp-Param-Zone", regional("sql", "Zone"))
	c.request(2, mcp.MethodToolsCall, params(arguments))
	wantResult(t, c.recv(), 2, `{"content":[]}`)

	f.set("Mcp-Param-Never", regional("sql", "Zone"))
	c.request(3, mcp.MethodToolsCall, params(arguments))
	if m := c.recv(); string(m.Error) != `{"code":-32020,"message":"Header mismatch"}` {
		t.Errorf("got %s", m.Append(nil))
	}
	want := "tools/list tools/call tools/call tools/list tools/call tools/call tools/list tools/call"
	if got := strings.Join(f.all(), " "); got != want {
		t.Errorf("posted %s", got)
	}
}

// TestHeaderMismatchOfMany lists anew once for all calls that were posted before.
func TestHeaderMismatchOfMany(t *testing.T) {
	f := newCatalog(t, "Mcp-Param-Zone", regional("sql", "Region"))
	posted, hold := make(chan struct{}, 2), make(chan struct{})
	f.handle(mcp.MethodToolsCall, func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		if r.Header.Get("Mcp-Param-Zone") == "" {
			posted <- struct{}{}
			if m.ID == jsonrpc.IntID(2) {
				<-hold
			}
		}
		f.call(w, r, m)
	})
	s, _ := server(t, f.URL)
	c := dialModern(t, s)
	c.request(2, mcp.MethodToolsCall, params(arguments))
	conntest.Await(t, "call", posted)
	f.set("Mcp-Param-Zone", regional("sql", "Zone"))
	c.request(1, mcp.MethodToolsCall, params(arguments))
	wantResult(t, c.recv(), 1, `{"content":[]}`)
	close(hold)
	wantResult(t, c.recv(), 2, `{"content":[]}`)
	if n := f.lists.Load(); n != 2 {
		t.Errorf("listed %d times", n)
	}
}

// TestMalformedAnnotations have a tool left out of lists, with one warning.
func TestMalformedAnnotations(t *testing.T) {
	good, bad := `{"name":"good", "x":[1e400]}`, regional("bad", "a b")
	f := newFake(t)
	f.handle(mcp.MethodToolsList, func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		reply(w, m, `{"ttlMs":1, "tools":[`+bad+`,`+good+`,`+regional("fine", "N2")+`,`+bad+`],"_meta":{"x":1.0}}`)
	})
	s, l := server(t, f.URL)
	c := dialModern(t, s)
	for id := range int64(3) {
		c.request(id, mcp.MethodToolsList, params(""))
		wantResult(t, c.recv(), id, `{"ttlMs":1, "tools":[`+good+`,`+regional("fine", "N2")+`],"_meta":{"x":1.0}}`)
	}
	if l.sum("WARN") != 1 || l.sum("tool=bad") != 1 || l.sum("err=") != 1 {
		t.Errorf("the log is %s", l)
	}
}

// TestToolsBounded keeps no more than there is room for.
func TestToolsBounded(t *testing.T) {
	var known tools
	for i := range maxTools + 100 {
		known.put(fmt.Sprint(i), tool{bytes: 10})
	}
	if len(known.known) != maxTools || known.bytes != 10*maxTools {
		t.Errorf("%d tools, %d bytes", len(known.known), known.bytes)
	}
	known.put("huge", tool{bytes: maxToolBytes})
	known.put("giant", tool{bytes: maxToolBytes + 1})
	if len(known.known) != 1 || known.bytes != maxToolBytes {
		t.Errorf("%d tools, %d bytes", len(known.known), known.bytes)
	}
	known.put("huge", tool{bytes: maxToolBytes + 1})
	if len(known.known) != 0 || known.bytes != 0 {
		t.Errorf("%d tools, %d bytes", len(known.known), known.bytes)
	}
}

// FuzzLearn takes any result for a list of tools: what it returns is JSON, has no
// tool that was not there, and is learnt from without loss.
func FuzzLearn(f *testing.F) {
	f.Add(`{"tools":[` + regional("a", "A") + `,` + regional("b", "b b") + `]}`)
	f.Add(`{"tools":[{"name":"a","Name":"b"},7,null]}`)
	f.Add(`{"tools":{},"Tools":[]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) {
			return
		}
		var known tools
		l := &logs{}
		out := known.learn(raw(text), newLog(l))
		if !json.Valid(out) {
			t.Fatalf("%s became %s", text, out)
		}
		if again := known.learn(out, newLog(l)); string(again) != string(out) {
			t.Fatalf("%s became %s, and that %s", text, out, again)
		}
		elements, _ := jsonrpc.Elements(jsonrpc.Get(out, "tools"))
		before, _ := jsonrpc.Elements(jsonrpc.Get(raw(text), "tools"))
		for _, e := range elements {
			if !slices.ContainsFunc(before, func(b json.RawMessage) bool { return string(b) == string(e) }) {
				t.Fatalf("%s has a new tool %s", out, e)
			}
		}
	})
}

// TestRelist asks again for a tool that is still unknown after a while.
func TestRelist(t *testing.T) {
	f := newCatalog(t, "Mcp-Name", regional("other", "Other"))
	s, _ := server(t, f.URL)
	c := dialModern(t, s)
	for id := range int64(2) {
		c.request(id, mcp.MethodToolsCall, params(arguments))
		c.recv()
		s.tools.mu.Lock()
		s.tools.listed = time.Now().Add(-2 * relistAfter)
		s.tools.mu.Unlock()
	}
	if n := f.lists.Load(); n != 2 {
		t.Errorf("listed %d times", n)
	}
}

// TestToolHeadersListedBefore makes no list for a tool that an earlier one had. If that was
// out of date, the server says so.
func TestToolHeadersListedBefore(t *testing.T) {
	f := newCatalog(t, "Mcp-Param-Region", regional("sql", "Region"))
	s, _ := server(t, f.URL)
	header := "Mcp-Param-Region"
	s.Listed = func(tool string) ([]mcp.Mirror, bool) {
		return []mcp.Mirror{{Header: header, Path: []string{"region"}, Type: "string"}}, tool == "sql"
	}
	call := func(s *Server, lists int32) {
		t.Helper()
		c := dialModern(t, s)
		c.request(1, mcp.MethodToolsCall, params(arguments))
		wantResult(t, c.recv(), 1, `{"content":[]}`)
		if n := f.lists.Load(); n != lists {
			t.Errorf("listed %d times, want %d", n, lists)
		}
	}
	call(s, 0)
	f.set("Mcp-Param-Zone", regional("sql", "Zone"))
	call(s, 1)
	call(s, 1) // and the new list counts
	other, _ := server(t, f.URL)
	other.Listed = func(string) ([]mcp.Mirror, bool) { return nil, false }
	call(other, 2)
}
