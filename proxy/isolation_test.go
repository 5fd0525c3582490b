package proxy_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// The attacks of docs/security.md: with everything that is a's, what can b do? Each test is
// a row of the table there.

// A house is a proxy whose callers are several principals.
type house struct {
	t      *testing.T
	server *naive
	url    string
	proxy  *proxy.Proxy
	log    *journal
	a, b   *caller
}

// newHouse returns a proxy before a naive server, the upstream "u", with the tokens "a" and
// "b". Edit may change its configuration.
func newHouse(t *testing.T, edit func(*config.Config)) *house {
	t.Helper()
	return newHouseWith(t, proxy.Hooks{}, newNaive(t), edit)
}

func newHouseWith(t *testing.T, hooks proxy.Hooks, server *naive, edit func(*config.Config)) *house {
	t.Helper()
	h := &house{t: t, server: server, log: &journal{}}
	cfg := config.Config{
		Upstreams: []config.Upstream{{Name: "u", Remote: config.Remote{URL: h.server.URL}}},
		Frontend: config.Frontend{Auth: config.Auth{Tokens: []config.NamedToken{
			{Name: "a", TokenFile: secretFile(t, "token-of-a")}, {Name: "b", TokenFile: secretFile(t, "token-of-b")},
		}}},
	}
	if edit != nil {
		edit(&cfg)
	}
	p, err := proxy.New(&cfg, proxy.Options{Hooks: hooks, Log: logTo(h.log)})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(p.Handler())
	t.Cleanup(func() {
		p.Close()
		web.CloseClientConnections()
		web.Close()
	})
	h.proxy, h.url = p, web.URL
	h.a, h.b = h.caller("token-of-a", "/mcp"), h.caller("token-of-b", "/mcp")
	return h
}

func (h *house) caller(token, path string) *caller {
	transport := &http.Transport{}
	h.t.Cleanup(transport.CloseIdleConnections)
	return &caller{t: h.t, base: h.url, token: token, path: path, client: &http.Client{Transport: transport}}
}

// hang calls the tool that hangs, in the session of c.
func (h *house) hang(c *caller, id string) *feed {
	h.t.Helper()
	f := c.begin(http.MethodPost, c.path, `{"jsonrpc":"2.0","id":`+id+`,"method":"tools/call","params":{"name":"hang","arguments":{"of":"`+c.token+`"},"_meta":{"progressToken":`+id+`}}}`, c.headers()...)
	f.await("SECRET")
	return f
}

// What a legacy session can be asked for.
var onSession = []struct{ method, body, header, value string }{
	{method: "POST", body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo"}}`},
	{method: "POST", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`},
	{method: "POST", body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`},
	{method: "POST", body: `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`},
	{method: "GET"},
	{method: "GET", header: "Last-Event-ID", value: "1-0"},
	{method: "GET", header: "Last-Event-ID", value: "0-0"},
	{method: "DELETE"},
}

// Whoever has the id of another principal's session has nothing: each request is answered
// as for an id that was never given, and nothing of it reaches the server.
func TestForeignSession(t *testing.T) {
	h := newHouse(t, nil)
	h.a.initialize()
	call := h.hang(h.a, "1")
	heard := h.server.saw("POST")
	for _, who := range []*caller{h.b, h.caller("token-of-b", "/mcp/u"), h.caller("token-of-a", "/mcp/u")} {
		for _, x := range onSession {
			try := func(session string) string {
				headers := []string{"Mcp-Session-Id", session, "MCP-Protocol-Version", "2025-11-25"}
				if x.header != "" {
					headers = append(headers, x.header, x.value)
				}
				return fmt.Sprint(who.do(x.method, who.path, x.body, headers...))
			}
			if got, unknown := try(h.a.session), try("NEVERGIVENNEVERGIVENNEVERG"); got != unknown || !strings.HasPrefix(got, "404") {
				t.Errorf("%s at %s: %s %s %s: %s\nan unknown session: %s", who.token, who.path, x.method, x.body, x.value, got, unknown)
			}
		}
		if status, text := who.do("POST", "/message?sessionId="+h.a.session, onSession[0].body); status != http.StatusNotFound {
			t.Error("/message:", status, text)
		}
	}
	for _, token := range []string{"", "wrong", "token-of-", "token-of-a ", "TOKEN-OF-A"} {
		who := h.caller(token, "/mcp")
		for _, x := range onSession {
			if status, text := who.do(x.method, "/mcp", x.body, "Mcp-Session-Id", h.a.session); (status != http.StatusUnauthorized) != (token == "token-of-a ") {
				t.Errorf("token %q: %s %s: %d %s", token, x.method, x.body, status, text)
			}
			if token == "token-of-a " { // a space is no part of a token: the session is its own
				break
			}
		}
	}
	if now := h.server.saw("POST"); now > heard+1 { // that of a with a space
		t.Error(now-heard, "messages came to the server")
	}
	close(h.server.release)
	call.await("token-of-a")
}

// A session of HTTP+SSE belongs to the principal that opened its stream.
func TestForeignSSESession(t *testing.T) {
	h := newHouse(t, nil)
	stream := h.a.begin("GET", "/sse", "")
	_, session, _ := strings.Cut(stream.await("sessionId="), "sessionId=")
	session = strings.TrimSpace(session)
	hello := `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	if status, text := h.b.do("POST", "/message?sessionId="+session, hello); status != http.StatusNotFound {
		t.Error("b in a's session:", status, text)
	}
	if status, text := h.caller("", "").do("POST", "/message?sessionId="+session, hello); status != http.StatusUnauthorized {
		t.Error("without a token:", status, text)
	}
	for _, c := range []*caller{h.a, h.b} { // it is none of /mcp, not even a's
		if status, text := c.do("POST", "/mcp", onSession[0].body, "Mcp-Session-Id", session); status != http.StatusNotFound {
			t.Error("at /mcp:", status, text)
		}
	}
	if status, text := h.a.do("POST", "/message?sessionId="+session, hello); status != http.StatusAccepted {
		t.Error("a in its own session:", status, text)
	}
	stream.await(`"serverInfo"`)
}

// An event id is of one session. In another it is that session's own, or none.
func TestForeignEventID(t *testing.T) {
	h := newHouse(t, nil)
	h.a.initialize()
	call := h.hang(h.a, "1")
	text, _ := call.all()
	_, id, _ := strings.Cut(text, "id: ")
	stream, _, _ := strings.Cut(id, "-") // the first, unless initialize was slow and had one
	call.body.Close()                    // the rest is stored for who resumes
	h.b.initialize()
	for _, id := range []string{"1-0", "1-1", "0-0", "2-0", "0-1", "-1-0", "1", "x"} {
		f := h.b.begin("GET", "/mcp", "", append(h.b.headers(), "Last-Event-ID", id)...)
		if text, _ := f.all(); strings.Contains(text, "SECRET") {
			t.Errorf("%s: b got %s", id, text)
		}
		if f.status != http.StatusBadRequest && id != "0-0" {
			t.Errorf("%s: %d", id, f.status)
		}
	}
	close(h.server.release)
	resumed := h.a.begin("GET", "/mcp", "", append(h.a.headers(), "Last-Event-ID", stream+"-0")...)
	resumed.await("token-of-a")
}

// What a server asks one client is answered by that one alone: ids of its questions are of
// its session.
func TestForeignAnswer(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared=", shared), func(t *testing.T) {
			h := newHouse(t, func(cfg *config.Config) { cfg.Upstreams[0].Shared = shared })
			h.a.initialize()
			h.b.initialize()
			ask := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask"}}`
			call := h.a.begin("POST", "/mcp", ask, h.a.headers()...)
			call.await("elicitation/create")
			var b *feed
			for id := range 5 {
				for _, answer := range []string{`"result":{"action":"accept","content":{"by":"thief"}}`, `"error":{"code":1,"message":"thief"}`} {
					h.b.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s}`, id, answer))
				}
			}
			if !shared { // else the server's second question could not be told apart from the first by stdio servers
				b = h.b.begin("POST", "/mcp", ask, h.b.headers()...)
				b.await("elicitation/create")
			}
			if n := h.server.saw("thief"); n > 0 {
				t.Error(n, "answers of b came to the server")
			}
			text := call.await("elicitation/create")
			_, id, _ := strings.Cut(text, `"id":`)
			id, _, _ = strings.Cut(id, ",")
			h.a.say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"action":"accept","content":{"by":"a"}}}`)
			if text := call.await(`\"by\"`); strings.Contains(text, "thief") {
				t.Error("a's call got", text)
			}
			if b != nil {
				if text, _ := b.all(); strings.Contains(text, `\"by\"`) {
					t.Error("b's call got", text)
				}
			}
		})
	}
}

// Clients choose ids and progress tokens, and may choose the same. Progress is of the call
// whose token it names, a cancellation of the session that it comes in, or of the stream that
// is closed.
func TestSameIDs(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared=", shared), func(t *testing.T) {
			h := newHouse(t, func(cfg *config.Config) { cfg.Upstreams[0].Shared = shared })
			h.a.initialize()
			h.b.initialize()
			legacy, other := h.hang(h.a, "1"), h.hang(h.b, "1")
			text, headers := modern("1", "tools/call", "hang", `,"name":"hang","arguments":{"of":"modern a"}`)
			text = strings.Replace(text, `"_meta":{`, `"_meta":{"progressToken":1,`, 1)
			ours := h.a.begin("POST", "/mcp", text, headers...)
			theirs := h.b.begin("POST", "/mcp", strings.Replace(text, "modern a", "modern b", 1), headers...)
			socket := h.socket(h.b, "/ws")
			socket.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang","arguments":{"of":"socket b"},"_meta":{` + modernMeta + `,"progressToken":1}}}`)
			h.server.awaits(5, `"tools/call"`)
			calls := map[string]*feed{"token-of-a": legacy, "token-of-b": other, "modern a": ours, "modern b": theirs}
			for who, call := range calls {
				call.await("SECRET of " + who)
			}
			progress := socket.hears("SECRET of")
			onlyProgressOf(t, "socket b", progress)

			h.b.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			socket.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			theirs.body.Close()
			other.await(`-32800`)
			h.b.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"_meta":{`+modernMeta+`}}}`, "MCP-Protocol-Version", "2026-07-28")
			close(h.server.release)
			legacy.await(`of\":\"token-of-a`)
			ours.await(`of\":\"modern a`)
			for who, call := range calls {
				text, _ := call.all()
				onlyProgressOf(t, who, text)
				if who != "token-of-a" && strings.Contains(text, "token-of-a") || who != "modern a" && strings.Contains(text, "modern a") {
					t.Errorf("%s got %s", who, text)
				}
			}
		})
	}
}

// onlyProgressOf checks that a call got only its own progress, once, under its own token.
func onlyProgressOf(t *testing.T, who, text string) {
	t.Helper()
	if all, own := strings.Count(text, "notifications/progress"), strings.Count(text, `"progressToken":1,"progress":1,"message":"SECRET of `+who+`"`); all != 1 || own != 1 {
		t.Errorf("%s got %s", who, text)
	}
}

// A wsClient is a client on a WebSocket.
type wsClient struct {
	t    *testing.T
	conn *websocket.Conn
}

// socket connects over a WebSocket.
func (h *house) socket(c *caller, path string) *wsClient {
	h.t.Helper()
	conn, resp, err := websocket.DefaultDialer.DialContext(h.t.Context(), "ws"+strings.TrimPrefix(h.url, "http")+path, http.Header{"Authorization": {"Bearer " + c.token}})
	if err != nil {
		h.t.Fatal(err, resp)
	}
	h.t.Cleanup(func() { conn.Close() })
	return &wsClient{h.t, conn}
}

func (c *wsClient) say(text string) {
	c.t.Helper()
	if err := c.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// hears waits for a message that contains a text.
func (c *wsClient) hears(part string) string {
	c.t.Helper()
	for {
		_, text, err := c.conn.ReadMessage()
		if err != nil {
			c.t.Fatalf("nobody said %q: %v", part, err)
		}
		if strings.Contains(string(text), part) {
			return string(text)
		}
	}
}

// Log messages of a shared server that name no client go to all clients of the only principal that
// has used it, and to no client once two principals have.
func TestForeignLogMessage(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(cfg *config.Config) { cfg.Upstreams[0].Shared, cfg.Upstreams[0].Era = true, "legacy" })
	a, again, b := h.a.initialize(), h.caller("token-of-a", "/mcp/u").initialize(), h.b.initialize()
	var streams []*feed
	for _, c := range []*caller{a, again, b} {
		c.say(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`)
		streams = append(streams, c.begin("GET", c.path, "", c.headers()...))
	}
	eventually(t, "stream of the server", func() bool { return h.server.listeners() == 1 })
	logs := 0
	// after lets the server log, and checks which clients get that before the next change of a list.
	after := func(what string, want ...bool) {
		t.Helper()
		logs++
		h.server.tell(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"log %d"}}`, logs))
		h.server.tell(`{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`)
		for i, f := range streams {
			eventually(t, "change of a list", func() bool {
				text, _ := f.all()
				return strings.Count(text, "prompts/list_changed") == logs
			})
			if text, _ := f.all(); strings.Contains(text, fmt.Sprintf(`"log %d"`, logs)) != want[i] {
				t.Errorf("%s: stream %d got %s", what, i, text)
			}
		}
	}
	after("before any call", true, true, true)
	a.say(onSession[0].body)
	after("a has called", true, true, false)
	again.say(onSession[0].body)
	h.a.ask("tools/call", "echo", `,"name":"echo"`)
	after("a has called by other ways", true, true, false)
	b.say(onSession[0].body)
	after("b has called", false, false, false)
}

// Another principal cannot use a requestState, neither that of a call suspended here for a legacy
// server nor the server's own. A's retry then continues undisturbed.
func TestForeignRequestState(t *testing.T) {
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			h := newHouse(t, func(cfg *config.Config) { cfg.Upstreams[0].Era = era })
			status, text := h.a.ask("tools/call", "ask", `,"name":"ask"`)
			_, state, _ := strings.Cut(text, `"requestState":"`)
			state, _, _ = strings.Cut(state, `"`)
			if status != http.StatusOK || state == "" {
				t.Fatal(status, text)
			}
			_, key, _ := strings.Cut(text, `"inputRequests":{"`)
			key, _, _ = strings.Cut(key, `"`)
			retry := func(c *caller, state string) string {
				status, text := c.ask("tools/call", "ask", `,"name":"ask","requestState":"`+state+`","inputResponses":{"`+key+`":{"action":"accept","content":{"by":"`+c.token+`"}}}`)
				return fmt.Sprint(status, " ", text)
			}
			got, unknown := retry(h.b, state), retry(h.b, "NEVERGIVENNEVERGIVENNEVERG")
			if got != unknown || !strings.Contains(got, "-32602") {
				t.Errorf("b got %s\nfor an unknown state: %s", got, unknown)
			}
			socket := h.socket(h.b, "/ws")
			socket.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ask","requestState":"` + state + `","inputResponses":{},"_meta":{` + modernMeta + `}}}`)
			if text := socket.hears(`"id":1`); !strings.Contains(text, "-32602") {
				t.Error("b on a WebSocket got", text)
			}
			if n := h.server.saw("token-of-b") + h.server.saw("NEVERGIVEN"); n > 0 {
				t.Error(n, "messages of b came to the server")
			}
			if got := retry(h.a, state); !strings.Contains(got, `\"by\":\"token-of-a\"`) {
				t.Error("a got", got)
			}
		})
	}
}

// Only the principal of its call knows a task, in either era, even on a server that knows only the
// proxy: others cannot get it, wait for it, cancel it, subscribe to it or find it in a list.
func TestForeignTask(t *testing.T) {
	t.Run("modern", func(t *testing.T) {
		h := newHouse(t, nil)
		if status, text := h.a.ask("tools/call", "task", `,"name":"task"`); status != http.StatusOK || !strings.Contains(text, "task-1") {
			t.Fatal(status, text)
		}
		for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
			if status, text := h.b.ask(method, "task-1", `,"taskId":"task-1"`); !strings.Contains(text, "-32602") {
				t.Error(method, status, text)
			}
			if n := h.server.saw(method); n > 0 {
				t.Error(method, "came to the server")
			}
			if status, text := h.a.ask(method, "task-1", `,"taskId":"task-1"`); !strings.Contains(text, `"result"`) {
				t.Error("its owner:", method, status, text)
			}
		}
	})
	t.Run("legacy", func(t *testing.T) {
		h := newHouse(t, nil)
		h.a.initialize()
		h.b.initialize()
		if status, text := h.a.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"task","task":{}}}`); !strings.Contains(text, "task-1") {
			t.Fatal(status, text)
		}
		for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
			request := `{"jsonrpc":"2.0","id":2,"method":"` + method + `","params":{"taskId":"task-1"}}`
			if status, text := h.b.say(request); !strings.Contains(text, "-32602") {
				t.Error(method, status, text)
			}
			if status, text := h.a.say(request); !strings.Contains(text, `"result"`) {
				t.Error("its owner:", method, status, text)
			}
		}
		list := `{"jsonrpc":"2.0","id":3,"method":"tasks/list"}`
		if _, text := h.b.say(list); !strings.Contains(text, `"tasks":[]`) {
			t.Error("b's list:", text)
		}
		if _, text := h.a.say(list); !strings.Contains(text, "task-1") {
			t.Error("a's list:", text)
		}
	})
}

// On a shared server a client gets the updates of its subscription, and only that client can end it.
func TestForeignSubscription(t *testing.T) {
	h := newHouse(t, func(cfg *config.Config) { cfg.Upstreams[0].Shared = true })
	subscribe := func(c *caller, method, uri string) {
		if status, text := c.say(`{"jsonrpc":"2.0","id":1,"method":"resources/` + method + `","params":{"uri":"` + uri + `"}}`); !strings.Contains(text, `"result"`) {
			t.Error(method, uri, status, text)
		}
	}
	var feeds []*feed
	for _, c := range []*caller{h.a.initialize(), h.b.initialize()} {
		feeds = append(feeds, c.begin("GET", "/mcp", "", c.headers()...))
	}
	subscribe(h.a, "subscribe", "x:a")
	subscribe(h.b, "subscribe", "x:b")
	subscribe(h.b, "unsubscribe", "x:a") // it had none
	eventually(t, "GET stream", func() bool { h.server.mu.Lock(); defer h.server.mu.Unlock(); return len(h.server.streams) > 0 })
	for _, uri := range []string{"x:a", "x:b"} {
		h.server.tell(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`)
	}
	feeds[0].await("x:a")
	feeds[1].await("x:b")
	for i, foreign := range []string{"x:b", "x:a"} {
		if text, _ := feeds[i].all(); strings.Contains(text, foreign) {
			t.Errorf("%d got %s", i, text)
		}
	}
}

// The token of a host opens /link and nothing else, and no client's token opens that.
func TestTokensOfHosts(t *testing.T) {
	h := newHouse(t, func(cfg *config.Config) {
		cfg.Links = []config.Link{{Name: "far", Accept: true, TokenFile: secretFile(t, "token-of-host")}}
	})
	dial := func(path, token string) int {
		conn, resp, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(h.url, "http")+path, http.Header{"Authorization": {"Bearer " + token}})
		if err == nil {
			conn.Close()
		}
		if resp == nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	for _, x := range []struct {
		path, token string
		want        int
	}{
		{"/link", "token-of-a", 401}, {"/link", "", 401}, {"/link", "token-of-host", 400},
		{"/ws", "token-of-host", 401}, {"/ws/u", "token-of-host", 401}, {"/ws", "token-of-a", 101},
	} {
		if got := dial(x.path, x.token); got != x.want {
			t.Errorf("%s with %q: %d, want %d", x.path, x.token, got, x.want)
		}
	}
	if status, text := h.caller("token-of-host", "").ask("tools/list", "", ""); status != http.StatusUnauthorized {
		t.Error("/mcp:", status, text)
	}
}
