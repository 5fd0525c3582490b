package remote

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const closed, unusable = jsonrpc.ReasonClosed, jsonrpc.ReasonInvalidResponse

// drop cuts the connection of a handler, as the death of a server does.
func drop(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		c.Close()
	}
}

func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name          string
		reason, cause string
		answer        func(w http.ResponseWriter, m *jsonrpc.Message)
	}{
		{"502", closed, "HTTP 502", func(w http.ResponseWriter, _ *jsonrpc.Message) { w.WriteHeader(502) }},
		{"302", closed, "HTTP 302", func(w http.ResponseWriter, _ *jsonrpc.Message) {
			w.Header().Set("Location", "http://other.invalid/")
			w.WriteHeader(302)
		}},
		{"307 to another host", closed, "HTTP 307", func(w http.ResponseWriter, _ *jsonrpc.Message) {
			w.Header().Set("Location", "http://other.invalid/?secret")
			w.WriteHeader(307)
		}},
		{"HTML", unusable, "neither JSON nor an event stream", func(w http.ResponseWriter, _ *jsonrpc.Message) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html>"+strings.Repeat("x", 1<<20))
		}},
		{"empty", unusable, "empty response", func(w http.ResponseWriter, _ *jsonrpc.Message) { w.WriteHeader(200) }},
		{"202", unusable, "empty response", func(w http.ResponseWriter, _ *jsonrpc.Message) { w.WriteHeader(202) }},
		{"empty JSON", unusable, "empty message", func(w http.ResponseWriter, _ *jsonrpc.Message) {
			w.Header().Set("Content-Type", "application/json")
		}},
		{"gzip", unusable, "compressed response", func(w http.ResponseWriter, _ *jsonrpc.Message) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			io.WriteString(w, "bomb")
		}},
		{"another id", unusable, "a response to another request", func(w http.ResponseWriter, _ *jsonrpc.Message) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"jsonrpc":"2.0","id":999,"result":{}}`)
		}},
		{"another id in a stream that stays open", unusable, "a response to another request", func(w http.ResponseWriter, _ *jsonrpc.Message) {
			stream(w, "data: {\"jsonrpc\":\"2.0\",\"id\":999,\"result\":{}}\n\n")
		}},
		{"request instead", unusable, "no response to the request", func(w http.ResponseWriter, _ *jsonrpc.Message) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `[]`[:0]+`{"jsonrpc":"2.0","method":"notifications/x"}`)
		}},
		{"broken reply in a stream", unusable, `"jsonrpc" is not "2.0"`, func(w http.ResponseWriter, m *jsonrpc.Message) {
			stream(w, fmt.Sprintf("data: {\"id\":%s,\"result\":{}}\n\n", m.ID))
		}},
		{"connection dropped", closed, "connection lost", func(w http.ResponseWriter, _ *jsonrpc.Message) { drop(w) }},
		{"stream dropped", closed, "connection lost", func(w http.ResponseWriter, _ *jsonrpc.Message) {
			stream(w, "data: {\"json")
			drop(w)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) { tt.answer(w, m) })
			c := connect(t, f)
			c.request(1, "tools/call", `{}`)
			m := c.recv()
			for m.Method == "notifications/x" {
				m = c.recv()
			}
			wantError(t, m, 1, tt.reason, tt.cause, jsonrpc.InFlight)
			if n := strings.Count(strings.Join(f.all(), " "), "tools/call"); n != 1 {
				t.Errorf("it was sent %d times", n)
			}
			c.request(2, "ping", "")
			wantResult(t, c.recv(), 2, `{}`) // the session goes on
		})
	}
}

// TestByteOrderMark: programs on .NET write one before what they answer.
func TestByteOrderMark(t *testing.T) {
	f := newFake(t)
	status := 200
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(status)
		io.WriteString(w, byteOrderMark)
		if status == 200 {
			w.Write(jsonrpc.NewResult(m.ID, raw(`{"ran":true}`)).Append(nil))
			return
		}
		w.Write(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -1, Message: "no"}).Append(nil))
	})
	c := connect(t, f)
	c.request(1, "tools/call", "")
	wantResult(t, c.recv(), 1, `{"ran":true}`)
	status = 400
	c.request(2, "tools/call", "")
	if m := c.recv(); m.ID != jsonrpc.IntID(2) || string(m.Error) != `{"code":-1,"message":"no"}` {
		t.Errorf("got %s", m.Append(nil))
	}
}

func TestErrorsOfTheServerPass(t *testing.T) {
	for _, body := range []string{`{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}`} {
		f := newFake(t)
		f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			io.WriteString(w, body)
		})
		c := connect(t, f)
		c.request(1, "tools/call", "")
		if m := c.recv(); m.ID != jsonrpc.IntID(1) || string(m.Error) != `{"code":-1,"message":"no"}` {
			t.Errorf("got %s", m.Append(nil))
		}
		c.close()
	}
}

func TestRedirectOnTheSameServer(t *testing.T) {
	f := newFake(t)
	f.any = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/" {
			return false
		}
		http.Redirect(w, r, "/mcp", http.StatusTemporaryRedirect)
		return true
	}
	c := connect(t, f)
	c.request(1, "ping", `{"x":1}`)
	wantResult(t, c.recv(), 1, `{}`)
}

func TestInitializeWithoutAnswer(t *testing.T) {
	tests := []struct {
		cause  string
		answer http.HandlerFunc
	}{
		{"HTTP 401", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }},
		{"HTTP 500", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }},
		{"HTTP 404", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }},
		{"HTTP 400", func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet { // endless, and no endpoint
				stream(w, "event: endpoint\ndata: http://other.invalid/\n\n")
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(400)
			io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no"}}`)
		}},
		{"invalid response", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }},
		{"invalid response", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Mcp-Session-Id", "a b")
			reply(w, &jsonrpc.Message{ID: jsonrpc.IntID(0)}, initResult)
		}},
		{"invalid response", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Mcp-Session-Id", strings.Repeat("x", 2000))
			reply(w, &jsonrpc.Message{ID: jsonrpc.IntID(0)}, initResult)
		}},
		{"connection lost", func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) // unread input would make it a reset
			drop(w)
		}},
	}
	for _, tt := range tests {
		f := newFake(t)
		f.any = func(w http.ResponseWriter, r *http.Request) bool { tt.answer(w, r); return true }
		s, _ := server(t, f.URL)
		c := dial(t, s)
		c.request(0, "initialize", initParams)
		c.Send(jsonrpc.NewNotification("notifications/initialized", nil)) // the end may have come
		c.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "ping", nil))
		if end := c.end(); end.Cause.String() != tt.cause || end.Delivered {
			t.Errorf("the end is %+v, want %s", end, tt.cause)
		}
		if err := c.Send(jsonrpc.NewNotification("x", nil)); err == nil {
			t.Error("Send succeeds after the end")
		}
		c.close()
	}
}

// deadAddress is one where nobody listens.
func deadAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestBeyondReach(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	secure.StartTLS()
	defer secure.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for url, cause := range map[string]string{
		"http://" + deadAddress(t) + "/?secret":         "connection refused",
		secure.URL:                                      "TLS handshake failed",
		"https" + strings.TrimPrefix(plain.URL, "http"): "TLS handshake failed",
		"http://no-such-host.invalid/":                  "no such host",
	} {
		s, l := server(t, url)
		c := dial(t, s)
		c.request(0, "initialize", initParams)
		end := c.end()
		if end.Cause.String() != cause && !(cause == "no such host" && end.Cause.String() == "name lookup failed") || end.Delivered {
			t.Errorf("the end is %+v, want %s", end, cause)
		}
		if strings.Contains(end.Error(), "secret") || l.String() != "" {
			t.Errorf("the end is %v, the log %s", end, l)
		}
		c.close()
	}
}

func TestServerDiesUnderRequests(t *testing.T) {
	const count = 200
	f := newFake(t)
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	s, l := server(t, f.URL)
	c := shaken(t, s)
	for i := range count {
		c.request(int64(i+1), "tools/call", "")
	}
	f.await("tools/call", count)
	f.Listener.Close()
	f.CloseClientConnections()
	seen := map[jsonrpc.ID]bool{}
	for range count {
		m := c.recv()
		if seen[m.ID] || !strings.Contains(string(m.Error), `"phase":"in_flight"`) {
			t.Fatalf("got %s", m.Append(nil))
		}
		seen[m.ID] = true
	}
	c.request(999, "ping", "")
	wantError(t, c.recv(), 999, closed, "connection refused", jsonrpc.NotSent)
	c.close()
	if n := l.sum("requests to the upstream failed"); n > 4 || !strings.Contains(l.String(), "requests=") {
		t.Errorf("%d lines:\n%s", n, l)
	}
}

func TestCredentials(t *testing.T) {
	f := newFake(t)
	var status atomic.Int64
	f.any = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost && status.Load() != 0 {
			w.WriteHeader(int(status.Load()))
			return true
		}
		return false
	}
	s, l := server(t, f.URL)
	c := shaken(t, s)
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
	for _, code := range []int{401, 403} {
		status.Store(int64(code))
		c.request(2, "ping", "")
		wantError(t, c.recv(), 2, closed, jsonrpc.HTTPCause(code).String(), jsonrpc.InFlight)
	}
	if l.sum("rejected the credentials") != 1 || l.sum("level=WARN") != 1 {
		t.Errorf("the log is %s", l)
	}
}

func TestFailedNotificationsAreNothing(t *testing.T) {
	f := newFake(t)
	f.handle("notifications/n", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) { w.WriteHeader(400) })
	s, l := server(t, f.URL)
	c := shaken(t, s)
	c.notify("notifications/n", "")
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
	c.close()
	if l.String() != "" {
		t.Errorf("the log is %s", l)
	}
}
