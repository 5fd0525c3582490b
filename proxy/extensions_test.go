package proxy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// An extended server has extensions that nobody knows, on stdio or HTTP, in one era:
//
//	acme/echo    returns its params, with a kind of result of its own, and its id as a subscription id
//	acme/stream  sends three notifications that name the request in different ways, and then its result
//	acme/heard   returns the notifications that the server got
type extended struct {
	modern bool

	mu    sync.Mutex
	heard []string
}

const (
	subscription = `"io.modelcontextprotocol/subscriptionId"`
	abilities    = `"capabilities":{"tools":{},"experimental":{"acme":{"e":1.0}},"extensions":{"acme/x":{"v":1.0}},"acme":{"top":true}}`
)

// handle returns what the server sends for a message.
func (s *extended) handle(text []byte) (out []string) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params json.RawMessage
	}
	if json.Unmarshal(text, &m) != nil || m.Method == "" {
		return nil
	}
	if m.ID == nil {
		if !strings.HasPrefix(m.Method, "notifications/initialized") {
			s.mu.Lock()
			s.heard = append(s.heard, m.Method)
			s.mu.Unlock()
		}
		return nil
	}
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(m.Params, &p)
	answer := func(result string) {
		out = append(out, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result))
	}
	tell := func(method, params string) {
		out = append(out, fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params))
	}
	switch {
	case m.Method == "initialize" && !s.modern:
		answer(`{"protocolVersion":"2025-11-25",` + abilities + `,"serverInfo":{"name":"extended","version":"1"}}`)
	case m.Method == "server/discover" && s.modern:
		answer(`{"resultType":"complete","supportedVersions":["2026-07-28"],` + abilities + `,"ttlMs":0,"cacheScope":"private"}`)
	case m.Method == "tools/list":
		answer(`{"tools":[],"resultType":"complete","ttlMs":0,"cacheScope":"private"}`)
	case m.Method == "subscriptions/listen" && s.modern:
		tell("notifications/subscriptions/acknowledged", fmt.Sprintf(`{"notifications":{"acmeChanged":true},"_meta":{%s:%s}}`, subscription, m.ID))
		tell("notifications/acme/changed", fmt.Sprintf(`{"_meta":{%s:%s}}`, subscription, m.ID))
	case m.Method == "acme/echo":
		meta := p.Meta
		var got map[string]json.RawMessage
		_ = json.Unmarshal(m.Params, &got)
		delete(got, "_meta")
		echo, _ := json.Marshal(got)
		own := meta["own"]
		if own == nil {
			own = json.RawMessage("null")
		}
		answer(fmt.Sprintf(`{"resultType":"acme/odd","got":%s,"own":%s,"_meta":{%s:%s}}`, echo, own, subscription, m.ID))
	case m.Method == "acme/stream":
		tell("notifications/acme/event", fmt.Sprintf(`{"n":1.0,"_meta":{%s:%s}}`, subscription, m.ID))
		tell("notifications/acme/event", fmt.Sprintf(`{"n":2.0,"progressToken":%s}`, p.Meta["progressToken"]))
		tell("notifications/acme/event", fmt.Sprintf(`{"n":3.0,"_meta":{"progressToken":%s}}`, p.Meta["progressToken"]))
		answer(fmt.Sprintf(`{"resultType":"complete","over":true,"_meta":{%s:%s}}`, subscription, m.ID))
	case m.Method == "acme/heard":
		s.mu.Lock()
		answer(fmt.Sprintf(`{"heard":%q}`, strings.Join(s.heard, " ")))
		s.mu.Unlock()
	default:
		out = append(out, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}`, m.ID))
	}
	return out
}

// serve is the server on stdio.
func (s *extended) serve(in io.Reader, out io.Writer) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		for _, text := range s.handle(lines.Bytes()) {
			fmt.Fprintln(out, text)
		}
	}
}

func (s *extended) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	out := s.handle(body)
	if len(out) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, text := range out {
		say(w, text)
	}
	if strings.Contains(string(body), `"subscriptions/listen"`) {
		<-r.Context().Done()
	}
}

// extendedEra is the variable that makes the test's program an extended server on stdio.
const extendedEra = "TEST_EXTENDED_SERVER"

func init() {
	if era := os.Getenv(extendedEra); era != "" {
		(&extended{modern: era == "modern"}).serve(os.Stdin, os.Stdout)
		os.Exit(0)
	}
}

// TestExtensionsPass holds what docs/eras.md says of extensions, for each way to a server: its
// capabilities, methods, notifications of both sides, and ids.
func TestExtensionsPass(t *testing.T) {
	for _, client := range []string{"legacy", "modern"} {
		for _, server := range []string{"legacy", "modern"} {
			for _, transport := range []string{"stdio", "http"} {
				for _, way := range []string{"one", "several", "owner", "shared", "link"} {
					t.Run(client+" client, "+server+" "+transport+" server, "+way, func(t *testing.T) {
						t.Parallel()
						extensionsPass(t, client, server, transport, way)
					})
				}
			}
		}
	}
}

func extensionsPass(t *testing.T, client, server, transport, way string) {
	up := func(name string) config.Upstream {
		u := config.Upstream{Name: name, Key: "upstreams." + name, Era: server, StartTimeout: patience, WriteTimeout: patience, StopGrace: time.Second}
		if transport == "http" {
			web := httptest.NewServer(&extended{modern: server == "modern"})
			t.Cleanup(func() {
				web.CloseClientConnections()
				web.Close()
			})
			u.URL = web.URL
		} else {
			u.Command, u.Env = os.Args[0], map[string]string{extendedEra: server}
		}
		return u
	}
	cfg := config.Config{Upstreams: []config.Upstream{up("x")}}
	switch way {
	case "several", "owner":
		plain := newNaive(t)
		cfg.Upstreams = append(cfg.Upstreams, config.Upstream{Name: "plain", Key: "upstreams.plain", Era: "legacy", Remote: config.Remote{URL: plain.URL}})
		if way == "owner" {
			cfg.Upstreams[0].Methods = []string{"acme/*", "notifications/acme/*"}
		}
	case "shared":
		cfg.Upstreams[0].Shared = true
	case "link":
		socket := filepath.Join(t.TempDir(), "s")
		host, err := proxy.NewHost(&config.Config{Upstreams: cfg.Upstreams}, config.HostLink{Listen: "unix://" + socket}, proxy.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := host.Listen(); err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- host.Serve() }()
		t.Cleanup(func() {
			host.Close()
			<-served
		})
		cfg = config.Config{Links: []config.Link{{Name: "far", Dial: "unix://" + socket, Heartbeat: time.Second}}}
	}
	p, url := serveWith(t, cfg, proxy.Options{})
	if way == "link" {
		eventually(t, "link", func() bool { l := p.Snapshot().Links; return len(l) == 1 && l[0].Up })
	}
	c := dialExtended(t, url, client)

	said := c.introduce()
	for _, part := range []string{`"acme/x":{"v":1.0}`, `"acme":{"e":1.0}`, `"acme":{"top":true}`} {
		if !strings.Contains(said, part) {
			t.Errorf("the client is told %s, without %s", said, part)
		}
	}

	got := c.ask("e", "acme/echo", `"a":1.0,"b":["ü",{}]`, `"own":[1.0]`)
	id := `"e"`
	for _, part := range []string{`"got":{"a":1.0,"b":["ü",{}]}`, `"own":[1.0]`, `"resultType":"acme/odd"`, subscription + `:` + id} {
		if !strings.Contains(got, part) {
			t.Errorf("acme/echo returns %s, without %s", got, part)
		}
	}

	result := c.ask("s", "acme/stream", ``, `"progressToken":"mine"`)
	for _, want := range []string{`"n":1.0,"_meta":{` + subscription + `:"s"`, `"n":2.0,"progressToken":"mine"`, `"n":3.0,"_meta":{"progressToken":"mine"`} {
		if n := c.count(want); n != 1 {
			t.Errorf("%d notifications with %s, among %s", n, want, c.all())
		}
	}
	if !strings.Contains(result, `"over":true`) || !strings.Contains(result, subscription+`:"s"`) {
		t.Errorf("acme/stream returns %s", result)
	}

	c.say(`"method":"notifications/acme/said","params":{"x":1.0` + c.meta("") + `}`)
	eventually(t, "notification at the server", func() bool {
		return strings.Contains(c.ask("h", "acme/heard", ``, ``), "notifications/acme/said")
	})

	if client == "modern" && server == "modern" {
		c.say(`"id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"acmeChanged":true}` + c.meta("") + `}`)
		c.await(`"acmeChanged":true`)
		if got := c.await(`notifications/acme/changed`); !strings.Contains(got, subscription+`:"l"`) {
			t.Errorf("a notification of a listen is %s", got)
		}
	}
}

// An extendedClient is a raw client on a WebSocket.
type extendedClient struct {
	t    *testing.T
	era  string
	conn *websocket.Conn

	mu  sync.Mutex
	got []string
}

func dialExtended(t *testing.T, url, era string) *extendedClient {
	conn, resp, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimSuffix(strings.TrimPrefix(url, "http"), "/mcp")+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	c := &extendedClient{t: t, era: era, conn: conn}
	var reads sync.WaitGroup
	reads.Go(func() {
		for {
			_, text, err := conn.ReadMessage()
			if err != nil {
				return
			}
			c.mu.Lock()
			c.got = append(c.got, string(text))
			c.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		conn.Close()
		reads.Wait()
	})
	return c
}

// introduce returns how the proxy describes itself.
func (c *extendedClient) introduce() string {
	if c.era == "modern" {
		return c.ask("d", "server/discover", ``, ``)
	}
	said := c.ask("i", "initialize", `"protocolVersion":"2025-11-25","capabilities":{"extensions":{"acme/x":{}}},"clientInfo":{"name":"t","version":"1"}`, ``)
	c.say(`"method":"notifications/initialized"`)
	return said
}

// meta returns _meta with members, behind a comma.
func (c *extendedClient) meta(members string) string {
	if c.era == "modern" {
		claim := `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"acme/x":{}}}`
		members = strings.TrimPrefix(members+","+claim, ",")
	}
	if members == "" {
		return ""
	}
	return `,"_meta":{` + members + `}`
}

func (c *extendedClient) say(rest string) {
	c.t.Helper()
	if err := c.conn.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0",`+rest+`}`)); err != nil {
		c.t.Fatal(err)
	}
}

// ask sends a request and returns the next answer to it.
func (c *extendedClient) ask(id, method, params, meta string) string {
	c.t.Helper()
	answer := `"id":` + string(jsonrpc.Quote(id)) + `,`
	before := c.count(answer)
	params = strings.TrimPrefix(params+c.meta(meta), ",")
	c.say(fmt.Sprintf(`"id":%q,"method":%q,"params":{%s}`, id, method, params))
	eventually(c.t, "answer to "+method, func() bool { return c.count(answer) > before })
	return c.last(answer)
}

func (c *extendedClient) await(part string) string {
	c.t.Helper()
	eventually(c.t, part, func() bool { return c.count(part) > 0 })
	return c.last(part)
}

func (c *extendedClient) count(part string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range c.got {
		if strings.Contains(text, part) {
			n++
		}
	}
	return n
}

func (c *extendedClient) last(part string) (found string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, text := range c.got {
		if strings.Contains(text, part) {
			found = text
		}
	}
	return found
}

func (c *extendedClient) all() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.got, "\n")
}
