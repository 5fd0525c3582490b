package frontend

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
)

// A client that closes its half of the connection after a request gets the answer that is there at once, or the end
// of the connection: never a success without an answer.
func TestHalfClosed(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.ServePrincipal = principal(echo) })
	modern := ts.at("/mcp")
	legacy := ts.connect("2025-06-18")
	for name, tt := range map[string]struct {
		request *http.Request
		want    string
	}{
		"legacy":        {legacy.request(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"echo"}`), `"id":1,"result"`},
		"legacy, later": {legacy.request(http.MethodPost, `{"jsonrpc":"2.0","id":2,"method":"never"}`), ""},
		"modern, later": {modern.modern("1", "never", ""), ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := tt.request.Write(conn); err != nil {
				t.Fatal(err)
			}
			if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), tt.request)
			if err != nil { // on a busy machine also where the answer would come at once
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			if tt.want == "" || !strings.Contains(string(body), tt.want) {
				t.Errorf("%s: %q", resp.Status, body)
			}
		})
	}
}

// Nor does an event stream that began before look complete.
func TestHalfClosedStream(t *testing.T) {
	ts := newTestServer(t, nil)
	request := ts.connect("2025-06-18").request(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"never"}`)
	conn, err := net.Dial("tcp", strings.TrimPrefix(ts.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := request.Write(conn); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("a complete response: %q", body)
	}
}

// A POST whose client seems to have left gets an answer that is there within plainWait: it may still read.
func TestAnswerToAGoneClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newBubbleServer(t, nil)
		c := ts.connect("2025-06-18")
		gone, leave := context.WithCancel(t.Context())
		leave()
		to := c.request(http.MethodPost, ping)
		r := httptest.NewRequest(http.MethodPost, to.URL.String(), to.Body).WithContext(gone)
		r.Header = to.Header
		w := httptest.NewRecorder()
		ts.HTTP.ServeHTTP(w, r)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"result"`) {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	})
}
