package frontend

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

func TestPostRefusals(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.Limits = jsonrpc.Limits{Message: 1 << 10, Depth: 20} })
	c := ts.connect("2025-11-25")
	tests := []struct {
		name   string
		body   string
		set    []string
		status int
		code   int
	}{
		{"no content type", ping, []string{"Content-Type", ""}, 415, -32600},
		{"form", ping, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, -32600},
		{"text", ping, []string{"Content-Type", "text/plain"}, 415, -32600},
		{"gzip", ping, []string{"Content-Encoding", "gzip"}, 415, -32600},
		{"accepts JSON only", ping, []string{"Accept", "application/json"}, 406, -32600},
		{"accepts events only", ping, []string{"Accept", "text/event-stream"}, 406, -32600},
		{"too large", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("x", 1<<10) + `"}}`, nil, 413, -32600},
		{"unknown session", ping, []string{"Mcp-Session-Id", "nobody"}, 404, -32600},
		{"no session", ping, []string{"Mcp-Session-Id", ""}, 400, -32600},
		{"unknown version", ping, []string{"MCP-Protocol-Version", "1999-01-01"}, 400, -32600},
		{"no version", ping, []string{"MCP-Protocol-Version", "modern"}, 400, -32600},
		{"a version that was not negotiated", ping, []string{"MCP-Protocol-Version", "2024-11-05"}, 400, -32600},
		{"garbage", `garbage`, nil, 400, -32700},
		{"empty", ``, nil, 400, -32700},
		{"unfinished", `{"jsonrpc":"2.0","id":1`, nil, 400, -32700},
		{"not UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\xff\"}", nil, 400, -32700},
		{"number", `5`, nil, 400, -32600},
		{"wrong jsonrpc", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, nil, 400, -32600},
		{"null id", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, nil, 400, -32600},
		{"fractional id", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, nil, 400, -32600},
		{"object id", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, nil, 400, -32600},
		{"duplicate key", `{"jsonrpc":"2.0","id":1,"method":"ping","method":"pong"}`, nil, 400, -32600},
		{"case-fold twin", `{"jsonrpc":"2.0","id":1,"method":"ping","Method":"pong"}`, nil, 400, -32600},
		{"deep", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":` + strings.Repeat("[", 30) + strings.Repeat("]", 30) + `}}`, nil, 400, -32600},
		{"initialize again", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`, nil, 400, -32600},
		{"batch", `[` + ping + `]`, nil, 400, -32600},
		{"empty batch", `[]`, nil, 400, -32600},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := *c
			c.t = t
			wantRefusal(t, c.post(tt.body, tt.set...), tt.status, tt.code)
		})
	}
	wantText(t, onlyMessage(t, c.post(ping)), `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

// TestD44 posts a malformed message: the response is one -32700 without an id, and Serve does not
// receive it.
func TestD44_MalformedMessage(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-06-18")
	wantRefusal(t, c.post(`{"jsonrpc":"2.0","id":1,"method":`), 400, jsonrpc.CodeParseError)
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/after"}`), 202)
	if m := conntest.Recv(t, conn); m.Method != "notifications/after" {
		t.Errorf("Recv returned %s, want the message after the malformed one", m.Append(nil))
	}
}

func TestPostAccepted(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.connect("2025-06-18")
	for _, set := range [][]string{
		nil,
		{"Content-Type", "application/json; charset=utf-8"},
		{"Content-Type", "Application/JSON"},
		{"Content-Encoding", "identity"},
		{"Accept", "*/*"},
		{"Accept", "text/*;q=0.5, application/*"},
		{"Accept", "text/event-stream,application/json"},
		{"MCP-Protocol-Version", ""},
		{"MCP-Protocol-Version", "2025-03-26"},
	} {
		m := onlyMessage(t, c.post(`{"jsonrpc":"2.0","id":"a","method":"ping"}`, set...))
		wantText(t, m, `{"jsonrpc":"2.0","id":"a","result":{}}`)
	}
	for _, body := range []string{
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":7,"result":{}}`,
		`{"jsonrpc":"2.0","id":8,"error":{"code":1,"message":"no"}}`,
	} {
		if got := wantStatus(t, c.post(body), http.StatusAccepted); got != "" {
			t.Errorf("202 has the body %q", got)
		}
	}
}

func TestPostIsPlainJSON(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.connect("2025-11-25")
	const params = `{ "n":9007199254740993, "s":"\u0041\ud800", "d":{"k":1,"k":2} }`
	resp := c.post(`{"jsonrpc":"2.0","id":1.0,"method":"echo","params":` + params + `}`)
	if got := resp.Header.Get("Content-Type"); got != typeJSON {
		t.Errorf("Content-Type %q", got)
	}
	if got, want := wantStatus(t, resp, 200), `{"jsonrpc":"2.0","id":1.0,"result":`+params+`}`; got != want {
		t.Errorf("body %s\nwant %s", got, want)
	}
	if left := ts.only().holds(); left.stored+left.streams+left.pending != 0 {
		t.Errorf("a plain response left behind %+v", left)
	}
}

func TestPostLargeResponse(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.connect("2025-11-25")
	large := `{"x":"` + strings.Repeat("x", 3<<20) + `"}`
	m := onlyMessage(t, c.post(`{"jsonrpc":"2.0","id":1,"method":"echo","params":`+large+`}`))
	if string(m.Result) != large {
		t.Errorf("%d bytes came back, want %d", len(m.Result), len(large))
	}
}

// TestEndlessBody sends an endless body: it is refused at the limit, and its memory is freed.
func TestEndlessBody(t *testing.T) {
	t.Parallel()
	ts := newTestServer(t, func(h *HTTP) { h.Limits.Message = 64 << 10 })
	c := ts.connect("2025-11-25")
	for _, chunked := range []bool{true, false} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		length := "Content-Length: 99999999999"
		if chunked {
			length = "Transfer-Encoding: chunked"
		}
		fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
			"Accept: */*\r\nMcp-Session-Id: %s\r\n%s\r\n\r\n", c.session, length)
		go func() {
			for {
				if _, err := io.WriteString(conn, "1000\r\n"+strings.Repeat("x", 0x1000)+"\r\n"); err != nil {
					return
				}
			}
		}()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !resp.Close {
			t.Errorf("chunked %v: %s, close %v", chunked, resp.Status, resp.Close)
		}
	}
}

func TestMethodsAndPaths(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.at("/mcp")
	for path, allow := range map[string]string{"/mcp": "GET, POST, DELETE, OPTIONS", "/sse": "GET, OPTIONS", "/message": "POST, OPTIONS"} {
		c.url = ts.url + path
		resp := c.do(c.request(http.MethodPut, "{}"))
		wantRefusal(t, resp, http.StatusMethodNotAllowed, -32600)
		if got := resp.Header.Get("Allow"); got != allow {
			t.Errorf("%s: Allow %q, want %q", path, got, allow)
		}
	}
	for _, path := range []string{"/", "/mcp/unknown", "/mcp//", "/mcp/files/x", "/ws/unknown", "/x", "/healthz/x"} {
		c.url = ts.url + path
		wantStatus(t, c.post(ping), http.StatusNotFound)
	}
}

func TestUpstreamPath(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.at("/mcp/files")
	c.initialize("2025-06-18")
	if got := ts.only().of.upstream; got != "files" {
		t.Errorf("Serve got upstream %q, want files", got)
	}
	wantStatus(t, c.post(ping), 200)
	c.url = ts.url + "/mcp/files/?x" // the same, with a slash
	wantStatus(t, c.post(ping), 200)
	ts.at("/mcp/").initialize("2025-06-18")
	c.url = ts.url + "/mcp"
	wantRefusal(t, c.post(ping), 404, -32600) // the session belongs to the other path
}

func TestInitializeRefused(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.at("/mcp")
	resp := c.post(strings.Replace(initializeText, "%", "refuse", 1))
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		t.Errorf("a session id %q for a session that did not come about", id)
	}
	if m := onlyMessage(t, resp); m.Error == nil {
		t.Errorf("got %s, want Serve's error", m.Append(nil))
	}
	conntest.Eventually(t, "the session is gone", func() bool {
		open, sessions := ts.connections()
		return sessions == 0 && open == 0
	})
}

func TestSessionIDIsVisibleASCII(t *testing.T) {
	ts := newTestServer(t, nil)
	a, b := ts.connect("2025-11-25"), ts.connect("2025-11-25")
	if a.session == b.session || len(a.session) < 20 {
		t.Errorf("session ids %q and %q", a.session, b.session)
	}
	if strings.ContainsFunc(a.session, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		t.Errorf("session id %q has other than visible ASCII", a.session)
	}
}

// TestD25 sends a second request with an id that is in flight: it is refused, and the first is
// answered normally.
func TestD25_DuplicateID(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	resp := c.post(`{"jsonrpc":"2.0","id":5,"method":"first"}`) // returns with the header of an event stream
	first := conntest.Recv(t, conn)
	wantRefusal(t, c.post(`{"jsonrpc":"2.0","id":5,"method":"second"}`), 400, jsonrpc.CodeInvalidRequest)
	conn.Send(jsonrpc.NewResult(first.ID, []byte(`"first"`)))
	wantText(t, onlyMessage(t, resp), `{"jsonrpc":"2.0","id":5,"result":"first"}`)
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/after"}`), 202)
	if m := conntest.Recv(t, conn); m.Method != "notifications/after" {
		t.Errorf("Serve got %s", m.Append(nil))
	}
}

func TestBatch(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.connect("2025-03-26")
	t.Run("as JSON", func(t *testing.T) {
		body := wantStatus(t, c.post(`[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":"2","method":"echo","params":{"x":2}}]`), 200)
		if want := `[{"jsonrpc":"2.0","id":1,"result":{}},{"jsonrpc":"2.0","id":"2","result":{"x":2}}]`; body != want {
			t.Errorf("body %s\nwant %s", body, want)
		}
	})
	t.Run("of one", func(t *testing.T) {
		if body := wantStatus(t, c.post(`[`+ping+`]`), 200); body != `[{"jsonrpc":"2.0","id":1,"result":{}}]` {
			t.Errorf("body %s, want an array", body)
		}
	})
	t.Run("no requests", func(t *testing.T) {
		wantStatus(t, c.post(`[{"jsonrpc":"2.0","method":"notifications/x"},{"jsonrpc":"2.0","id":9,"result":{}}]`), 202)
	})
	t.Run("one bad", func(t *testing.T) {
		body := wantStatus(t, c.post(`[{"jsonrpc":"2.0"},`+ping+`,{"jsonrpc":"2.0","id":1,"method":7}]`), 200)
		if want := `[{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid request: \"method\" is not a string"}},` +
			`{"jsonrpc":"2.0","error":{"code":-32600,"message":"Invalid request: \"method\" is not a string"}},{"jsonrpc":"2.0","id":1,"result":{}}]`; body != want {
			t.Errorf("body %s\nwant %s", body, want)
		}
	})
	for name, body := range map[string]string{
		"empty":        `[]`,
		"initialize":   `[{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}]`,
		"nested":       `[[` + ping + `]]`,
		"same id":      `[` + ping + `,` + ping + `]`,
		"not a batch:": `[1]`,
	} {
		t.Run(name, func(t *testing.T) { wantRefusal(t, c.post(body), 400, jsonrpc.CodeInvalidRequest) })
	}
	if n := ts.only().holds().pending; n != 0 {
		t.Errorf("%d requests of refused batches are still pending", n)
	}
}

func TestBatchAsEvents(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-03-26")
	resp := c.post(`[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","id":2,"method":"b"}]`)
	conntest.Recv(t, conn)
	conntest.Recv(t, conn)
	conn.Send(jsonrpc.NewResult(jsonrpc.IntID(2), []byte(`"b"`)))
	conn.Send(jsonrpc.NewResult(jsonrpc.IntID(1), []byte(`"a"`)))
	ev := newEvents(t, resp)
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":2,"result":"b"}`)
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":1,"result":"a"}`)
	ev.end()
}

// Unread bodies have a time limit, too, because net/http reads them before it answers.
func TestBodyThatNeverComes(t *testing.T) {
	for name, head := range map[string]string{
		"refused by the guard": "POST /mcp HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 9\r\n",
		"of no known type":     "POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n",
		"of no session":        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nMcp-Session-Id: x\r\nContent-Length: 9\r\n",
		"to be read":           "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n",
		"of a health check":    "GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ts := newBubbleServer(t, nil)
				conn := ts.dial()
				defer conn.Close()
				began := time.Now()
				io.WriteString(conn, head+"\r\n")
				if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 ") {
					t.Errorf("got %q, %v; want an answer and the end", answer, err)
				}
				if took := time.Since(began); took > 2*bodyTimeout {
					t.Errorf("the connection was kept for %v", took)
				}
			})
		})
	}
}

// A client that does not read small responses, either, loses its connection.
func TestUnreadSmallResponses(t *testing.T) {
	for name, request := range map[string]string{
		"refused by the guard": "GET /mcp HTTP/1.1\r\nHost: evil.example\r\n",
		"of a health check":    "GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
		"of a server card":     "GET /mcp/server-card HTTP/1.1\r\nHost: localhost\r\n",
		"of a preflight":       "OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\n",
		"of no path":           "GET /x HTTP/1.1\r\nHost: localhost\r\n",
		"of no session":        "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: x\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := newBubbleServer(t, nil).dial()
				defer conn.Close()
				io.WriteString(conn, request+"\r\n")
				time.Sleep(bodyTimeout + stall + time.Second)
				conn.SetReadDeadline(time.Now())
				if text, err := io.ReadAll(conn); len(text) > 0 || err != nil {
					t.Errorf("got %q, %v; want that the connection has ended", text, err)
				}
			})
		})
	}
}

// Large bodies stay in memory until they are complete, so their number is bounded. They do not
// delay small ones.
func TestLargeBodiesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newBubbleServer(t, nil)
		large := `{"jsonrpc":"2.0","method":"x","params":{"x":"` + strings.Repeat("x", 2*largeBody) + `"}}`
		var slow []net.Conn
		for range largeBodies {
			conn := ts.dial()
			defer conn.Close()
			slow = append(slow, conn)
			io.WriteString(conn, postHead(len(large))+large[:len(large)-1])
		}
		synctest.Wait()

		if status := ts.postRaw(`{"jsonrpc":"2.0","method":"x"}`); status != http.StatusBadRequest {
			t.Errorf("a small body: status %d", status)
		}
		if status := ts.postRaw(large); status != http.StatusServiceUnavailable {
			t.Errorf("one large body more: status %d", status)
		}
		slow[0].Close()
		if status := ts.postRaw(large); status != http.StatusBadRequest { // not initialize
			t.Errorf("a large body after one was given up: status %d", status)
		}
	})
}

// A principal whose large bodies take all slots leaves some to others, who also leave some to each
// other.
func TestLargeBodiesOfOthers(t *testing.T) {
	b := newBodySlots()
	who := func(i int) identity.Principal { return identity.Principal{Name: fmt.Sprint(i)} }
	for i := range largeBodies {
		if b.try(who(0)) != nil {
			t.Fatal("no place number ", i)
		}
	}
	if b.try(who(0)) == nil {
		t.Error("a place too many")
	}
	for i := range largeBodies / ownBodies {
		for range ownBodies {
			if b.try(who(1+i)) != nil {
				t.Error("no place for principal", 1+i)
			}
		}
		if b.try(who(1+i)) == nil {
			t.Error("a place too many for principal", 1+i)
		}
	}
	freed := b.try(who(99))
	if freed == nil {
		t.Fatal("a place too many for all")
	}
	b.leave(who(1))
	<-freed
	if b.try(who(99)) != nil {
		t.Error("the place that is free is for nobody")
	}
}

func (ts *testServer) dial() net.Conn {
	ts.t.Helper()
	conn, err := ts.client.Transport.(*http.Transport).DialContext(ts.t.Context(), "", "")
	if err != nil {
		ts.t.Fatal(err)
	}
	return conn
}

// postRaw posts a body on a connection of its own and returns the status.
func (ts *testServer) postRaw(body string) int {
	ts.t.Helper()
	conn := ts.dial()
	defer conn.Close()
	go io.WriteString(conn, postHead(len(body))+body)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		ts.t.Fatal(err)
	}
	defer resp.Body.Close()
	if busy := resp.StatusCode == http.StatusServiceUnavailable; busy != (resp.Header.Get("Retry-After") != "") {
		ts.t.Errorf("status %d with Retry-After %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	return resp.StatusCode
}

func postHead(length int) string {
	return fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\n\r\n", length)
}
