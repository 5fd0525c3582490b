package proxy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// patience is how long anything may take before a test gives up.
const patience = 20 * time.Second

// A naive server does not distinguish clients: it gives everything to everyone. It speaks both eras
// over HTTP. Its tools "hang" and "ask" answer with their arguments, "ask" after asking for input;
// "task" becomes a task.
type naive struct {
	*httptest.Server
	t   *testing.T
	own []string // marked secrets that are for it, see TestSecrets

	mu      sync.Mutex
	seen    []string // all that came: headers and body
	answers map[string]chan string
	streams map[chan string]bool // open GET streams
	ids     int
	release chan struct{} // closed: hang ends

	sockets sync.WaitGroup // WebSockets
}

func newNaive(t *testing.T, own ...string) *naive {
	s := &naive{t: t, own: own, answers: make(map[string]chan string), streams: make(map[chan string]bool), release: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		s.sockets.Wait()
	})
	return s
}

// saw reports how often something with all these parts came.
func (s *naive) saw(parts ...string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.seen {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) }) {
			n++
		}
	}
	return n
}

func (s *naive) awaits(n int, parts ...string) {
	s.t.Helper()
	eventually(s.t, fmt.Sprint(parts, " at the server"), func() bool { return s.saw(parts...) >= n })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there is no ", what)
		}
	}
}

func (s *naive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.seen = append(s.seen, fmt.Sprint(r.Method, " ", r.URL, " ", r.Header, " ", string(body)))
	s.mu.Unlock()
	switch {
	case r.Header.Get("Upgrade") != "":
		s.socket(w, r)
		return
	case r.Method == http.MethodGet:
		s.get(w, r)
		return
	case r.Method != http.MethodPost:
		return
	}
	m, err := jsonrpc.Decode(body)
	switch {
	case err != nil:
		s.t.Errorf("the server received %.200s: %v", body, err)
	case m.IsResponse():
		s.mu.Lock()
		answered := s.answers[m.ID.String()]
		delete(s.answers, m.ID.String())
		s.mu.Unlock()
		if answered != nil {
			answered <- string(body)
		}
		w.WriteHeader(http.StatusAccepted)
	case m.IsNotification():
		w.WriteHeader(http.StatusAccepted)
	default:
		s.answer(w, r, m)
	}
}

// get is a stream on which updates come.
func (s *naive) get(w http.ResponseWriter, r *http.Request) {
	events := make(chan string, 16)
	s.mu.Lock()
	s.streams[events] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.streams, events)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	http.NewResponseController(w).Flush()
	for {
		select {
		case text := <-events:
			say(w, text)
		case <-r.Context().Done():
			return
		}
	}
}

// listeners returns how many GET streams are open.
func (s *naive) listeners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.streams)
}

// tell sends a message on all GET streams.
func (s *naive) tell(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for events := range s.streams {
		events <- text
	}
}

func say(w http.ResponseWriter, text string) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	fmt.Fprintf(w, "data: %s\n\n", text)
	http.NewResponseController(w).Flush()
}

func (s *naive) answer(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
	params := string(m.Params)
	modern := strings.Contains(params, `"io.modelcontextprotocol/protocolVersion"`)
	var result string
	switch {
	case m.Method == "initialize":
		s.mu.Lock()
		s.ids++
		w.Header().Set("Mcp-Session-Id", fmt.Sprint("session-", s.ids))
		s.mu.Unlock()
		result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true},"tasks":{"list":{}},"logging":{}},"serverInfo":{"name":"naive","version":"1"}}`
	case m.Method == "server/discover":
		result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"resources":{"subscribe":true},"extensions":{"io.modelcontextprotocol/tasks":{}}},"serverInfo":{"name":"naive","version":"1"},"ttlMs":0,"cacheScope":"public"}`
	case m.Method == "tools/list":
		result = `{"tools":[{"name":"echo","inputSchema":{"type":"object"}},{"name":"hang","inputSchema":{"type":"object"}},{"name":"ask","inputSchema":{"type":"object"}},{"name":"task","inputSchema":{"type":"object"}}]`
		if modern {
			result += `,"resultType":"complete","ttlMs":60000,"cacheScope":"public"`
		}
		result += `}`
	case m.Method == "tasks/list":
		result = `{"tasks":[{"taskId":"task-1","status":"working"}]}`
	case strings.HasPrefix(m.Method, "tasks/"):
		result = `{"resultType":"complete","taskId":"task-1","status":"working","content":[{"type":"text","text":"SECRET"}]}`
	case strings.Contains(params, `"hang"`):
		s.hang(w, r, m, params)
		return
	case strings.Contains(params, `"ask"`) && modern && !strings.Contains(params, `"requestState"`):
		result = `{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{}}}}},"requestState":"state-1"}`
	case strings.Contains(params, `"ask"`) && !modern:
		s.ask(w, r, m)
		return
	case strings.Contains(params, `"task"`) && modern:
		result = `{"resultType":"task","taskId":"task-1","status":"working","ttlMs":null}`
	case strings.Contains(params, `"task"`):
		result = `{"task":{"taskId":"task-1","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttl":null}}`
	default:
		result = `{"resultType":"complete","content":[{"type":"text","text":` + string(jsonrpc.Quote(params)) + `}]}`
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(jsonrpc.NewResult(m.ID, json.RawMessage(result)).Append(nil))
}

// hang sends progress with the name of its owner, and answers when it is released.
func (s *naive) hang(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message, params string) {
	meta, _ := jsonrpc.Member(m.Params, "_meta")
	if token, _ := jsonrpc.Member(meta, "progressToken"); token != nil {
		arguments, _ := jsonrpc.Member(m.Params, "arguments")
		of, _ := jsonrpc.Member(arguments, "of")
		whose, _ := jsonrpc.Unquote(of)
		say(w, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+string(token)+`,"progress":1,"message":"SECRET of `+whose+`"}}`)
	}
	select {
	case <-s.release:
		say(w, string(jsonrpc.NewResult(m.ID, json.RawMessage(`{"resultType":"complete","content":[{"type":"text","text":`+string(jsonrpc.Quote(params))+`}]}`)).Append(nil)))
	case <-r.Context().Done():
	}
}

// ask answers with what the client answers.
func (s *naive) ask(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
	s.mu.Lock()
	s.ids++
	id, answered := fmt.Sprint(s.ids), make(chan string, 1)
	s.answers[id] = answered
	s.mu.Unlock()
	say(w, `{"jsonrpc":"2.0","id":`+id+`,"method":"elicitation/create","params":{"message":"SECRET","requestedSchema":{"type":"object","properties":{}}}}`)
	select {
	case text := <-answered:
		say(w, string(jsonrpc.NewResult(m.ID, json.RawMessage(`{"content":[{"type":"text","text":`+string(jsonrpc.Quote(text))+`}]}`)).Append(nil)))
	case <-r.Context().Done():
	}
}

// A caller is one client at the proxy's door, which speaks HTTP by hand.
type caller struct {
	t       *testing.T
	base    string // URL of the proxy
	token   string
	path    string // /mcp
	session string // of the legacy era; "" for a modern client
	client  *http.Client
}

// do sends a request and returns the status and the body. Headers come in pairs.
func (c *caller) do(method, path, body string, headers ...string) (int, string) {
	c.t.Helper()
	resp := c.open(method, path, body, headers...)
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// open sends a request. The caller closes the body of the response.
func (c *caller) open(method, path, body string, headers ...string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.base+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodGet {
		req.Header.Set("Accept", "text/event-stream")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
		}
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(method, path, err)
	}
	return resp
}

// initialize begins a legacy session.
func (c *caller) initialize() *caller {
	c.t.Helper()
	resp := c.open(http.MethodPost, c.path, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if c.session = resp.Header.Get("Mcp-Session-Id"); c.session == "" {
		c.t.Fatalf("initialize: %d %s", resp.StatusCode, text)
	}
	if status, text := c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`); status != http.StatusAccepted {
		c.t.Fatal("initialized:", status, text)
	}
	return c
}

// headers are those of a session.
func (c *caller) headers() []string {
	if c.session == "" {
		return nil
	}
	return []string{"Mcp-Session-Id", c.session, "MCP-Protocol-Version", "2025-11-25"}
}

// say posts a message in the caller's session.
func (c *caller) say(text string) (int, string) {
	c.t.Helper()
	return c.do(http.MethodPost, c.path, text, c.headers()...)
}

// modernMeta is the _meta of a request of the modern era.
const modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
	`"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}},"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// modern returns the text and the headers of a request of the modern era. Params begin
// with a comma, or are empty.
func modern(id, method, name, params string) (string, []string) {
	headers := []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", method}
	if name != "" {
		headers = append(headers, "Mcp-Name", name)
	}
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{"_meta":{` + modernMeta + `}` + params + `}}`, headers
}

// ask posts a request of the modern era.
func (c *caller) ask(method, name, params string) (int, string) {
	c.t.Helper()
	text, headers := modern("1", method, name, params)
	return c.do(http.MethodPost, c.path, text, headers...)
}

// A feed is a response that comes bit by bit.
type feed struct {
	t      *testing.T
	body   io.Closer
	status int

	mu   sync.Mutex
	text strings.Builder
	over bool
}

// begin sends a request whose response is a feed.
func (c *caller) begin(method, path, body string, headers ...string) *feed {
	c.t.Helper()
	resp := c.open(method, path, body, headers...)
	f := &feed{t: c.t, body: resp.Body, status: resp.StatusCode}
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewReader(resp.Body)
		for {
			line, err := lines.ReadString('\n')
			f.mu.Lock()
			f.text.WriteString(line)
			f.over = err != nil
			f.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	c.t.Cleanup(func() {
		resp.Body.Close()
		<-done
	})
	return f
}

func (f *feed) all() (text string, over bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.String(), f.over
}

// await waits until the feed has a part, and returns all of it.
func (f *feed) await(part string) string {
	f.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		text, over := f.all()
		if strings.Contains(text, part) {
			return text
		}
		if over || time.Now().After(end) {
			f.t.Fatalf("no %q in %q (over: %v)", part, text, over)
		}
	}
}

// secretFile returns the path of a file that holds text.
func secretFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A journal is a log.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

// logTo returns a log of everything that goes to j.
func logTo(j *journal) *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Write implements [io.Writer].
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}
