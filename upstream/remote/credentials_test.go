package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// rotating are credentials of which a test says what they do. By default each token is
// followed by another one when it is refused.
type rotating struct {
	mu        sync.Mutex
	number    int
	refused   int
	authorize func(ctx context.Context) error
	refuse    func(ctx context.Context, resp *http.Response) (bool, error)
}

func (c *rotating) Authorize(ctx context.Context, header http.Header) error {
	c.mu.Lock()
	authorize := c.authorize
	c.mu.Unlock()
	if authorize != nil {
		if err := authorize(ctx); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	header.Set("Authorization", fmt.Sprint("Bearer t", c.number))
	return nil
}

func (c *rotating) Refused(ctx context.Context, resp *http.Response, sent http.Header) (bool, error) {
	c.mu.Lock()
	c.refused++
	if sent.Get("Authorization") == fmt.Sprint("Bearer t", c.number) {
		c.number++
	}
	refuse := c.refuse
	c.mu.Unlock()
	if refuse != nil {
		return refuse(ctx, resp)
	}
	return true, nil
}

// times returns how often the server has refused us.
func (c *rotating) times() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

// A guard lets each token be used once, so that every request is refused at first. It
// holds each request to be the same again.
type guard struct {
	t *testing.T

	mu    sync.Mutex
	used  map[string]bool
	asked map[string][]string // what was refused and has not come again, by the token that it carried
	let   []string            // what was let in
}

func newGuard(t *testing.T) *guard {
	return &guard{t: t, used: map[string]bool{"": true, "Bearer t0": true}, asked: map[string][]string{}}
}

// refuses answers a request that is not let in.
func (g *guard) refuses(w http.ResponseWriter, r *http.Request) bool {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	own := r.Header.Clone()
	own.Del("Authorization")
	own.Del("Sec-Websocket-Key")
	what := fmt.Sprint(r.Method, r.URL, own, string(body))
	token := r.Header.Get("Authorization")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.used[token] {
		g.asked[what] = append(g.asked[what], token)
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	g.used[token] = true
	if len(g.asked[what]) == 0 {
		g.t.Errorf("%s was not refused at first, or has changed", what)
	}
	delete(g.asked, what)
	method := ""
	if m, err := jsonrpc.Decode(body); err == nil {
		method = m.Method
	}
	g.let = append(g.let, strings.TrimSpace(r.Method+" "+r.Header.Get("Last-Event-Id")+method))
	return false
}

func (g *guard) all() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(slices.Values(g.let))
}

// Whatever is sent on HTTP carries our credentials, and is sent again with better ones.
func TestCredentialsOfSessions(t *testing.T) {
	g, f := newGuard(t), newFake(t)
	f.any = g.refuses
	f.get = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Last-Event-Id") == "" {
			stream(w, `data: {"jsonrpc":"2.0","id":"q","method":"roots/list"}`+"\n\n")
			block(r)
			return
		}
		stream(w, "data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n")
	}
	f.handle("resumed", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		stream(w, "id: 7\nretry: 10\ndata: \n\n")
	})
	s, l := server(t, f.URL)
	s.Credentials = &rotating{}
	c := shaken(t, s)
	if m := c.recv(); m.Method != "roots/list" {
		t.Errorf("got %s", m.Append(nil))
	}
	q, _ := jsonrpc.ParseID([]byte(`"q"`))
	c.send(jsonrpc.NewResult(q, []byte(`{}`)))
	f.await(`response "q"`, 1)
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
	c.request(2, "resumed", "")
	wantResult(t, c.recv(), 2, `{}`)
	c.close()
	want := []string{"DELETE", "GET", "GET 7", "POST", "POST initialize", "POST notifications/initialized", "POST ping", "POST resumed"}
	if got := g.all(); !slices.Equal(got, want) || len(g.asked) > 0 {
		t.Errorf("let in: %q, refused for good: %q", got, g.asked)
	}
	if l.sum("level=WARN") > 0 {
		t.Errorf("the log is %s", l)
	}
}

// So does what is sent in the modern era.
func TestCredentialsOfModernStreams(t *testing.T) {
	g, f := newGuard(t), newFake(t)
	f.any = g.refuses
	f.handle("server/discover", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		reply(w, m, `{"supportedVersions":["2026-07-28"],"capabilities":{},"serverInfo":{"name":"x","version":"1"}}`)
	})
	s, _ := server(t, f.URL)
	s.Credentials = &rotating{}
	if modern, err := s.Probe(t.Context()); !modern || err != nil {
		t.Errorf("Probe: %v, %v", modern, err)
	}
	c := dialModern(t, s)
	c.request(1, "tools/call", params(`"name":"x"`))
	wantResult(t, c.recv(), 1, `{}`)
	c.notify("notifications/x", "")
	f.await("notifications/x", 1)
	c.close()
	want := []string{"POST notifications/x", "POST server/discover", "POST tools/call", "POST tools/list"}
	if got := g.all(); !slices.Equal(got, want) {
		t.Errorf("let in: %q", got)
	}
}

// So does HTTP+SSE, also where it is only found out.
func TestCredentialsOfSSE(t *testing.T) {
	for _, only := range []bool{false, true} {
		f, out := newOldFake(t)
		g, old := newGuard(t), f.any
		f.any = func(w http.ResponseWriter, r *http.Request) bool { return g.refuses(w, r) || old(w, r) }
		s, _ := server(t, f.URL)
		s.SSE, s.Credentials = only, &rotating{}
		c := shaken(t, s)
		c.request(1, "ping", "")
		wantResult(t, c.recv(), 1, `{}`)
		c.close()
		close(out)
		for _, want := range []string{"GET", "POST initialize", "POST ping"} {
			if !slices.Contains(g.all(), want) {
				t.Errorf("SSE %v: let in: %q", only, g.all())
			}
		}
	}
}

// So does the request for a WebSocket, of either era.
func TestCredentialsOfWebSockets(t *testing.T) {
	g := newGuard(t)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.refuses(w, r) {
			return
		}
		if c, err := (wsconn.Config{}).Accept(w, r, nil); err == nil {
			go func() { // the other end closes
				defer c.Close()
				for m, err := c.Recv(); err == nil; m, err = c.Recv() {
					_ = c.Send(jsonrpc.NewResult(m.ID, []byte(`{}`)))
				}
			}()
		}
	}))
	defer web.Close()
	s, l := server(t, "ws"+strings.TrimPrefix(web.URL, "http"))
	s.Credentials = &rotating{}
	for _, dial := range []func(context.Context) (jsonrpc.Conn, error){s.Dial, s.DialModern} {
		conn, err := dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := &client{conn, t}
		c.request(1, "ping", "")
		wantResult(t, c.recv(), 1, `{}`)
		c.close()
	}
	if _, err := s.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if n := s.Credentials.(*rotating).times(); n != 3 || l.String() != "" {
		t.Errorf("refused %d times, the log is %s", n, l)
	}
}

// A server that refuses whatever it is shown rejected our credentials, even if it asks for
// OAuth: that is what it was shown. There are a few attempts, and no loop.
func TestCredentialsRefused(t *testing.T) {
	for _, tt := range []struct {
		again bool
		posts int
	}{{true, 1 + maxProofs}, {false, 1}} {
		f := newFake(t)
		s, l := server(t, f.URL)
		creds := &rotating{refuse: func(context.Context, *http.Response) (bool, error) { return tt.again, nil }}
		s.Credentials = creds
		c := shaken(t, s)
		f.await("notifications/initialized", 1)
		posts := 0
		f.mu.Lock()
		f.any = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost {
				posts++
				refuseWith(w, 401, []string{oauthChallenge}, "")
			}
			return r.Method == http.MethodPost
		}
		f.mu.Unlock()
		c.request(1, "ping", "")
		if e := parseError(c.recv()); e.Message != "Connection closed: up rejected our credentials (HTTP 401)" || e.Data.Retryable {
			t.Errorf("got %+v", e)
		}
		if posts != tt.posts {
			t.Errorf("%d attempts", posts)
		}
		c.close()
		if l.sum("level=WARN") != 1 || l.sum("upstream rejected the credentials") != 1 {
			t.Errorf("the log is %s", l)
		}
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { refuseWith(w, 401, []string{oauthChallenge}, "") }))
		socket, _ := server(t, "ws"+strings.TrimPrefix(web.URL, "http"))
		creds = &rotating{refuse: creds.refuse}
		socket.Credentials = creds
		_, err := socket.Dial(t.Context())
		if end := jsonrpc.EndOf(err, jsonrpc.Cause{}); end.Says != "rejected our credentials (HTTP 401)" || !end.Lasting || creds.times() > maxProofs {
			t.Errorf("WebSocket: %+v after %d times", end, creds.times())
		}
		web.Close()
	}
}

// A refusal that does not end holds nothing up.
func TestEndlessRefusal(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s, _ := server(t, f.URL)
	s.Credentials = &rotating{}
	c := shaken(t, s)
	f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		if r.Header.Get("Authorization") != "Bearer t0" {
			reply(w, m, `{}`)
			return
		}
		w.WriteHeader(401)
		io.WriteString(w, "because")
		http.NewResponseController(w).Flush()
		block(r)
	})
	c.request(1, "tools/call", params(`"name":"x"`))
	wantResult(t, c.recv(), 1, `{}`)
}

// A refusal that is the answer to a request reaches the client, as it does without
// credentials.
func TestRefusalIsAnAnswer(t *testing.T) {
	f := newFake(t)
	s, _ := server(t, f.URL)
	s.Credentials = &rotating{refuse: func(context.Context, *http.Response) (bool, error) { return false, nil }}
	c := shaken(t, s)
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		refuseWith(w, 403, nil, `{"jsonrpc":"2.0","id":`+m.ID.String()+`,"error":{"code":-5,"message":"not you"}}`)
	})
	c.request(1, "tools/call", params(`"name":"x"`))
	if m := c.recv(); string(m.Error) != `{"code":-5,"message":"not you"}` {
		t.Errorf("got %s", m.Append(nil))
	}
}

// Without credentials a request is not sent, and its error says why.
func TestNoCredentials(t *testing.T) {
	login := jsonrpc.LoginNeeded("mcp-proxy login docs", errors.New("no token is kept"))
	for _, tt := range []struct {
		err       error
		message   string
		cause     string
		retryable bool
		log       string
	}{
		{login, " needs a login: mcp-proxy login docs", "login needed", false, "upstream needs a login"},
		{errors.New("broken"), ": authentication failed: no token from the authorization server (no token)", "no token", true, "requests to the upstream failed"},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.cause, " late ", late), func(t *testing.T) {
				f := newFake(t)
				s, l := server(t, f.URL)
				creds := &rotating{}
				s.Credentials = creds
				c := shaken(t, s)
				f.await("notifications/initialized", 1)
				if late { // once the server has refused it
					f.mu.Lock()
					f.any = func(w http.ResponseWriter, r *http.Request) bool {
						if r.Method == http.MethodPost {
							w.WriteHeader(401)
						}
						return r.Method == http.MethodPost
					}
					f.mu.Unlock()
					creds.mu.Lock()
					creds.refuse = func(context.Context, *http.Response) (bool, error) { return false, tt.err }
					creds.mu.Unlock()
				} else {
					creds.mu.Lock()
					creds.authorize = func(context.Context) error { return tt.err }
					creds.mu.Unlock()
				}
				for id := range int64(3) {
					c.request(id+1, "ping", "")
					e := parseError(c.recv())
					if e.Message != "Connection closed: up"+tt.message || e.Data.Cause.String() != tt.cause || e.Data.Retryable != (tt.retryable && !late) || !jsonrpc.IsEvent(e.Data.Event) {
						t.Errorf("got %+v", e)
					}
				}
				if slices.Contains(f.all(), "ping") {
					t.Error("the server has seen a request")
				}
				c.close()
				if l.sum("level=WARN") != 1 || l.sum(tt.log) != 1 {
					t.Errorf("the log is %s", l)
				}
			})
		}
	}
}

// A token goes to the server that is configured, and nowhere else.
func TestTokenStaysOnItsOrigin(t *testing.T) {
	other := newFake(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, modern := range []bool{false, true} {
			f := newFake(t)
			s, _ := server(t, f.URL)
			s.Credentials = &rotating{}
			connect := map[bool]func(*testing.T, *Server) *client{false: shaken, true: dialModern}
			c := connect[modern](t, s)
			f.mu.Lock()
			f.any = func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("Location", other.URL+"/mcp")
				w.WriteHeader(status)
				return true
			}
			f.mu.Unlock()
			c.request(1, "ping", params(""))
			if m := c.recv(); m.Error == nil {
				t.Errorf("%d: got %s", status, m.Append(nil))
			}
			c.close() // with a DELETE
			if _, err := s.Probe(t.Context()); err == nil {
				t.Errorf("%d: the probe succeeds", status)
			}
		}
	}
	if seen := other.all(); len(seen) > 0 {
		t.Errorf("the other server has seen %q", seen)
	}
}

// Within the origin a token goes along.
func TestTokenFollowsRedirect(t *testing.T) {
	g, f := newGuard(t), newFake(t)
	f.any = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/mcp", http.StatusTemporaryRedirect)
			return true
		}
		return g.refuses(w, r)
	}
	s, _ := server(t, f.URL)
	s.Credentials = &rotating{}
	c := shaken(t, s)
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
}

// A call that waits for a token, or for a better one, is taken back when it is cancelled:
// the server hears nothing of it.
func TestCancelWhileWaitingForToken(t *testing.T) {
	t.Parallel()
	for _, modern := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			f := newFake(t)
			s, _ := server(t, f.URL)
			creds := &rotating{}
			s.Credentials = creds
			connect := map[bool]func(*testing.T, *Server) *client{false: shaken, true: dialModern}
			c := connect[modern](t, s)
			if !modern {
				f.await("notifications/initialized", 1)
			}
			waiting, open := make(chan struct{}, 1), make(chan struct{})
			wait := func(ctx context.Context) error {
				waiting <- struct{}{}
				select {
				case <-open:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if late {
				f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) { w.WriteHeader(401) })
				creds.mu.Lock()
				creds.refuse = func(ctx context.Context, _ *http.Response) (bool, error) { return true, wait(ctx) }
				creds.mu.Unlock()
			} else {
				creds.mu.Lock()
				creds.authorize = wait
				creds.mu.Unlock()
			}
			c.request(1, "tools/call", params(`"name":"x"`))
			<-waiting
			c.cancel(1)
			if !late {
				creds.mu.Lock()
				creds.authorize = nil
				creds.mu.Unlock()
			}
			c.request(2, "ping", params(""))
			wantResult(t, c.recv(), 2, `{}`)
			close(open)
			c.close()
			seen := f.all()
			if n := len(slices.DeleteFunc(slices.Clone(seen), func(s string) bool { return s != "tools/call" })); n != map[bool]int{false: 0, true: 1}[late] || slices.Contains(seen, "notifications/cancelled") {
				t.Errorf("modern %v, late %v: the server has seen %q", modern, late, seen)
			}
		}
	}
}

// BenchmarkCall is a call with and without credentials.
func BenchmarkCall(b *testing.B) {
	for _, with := range []bool{false, true} {
		b.Run(fmt.Sprint("credentials ", with), func(b *testing.B) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				text, _ := io.ReadAll(r.Body)
				m, _ := jsonrpc.Decode(text)
				reply(w, m, `{}`)
			}))
			defer web.Close()
			s := &Server{Name: "up", URL: web.URL}
			if with {
				s.Credentials = &rotating{}
			}
			c, err := s.DialModern(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			defer c.Close()
			b.ReportAllocs()
			for id := int64(0); b.Loop(); id++ {
				_ = c.Send(jsonrpc.NewRequest(jsonrpc.IntID(id), "ping", []byte(params(""))))
				if _, err := c.Recv(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
