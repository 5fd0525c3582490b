package proxy_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// forwards makes a house's server get headers of clients: one that says who the user is, and one of
// each request.
func forwards(era string) func(*config.Config) {
	return func(cfg *config.Config) {
		cfg.Upstreams[0].Era = era
		cfg.Upstreams[0].ForwardHeaders = []config.ForwardedHeader{
			{From: "X-Request-Id", To: "X-Request-Id"}, {From: "X-User-Token", To: "Authorization", Identity: true},
		}
	}
}

const echo = `{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"echo","arguments":{"of":%q}}}`

// as returns a client of the principal a for one of its users.
func (h *house) as(user string) *caller {
	c := h.caller("token-of-a", "/mcp")
	c.client.Transport = withHeader{c.client.Transport, "X-User-Token", user}
	return c
}

// A withHeader adds a header to each request.
type withHeader struct {
	http.RoundTripper
	name, value string
}

func (x withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if r.Header.Get(x.name) == "" {
		r.Header.Set(x.name, x.value)
	}
	return x.RoundTripper.RoundTrip(r)
}

var sessionAtServer = regexp.MustCompile(`Mcp-Session-Id:\[([^\]]*)\]`)

// sessions returns the sessions at the server in which requests with these parts came.
func (s *naive) sessions(parts ...string) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.seen {
		if slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) }) {
			continue
		}
		if id := sessionAtServer.FindStringSubmatch(text); id != nil && !slices.Contains(all, id[1]) {
			all = append(all, id[1])
		}
	}
	return all
}

// onlyForwarded checks all that came to the server: each request has the header of a user, and none the
// token for the proxy, or the name of the header that the client sent.
func (s *naive) onlyForwarded() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, text := range s.seen {
		if !strings.Contains(text, "Authorization:[Bearer alice]") && !strings.Contains(text, "Authorization:[Bearer bob]") {
			s.t.Error("no user:", text)
		}
		if strings.Contains(text, "token-of-a") || strings.Contains(text, "X-User-Token") {
			s.t.Error("not for the server:", text)
		}
	}
}

// Each request at the server has the headers of the client's request, whatever eras both speak, and two
// users behind one principal have nothing in common.
func TestForwardHeaders(t *testing.T) {
	for _, era := range []string{"", "legacy", "modern"} {
		t.Run("legacy client, era "+era, func(t *testing.T) {
			h := newHouse(t, forwards(era))
			alice, bob := h.as("Bearer alice").initialize(), h.as("Bearer bob").initialize()
			for id, c := range map[string]*caller{"11": alice, "12": bob, "13": alice} {
				of := map[*caller]string{alice: "alice", bob: "bob"}[c]
				status, text := c.do("POST", "/mcp", fmt.Sprintf(echo, id, of), append(c.headers(), "X-Request-Id", "r"+id)...)
				if status != http.StatusOK {
					t.Fatal(status, text)
				}
				if h.server.saw("tools/call", "Authorization:[Bearer "+of+"]", "X-Request-Id:[r"+id+"]", `"of":"`+of+`"`) != 1 {
					t.Errorf("request %s: the headers did not come: %q", id, h.server.seen)
				}
			}
			if status, _ := bob.do("POST", "/mcp", fmt.Sprintf(echo, "14", "stolen"), alice.headers()...); status != http.StatusNotFound {
				t.Error("another user in the session: HTTP", status)
			}
			if status, _ := bob.do("DELETE", "/mcp", "", alice.headers()...); status != http.StatusNotFound {
				t.Error("another user ends the session: HTTP", status)
			}
			alice.do("DELETE", "/mcp", "", alice.headers()...)
			h.proxy.Close()
			h.server.onlyForwarded()
			a, b := h.server.sessions("Bearer alice"), h.server.sessions("Bearer bob")
			if era != "modern" && (len(a) != 1 || len(b) != 1 || a[0] == b[0]) {
				t.Errorf("sessions of alice %q, of bob %q", a, b)
			}
			if strings.Contains(h.log.String(), "Bearer") {
				t.Error("the log has a token:", h.log)
			}
		})
		t.Run("modern client, era "+era, func(t *testing.T) {
			h := newHouse(t, forwards(era))
			for i, user := range []string{"alice", "bob", "alice", "bob"} {
				text, headers := modern(fmt.Sprint(i), "tools/call", "echo", `,"name":"echo","arguments":{"of":"`+user+`"}`)
				status, text := h.as("Bearer "+user).do("POST", "/mcp", text, append(headers, "X-Request-Id", fmt.Sprint("r", i))...)
				if status != http.StatusOK {
					t.Fatal(status, text)
				}
				if h.server.saw("tools/call", "Authorization:[Bearer "+user+"]", fmt.Sprint("X-Request-Id:[r", i, "]"), `"of":"`+user+`"`) != 1 {
					t.Errorf("request %d: the headers did not come: %q", i, h.server.seen)
				}
			}
			h.proxy.Close()
			h.server.onlyForwarded()
			a, b := h.server.sessions("Bearer alice"), h.server.sessions("Bearer bob")
			if era == "legacy" && (len(a) != 1 || len(b) != 1 || a[0] == b[0]) {
				t.Errorf("sessions of alice %q, of bob %q", a, b)
			}
		})
		t.Run("WebSocket, era "+era, func(t *testing.T) {
			h := newHouse(t, forwards(era))
			header := http.Header{"Authorization": {"Bearer token-of-a"}, "X-User-Token": {"Bearer alice"}, "X-Request-Id": {"handshake"}}
			ws, err := wsconn.Config{}.Dial(t.Context(), strings.Replace(h.url, "http", "ws", 1)+"/ws", header, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer ws.Close()
			legacy := fmt.Sprintf(echo, "2", "alice")
			newer, _ := modern("3", "tools/call", "echo", `,"name":"echo","arguments":{"of":"alice"}`)
			for i, text := range []string{
				`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
				legacy, newer,
			} {
				m, _ := jsonrpc.Decode([]byte(text))
				if err := ws.Send(m); err != nil {
					t.Fatal(err)
				}
				if answer, err := ws.Recv(); err != nil || answer.Result == nil {
					t.Fatal(i, answer, err)
				}
			}
			if n := h.server.saw("tools/call", "Authorization:[Bearer alice]", "X-Request-Id:[handshake]"); n != 2 {
				t.Errorf("%d calls with the headers of the handshake, want 2: %q", n, h.server.seen)
			}
			h.server.onlyForwarded()
		})
	}
}

// Two users behind one principal get their own lists, and no other session learns from them, though there
// are several upstreams.
func TestForwardHeadersOfLists(t *testing.T) {
	other := newNaive(t)
	h := newHouse(t, func(cfg *config.Config) {
		forwards("")(cfg)
		cfg.Upstreams = append(cfg.Upstreams, config.Upstream{Name: "other", Remote: config.Remote{URL: other.URL}})
	})
	for i, user := range []string{"alice", "bob"} {
		c := h.as("Bearer " + user).initialize()
		_, text := c.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, append(c.headers(), "X-Request-Id", fmt.Sprint("l", i))...)
		if !strings.Contains(text, "u__echo") || h.server.saw(`"tools/list"`, "Bearer "+user, fmt.Sprint("X-Request-Id:[l", i, "]")) != 1 {
			t.Errorf("the list of %s, legacy: %s %q", user, text, h.server.seen)
		}
		ask, headers := modern("1", "tools/list", "", "")
		_, text = h.as("Bearer "+user).do("POST", "/mcp", ask, append(headers, "X-Request-Id", fmt.Sprint("m", i))...)
		if !strings.Contains(text, "u__echo") || h.server.saw(`"tools/list"`, "Bearer "+user, fmt.Sprint("X-Request-Id:[m", i, "]")) != 1 {
			t.Errorf("the list of %s, modern: %s %q", user, text, h.server.seen)
		}
	}
	h.server.onlyForwarded()
	if other.saw("Bearer") > 0 || other.saw("X-Request-Id") > 0 {
		t.Errorf("the other server got headers: %q", other.seen)
	}
}

// Headers that cannot be forwarded are refused.
func TestForwardHeadersRefused(t *testing.T) {
	h := newHouse(t, forwards(""))
	for name, want := range map[string]struct {
		value  string
		status int
	}{
		"too long":           {strings.Repeat("x", 17<<10), http.StatusRequestHeaderFieldsTooLarge},
		"odd characters":     {"\xff", http.StatusBadRequest},
		"nobody needs to be": {"", http.StatusOK},
	} {
		c := h.caller("token-of-a", "/mcp")
		text, headers := modern("1", "tools/call", "echo", `,"name":"echo"`)
		if status, text := c.do("POST", "/mcp", text, append(headers, "X-Request-Id", want.value)...); status != want.status {
			t.Errorf("%s: %d %s, want %d", name, status, text, want.status)
		}
	}
	long := strings.Repeat(`<"\`, 5<<10)
	text, headers := modern("1", "tools/call", "echo", `,"name":"echo"`)
	if status, text := h.as(long).do("POST", "/mcp", text, headers...); status != http.StatusOK || h.server.saw("tools/call", long) != 1 {
		t.Errorf("a token of 15 KiB: %d %s", status, text)
	}
}

// A task of one user is unknown to another behind the same principal, even if the proxy has one token only.
func TestForwardHeadersOfTasks(t *testing.T) {
	h := newHouse(t, func(cfg *config.Config) {
		forwards("modern")(cfg)
		cfg.Auth = config.Auth{}
		cfg.TokenFile = secretFile(t, "token-of-a")
	})
	if _, text := h.as("Bearer alice").ask("tools/call", "task", `,"name":"task"`); !strings.Contains(text, "task-1") {
		t.Fatal(text)
	}
	if _, text := h.as("Bearer alice").ask("tasks/get", "task-1", `,"taskId":"task-1"`); !strings.Contains(text, "SECRET") {
		t.Error("alice:", text)
	}
	if _, text := h.as("Bearer bob").ask("tasks/get", "task-1", `,"taskId":"task-1"`); strings.Contains(text, "SECRET") {
		t.Error("bob:", text)
	}
}

// A reload applies other headers. A session whose client sends one that says now who the user is ends.
func TestForwardHeadersReload(t *testing.T) {
	var cfg config.Config
	h := newHouse(t, func(c *config.Config) { cfg = *c })
	alice := h.as("Bearer alice").initialize()
	if status, text := alice.say(fmt.Sprintf(echo, "1", "before")); status != http.StatusOK || h.server.saw("Bearer alice") > 0 {
		t.Fatal(status, text)
	}
	cfg.Upstreams = slices.Clone(cfg.Upstreams)
	forwards("")(&cfg)
	if err := h.proxy.Reload(&cfg); err != nil {
		t.Fatal(err)
	}
	if status, _ := alice.say(fmt.Sprintf(echo, "2", "of nobody")); status != http.StatusNotFound {
		t.Error("the session of nobody goes on: HTTP", status)
	}
	alice.initialize()
	if status, text := alice.say(fmt.Sprintf(echo, "3", "after")); status != http.StatusOK || h.server.saw("tools/call", "Bearer alice") != 1 {
		t.Error(status, text)
	}
}

// socket serves a client of the server on a WebSocket.
func (s *naive) socket(w http.ResponseWriter, r *http.Request) {
	ws, err := wsconn.Config{}.Accept(w, r, nil)
	if err != nil {
		return
	}
	s.sockets.Go(func() {
		defer ws.Close()
		for {
			m, err := ws.Recv()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.seen = append(s.seen, fmt.Sprint("WebSocket ", r.Header, " ", string(m.Append(nil))))
			s.mu.Unlock()
			if m.IsRequest() {
				if m.Method == "tools/call" {
					_ = ws.Send(jsonrpc.NewNotification("notifications/message", []byte(`{"level":"info","data":"of no request"}`)))
				}
				answer := httptest.NewRecorder()
				s.answer(answer, r, m)
				reply, _ := jsonrpc.Decode(answer.Body.Bytes())
				_ = ws.Send(reply)
			}
		}
	})
}

// A server on a WebSocket gets the headers with its handshake. Two users behind one principal have
// different connections, and each user has one, whatever else its requests carry. What names no request
// there belongs to the only one.
func TestForwardHeadersToAWebSocket(t *testing.T) {
	handshakes := regexp.MustCompile(`Sec-Websocket-Key:\[([^\]]*)\]`)
	for _, era := range []string{"legacy", "modern"} {
		for _, client := range []string{"legacy", "modern"} {
			t.Run(client+" client, era "+era, func(t *testing.T) {
				h := newHouse(t, func(cfg *config.Config) {
					forwards(era)(cfg)
					cfg.Upstreams[0].URL = strings.Replace(cfg.Upstreams[0].URL, "http", "ws", 1)
				})
				users := map[string]*caller{"alice": h.as("Bearer alice"), "bob": h.as("Bearer bob")}
				for i, user := range []string{"alice", "bob", "alice", "bob"} {
					c, id := users[user], []string{"X-Request-Id", fmt.Sprint("r", i)}
					text, headers := modern(fmt.Sprint(i), "tools/call", "echo", `,"name":"echo","arguments":{"of":"`+user+`"}`)
					text = strings.Replace(text, `"_meta":{`, `"_meta":{"io.modelcontextprotocol/logLevel":"info",`, 1)
					if client == "legacy" {
						if i < 2 {
							c.client.Transport = withHeader{c.client.Transport, "X-Request-Id", fmt.Sprint("r", i)}
							c.initialize()
						}
						text, headers = fmt.Sprintf(echo, fmt.Sprint(10+i), user), c.headers()
					}
					if status, text := c.do("POST", "/mcp", text, append(headers, id...)...); status != http.StatusOK || !strings.Contains(text, "of no request") {
						t.Error(status, text)
					}
				}
				h.proxy.Close()
				h.server.onlyForwarded()
				var keys []string
				for user, first := range map[string]string{"alice": "r0", "bob": "r1"} {
					parts := []string{`WebSocket `, `"tools/call"`, "Authorization:[Bearer " + user + "]", "X-Request-Id:[" + first + "]", `"of":"` + user + `"`}
					if n := h.server.saw(parts...); n != 2 {
						t.Errorf("%d calls of %s with the headers of its first request, want 2: %q", n, user, h.server.seen)
					}
				}
				for _, text := range h.server.seen {
					if key := handshakes.FindString(text); strings.Contains(text, `"tools/call"`) && !slices.Contains(keys, key) {
						keys = append(keys, key)
					}
				}
				if len(keys) != 2 {
					t.Errorf("%d connections for two users", len(keys))
				}
			})
		}
	}
}
