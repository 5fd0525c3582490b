package proxy_test

import (
	"bufio"
	"context"
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
//	acme/open    sends a notification that names the request, and no result
//	acme/poke    returns whether it names an open acme/open
//	acme/heard   returns the notifications that the server got, and whether they named an open acme/open
type extended struct {
	modern bool

	mu    sync.Mutex
	heard []string
	open  map[string]bool // ids of acme/open
}

const (
	subscription = `"io.modelcontextprotocol/subscriptionId"`
	abilities    = `"capabilities":{"tools":{},"experimental":{"acme":{"e":1.0}},"extensions":{"acme/x":{"v":1.0}},"acme":{"top":true}}`
)

func newExtended(era string) *extended {
	return &extended{modern: era == "modern", open: make(map[string]bool)}
}

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
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	_ = json.Unmarshal(m.Params, &p)
	s.mu.Lock()
	named := s.open[string(p.Meta["io.modelcontextprotocol/subscriptionId"])]
	if m.ID == nil && !strings.HasPrefix(m.Method, "notifications/initialized") {
		s.heard = append(s.heard, fmt.Sprint(m.Method, " ", named))
	}
	s.mu.Unlock()
	if m.ID == nil {
		return nil
	}
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
	case m.Method == "acme/open":
		s.mu.Lock()
		s.open[string(m.ID)] = true
		s.mu.Unlock()
		tell("notifications/acme/opened", fmt.Sprintf(`{"_meta":{%s:%s}}`, subscription, m.ID))
	case m.Method == "acme/poke":
		answer(fmt.Sprintf(`{"named":%v}`, named))
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
	if strings.Contains(string(body), `"subscriptions/listen"`) || strings.Contains(string(body), `"acme/open"`) {
		<-r.Context().Done()
	}
}

// extendedEra is the variable that makes the test's program an extended server on stdio.
const extendedEra = "TEST_EXTENDED_SERVER"

func init() {
	if era := os.Getenv(extendedEra); era != "" {
		newExtended(era).serve(os.Stdin, os.Stdout)
		os.Exit(0)
	}
}

// TestExtensionsPass holds what docs/eras.md says of extensions, for each way to a server: its
// capabilities, methods, notifications of both sides, and ids.
func TestExtensionsPass(t *testing.T) {
	for _, client := range []string{"legacy", "modern", "modern http"} {
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
			web := httptest.NewServer(newExtended(server))
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
	client, post := strings.CutSuffix(client, " http")
	c := &extendedClient{t: t, era: client, url: url}
	if !post {
		c.dial()
	}

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

	c.say(`"id":"o","method":"acme/open","params":{` + strings.TrimPrefix(c.meta(""), ",") + `}`)
	if got := c.await("notifications/acme/opened"); !strings.Contains(got, subscription+`:"o"`) {
		t.Errorf("the notification of a stream is %s", got)
	}
	if got := c.ask("p", "acme/poke", ``, subscription+`:"o"`); !strings.Contains(got, `"named":true`) {
		t.Errorf("a request that names a stream returns %s", got)
	}
	for _, foreign := range []string{`"e"`, `1`, `2`, `3`, `4`, `5`, `6`, `7`, `8`} {
		if got := c.ask("f"+foreign[:1], "acme/poke", ``, subscription+`:`+foreign); strings.Contains(got, `"named":true`) {
			t.Errorf("a request that names %s returns %s", foreign, got)
		}
	}
	c.say(`"method":"notifications/acme/named","params":{` + strings.TrimPrefix(c.meta(subscription+`:"o"`), ",") + `}`)
	eventually(t, "notification that names a stream", func() bool {
		return strings.Contains(c.ask("h", "acme/heard", ``, ``), "notifications/acme/named true")
	})

	if post { // then two of the clients that are one principal may use one id, and no one knows which is meant
		c.say(`"id":"o","method":"acme/open","params":{` + strings.TrimPrefix(c.meta(""), ",") + `}`)
		eventually(t, "second stream", func() bool { return c.count("notifications/acme/opened") == 2 })
		if got := c.ask("q", "acme/poke", ``, subscription+`:"o"`); !strings.Contains(got, `"named":false`) {
			t.Errorf("a request that names one of two streams returns %s", got)
		}
	}

	if client == "modern" && server == "modern" {
		c.say(`"id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"acmeChanged":true}` + c.meta("") + `}`)
		c.await(`"acmeChanged":true`)
		if got := c.await(`notifications/acme/changed`); !strings.Contains(got, subscription+`:"l"`) {
			t.Errorf("a notification of a listen is %s", got)
		}
	}
}

// An extendedClient is a raw client, on a WebSocket or with a POST for each message.
type extendedClient struct {
	t    *testing.T
	era  string
	url  string
	conn *websocket.Conn // nil: with POSTs

	mu  sync.Mutex
	got []string
}

func (c *extendedClient) dial() {
	conn, resp, err := websocket.DefaultDialer.DialContext(c.t.Context(), "ws"+strings.TrimSuffix(strings.TrimPrefix(c.url, "http"), "/mcp")+"/ws", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	resp.Body.Close()
	c.conn = conn
	var reads sync.WaitGroup
	reads.Go(func() {
		for {
			_, text, err := conn.ReadMessage()
			if err != nil {
				return
			}
			c.gets(string(text))
		}
	})
	c.t.Cleanup(func() {
		conn.Close()
		reads.Wait()
	})
}

func (c *extendedClient) gets(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, text)
}

// post sends a message of the modern era, and reads its response until the test ends.
func (c *extendedClient) post(text string) {
	m, err := jsonrpc.Decode([]byte(text))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(text))
	if err != nil {
		c.t.Fatal(err)
	}
	for key, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": m.Method,
	} {
		req.Header.Set(key, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	var reads sync.WaitGroup
	reads.Go(func() {
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if data := strings.TrimPrefix(lines.Text(), "data: "); strings.HasPrefix(data, "{") {
				c.gets(data)
			}
		}
	})
	c.t.Cleanup(func() {
		cancel()
		reads.Wait()
		resp.Body.Close()
	})
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
	text := `{"jsonrpc":"2.0",` + rest + `}`
	if c.conn == nil {
		c.post(text)
		return
	}
	if err := c.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
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
