package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
)

// answering is a router to a process that answers each request with its method as the result, with
// the id last.
func answering(t *testing.T, batches bool) *router {
	t.Helper()
	requests, in := io.Pipe()
	out, answers := io.Pipe()
	go func() {
		for lines := bufio.NewScanner(requests); lines.Scan(); {
			e, err := read(lines.Bytes())
			if err != nil {
				t.Error(err)
			}
			if e.end > 0 {
				fmt.Fprintf(answers, "{\"result\":%q,\"id\":%s}\n", e.method, lines.Bytes()[e.start:e.end])
			}
		}
		answers.Close()
	}()
	t.Cleanup(func() { in.Close() })
	r, err := newRouter(in, out, batches)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const (
	request = `{"jsonrpc":"2.0","params":{"id":3},"method":"ping","id":"a"}`
	answer  = `{"result":"ping","id":"a"}`
)

func TestStdio(t *testing.T) {
	for _, batches := range []bool{false, true} {
		in, client := io.Pipe()
		answers, out := io.Pipe()
		r := answering(t, batches)
		go r.stdio(in, out)
		go io.WriteString(client, strings.Repeat(request+"\n", 100))
		lines := bufio.NewScanner(answers)
		for range 100 {
			if !lines.Scan() || lines.Text() != answer {
				t.Fatalf("got %q, want %q", lines.Text(), answer)
			}
		}
		client.Close()
	}
}

func TestWebSocket(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(answering(t, false).webSocket))
	defer server.Close()
	c, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(server.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.WriteMessage(websocket.TextMessage, []byte(request)); err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.ReadMessage(); err != nil || string(got) != answer {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestHTTP(t *testing.T) {
	near := httptest.NewServer(http.HandlerFunc(answering(t, false).http))
	defer near.Close()
	far := httptest.NewServer(forwarder(near.URL))
	defer far.Close()
	for _, url := range []string{near.URL, far.URL} {
		for _, c := range []struct {
			text, want string
			status     int
		}{
			{request, answer, http.StatusOK},
			{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "", http.StatusAccepted},
			{`{"jsonrpc`, "unexpected EOF", http.StatusBadRequest},
		} {
			resp, err := http.Post(url, "application/json", strings.NewReader(c.text))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != c.status || !strings.Contains(string(got), c.want) {
				t.Errorf("%s: %d %q, %v", c.text, resp.StatusCode, got, err)
			}
		}
	}
}

func TestRing(t *testing.T) {
	a, b := ring()
	text := strings.Repeat("0123456789abcdef", 20_000) // more than it holds
	go func() {
		io.WriteString(a, text)
		a.Close()
	}()
	if got, err := io.ReadAll(b); err != nil || string(got) != text {
		t.Errorf("%d of %d bytes, %v", len(got), len(text), err)
	}
}
