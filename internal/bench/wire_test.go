package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// respond is the server of these tests: what it returns for a call has the size
// that was asked for.
func respond(t *testing.T, msg []byte) []byte {
	var call struct {
		ID     *int
		Method string
		Params struct{ Arguments struct{ Size int } }
	}
	if err := json.Unmarshal(msg, &call); err != nil {
		t.Errorf("message %q: %v", msg, err)
	}
	if call.ID == nil {
		return nil
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"result":{"text":%q}}`,
		*call.ID, strings.Repeat("x", call.Params.Arguments.Size))
}

// converse tries a connection as the benchmark uses it, with n callers.
func converse(t *testing.T, c *conn, n int) {
	t.Helper()
	s := &session{}
	first := s.add(c)
	defer s.readers.Wait()
	defer c.w.Close()
	if err := first.initialize(); err != nil {
		t.Fatal(err)
	}
	if err := first.initialized(); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 200, 60_000, 70_000, big} {
		if err := first.call(size); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
	}
	for len(s.callers) < n {
		s.callers = append(s.callers, c.caller(s.nextID))
	}
	if l, err := s.together(10 * time.Millisecond); err != nil || l.perSecond <= 0 {
		t.Errorf("%v calls per second, %v", l.perSecond, err)
	}
}

func TestLine(t *testing.T) {
	requests, in, err := os.Pipe() // which has room for many requests, as those of a server
	if err != nil {
		t.Fatal(err)
	}
	out, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(requests); lines.Scan(); {
			if answer := respond(t, lines.Bytes()); answer != nil {
				answers.Write(append(answer, '\n'))
			}
		}
	}()
	converse(t, newConn(&lineWire{}, out, in, ample), width)
	<-done
}

func TestWebSocket(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := (&websocket.Upgrader{WriteBufferSize: 4096}).Upgrade(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.Close()
		for {
			_, msg, err := ws.ReadMessage()
			if err != nil {
				return
			}
			if answer := respond(t, msg); answer != nil {
				writeFragments(ws, answer)
			}
		}
	}))
	defer server.Close()
	c, err := dialWebSocket(server.Listener.Addr().String(), "/ws", ample)
	if err != nil {
		t.Fatal(err)
	}
	converse(t, c, width)
}

// writeFragments sends msg in frames of 4096 bytes, after a ping.
func writeFragments(ws *websocket.Conn, msg []byte) {
	ws.WriteControl(websocket.PingMessage, []byte("ping"), time.Now().Add(time.Second))
	w, err := ws.NextWriter(websocket.TextMessage)
	if err != nil {
		return
	}
	for len(msg) > 0 {
		n, _ := w.Write(msg[:min(len(msg), 1000)])
		msg = msg[n:]
	}
	w.Close()
}

func TestHTTP(t *testing.T) {
	answers := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		msg, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if answers++; answers > 1 && r.Header.Get("Mcp-Session-Id") != "s" {
			t.Errorf("request %d outside of the session", answers)
		}
		w.Header().Set("Mcp-Session-Id", "s")
		switch answer := respond(t, msg); {
		case answer == nil:
			w.WriteHeader(http.StatusAccepted)
		case answers%2 == 0: // as an event, chunked
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "id: 1\ndata: \n\n")
			w.(http.Flusher).Flush()
			fmt.Fprintf(w, "data: %s\n\n", answer)
		default:
			w.Header().Set("Content-Type", "application/json")
			w.Write(answer)
		}
	}))
	defer server.Close()
	c, err := dialHTTP(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	converse(t, c, 1)
}

func TestRefusals(t *testing.T) {
	for name, response := range map[string]string{
		"json-rpc error": "HTTP/1.1 200 OK\r\nContent-Length: 37\r\n\r\n" + `{"jsonrpc":"2.0","id":1,"error":null}`,
		"status":         "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
		"no answer":      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 14\r\n\r\nid: 1\ndata: \n\n",
		"end":            "",
	} {
		s := &session{}
		c := s.add(newConn(&httpWire{}, strings.NewReader(response), nopCloser{io.Discard}, ample))
		if err := c.initialize(); err == nil {
			t.Errorf("%s: taken for an answer", name)
		}
		s.readers.Wait()
	}
}

// Answers to calls that nobody made are an error.
func TestKeep(t *testing.T) {
	next := 0
	c := newConn(&lineWire{}, strings.NewReader(`{"jsonrpc":"2.0","id":7,"result":{}}`+"\n"), nopCloser{io.Discard}, ample)
	if n, err := c.keep(1, func() int { next++; return next }, time.Now()); err == nil {
		t.Errorf("%d answers were taken for those of other calls", n)
	}
}

func TestParseAnswer(t *testing.T) {
	long := strings.Repeat("x", 500)
	for msg, want := range map[string]int{
		`{"jsonrpc":"2.0","id":7,"result":{}}`:                                    7,
		`{"result":{"content":[{"text":"` + long + `"}]},"jsonrpc":"2.0","id":8}`: 8,
		`{"jsonrpc":"2.0","id":9,"method":"sampling/createMessage"}`:              0,
		`{"result":{}}`: 0,
		"":              0,
	} {
		if id, _, ok := parseAnswer([]byte(msg)); id != want || ok != (want != 0) {
			t.Errorf("%.60s: %d, %v", msg, id, ok)
		}
	}
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }
