//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
)

// A client collects what it receives, whichever way that comes.
type client struct {
	wire
	t *testing.T

	mu      sync.Mutex
	answers map[string]json.RawMessage // by id: the result, or the error with "!" before it
	asked   []jsonrpc.ID
	twice   []string
	told    []string // notifications: method and params
}

// A wire is one way to reach the proxy.
type wire interface {
	send(text string) error // one message
	vanish()                // leaves, and is there no more when it returns
}

// dial connects a wire to a site; what arrives goes to heard.
type dial func(s *site, heard func(text []byte)) (wire, error)

// The ways in which clients reach a proxy, and leave it.
var wires = map[string]dial{
	"stdio": dialStdio,
	"WebSocket": func(s *site, heard func([]byte)) (wire, error) {
		return dialWebSocket(s.url, heard)
	},
	"HTTP": func(s *site, heard func([]byte)) (wire, error) {
		return newHTTPWire(s.url+"/mcp", heard), nil
	},
	"SSE": dialSSE,
}

// connect initializes a new client over WebSocket.
func (s *site) connect() *client { return s.connectOver("WebSocket") }

func (s *site) connectOver(name string) *client {
	s.t.Helper()
	c := s.join(name)
	c.say(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	c.await("init")
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

// join returns a new client that has said nothing yet.
func (s *site) join(name string) *client {
	s.t.Helper()
	c := &client{t: s.t, answers: map[string]json.RawMessage{}}
	w, err := wires[name](s, c.heard)
	if err != nil {
		s.t.Fatal(err)
	}
	c.wire = w
	s.t.Cleanup(w.vanish)
	return c
}

func (c *client) heard(text []byte) {
	m, err := jsonrpc.Decode(text)
	if err != nil {
		c.t.Errorf("%s: %v", text, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch id := m.ID.String(); {
	case m.IsRequest():
		c.asked = append(c.asked, m.ID)
	case m.IsResponse():
		if c.answers[id] != nil {
			c.twice = append(c.twice, id)
		}
		c.answers[id] = m.Result
		if m.Error != nil {
			c.answers[id] = append([]byte("!"), m.Error...)
		}
	default:
		c.told = append(c.told, m.Method+" "+string(m.Params))
	}
}

func (c *client) say(text string) {
	c.t.Helper()
	if err := c.send(text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) call(id int, tool string) {
	c.t.Helper()
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q}}`, id, tool))
}

// get calls a tool and returns the answer.
func (c *client) get(id int, tool string) string {
	c.t.Helper()
	c.call(id, tool)
	return c.await(strconv.Itoa(id))
}

// cancel cancels a call.
func (c *client) cancel(id string) {
	c.t.Helper()
	c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
}

// works calls a tool of an upstream until it answers, which it need not do at
// once after it was lost; until then nothing may have been sent to it.
func (c *client) works(id int, tool string) {
	c.t.Helper()
	eventually(c.t, tool, func() bool {
		id++
		got := c.get(id, tool)
		if strings.HasPrefix(got, "!") && !strings.Contains(got, `"phase":"not_sent","retryable":true`) {
			c.t.Fatalf("the next call got %s", got)
		}
		return !strings.HasPrefix(got, "!")
	})
}

// heardOf returns how many notifications have a part.
func (c *client) heardOf(part string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return countPart(c.told, part)
}

// accept answers all questions so far.
func (c *client) accept() {
	c.t.Helper()
	c.mu.Lock()
	asked := c.asked
	c.asked = nil
	c.mu.Unlock()
	for _, id := range asked {
		c.say(`{"jsonrpc":"2.0","id":` + id.String() + `,"result":{"action":"accept"}}`)
	}
}

// questions returns how many questions are open.
func (c *client) questions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.asked)
}

// await waits for the answer to a request.
func (c *client) await(id string) string {
	c.t.Helper()
	var answer json.RawMessage
	if _, err := strconv.Atoi(id); err != nil {
		id = strconv.Quote(id)
	}
	eventually(c.t, "answer to "+id, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		answer = c.answers[id]
		return answer != nil
	})
	return string(answer)
}

// count returns how many answers satisfy ok.
func (c *client) count(ok func(answer string) bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, a := range c.answers {
		if ok(string(a)) {
			n++
		}
	}
	return n
}

// A wsWire is a WebSocket, which vanishes with a reset.
type wsWire struct {
	conn *websocket.Conn
	done chan struct{}
}

func dialWebSocket(url string, heard func([]byte)) (wire, error) {
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(url, "http")+"/ws", nil)
	if err != nil {
		return nil, err
	}
	w := &wsWire{conn, make(chan struct{})}
	go func() {
		defer close(w.done)
		defer conn.Close() // who was told that it is over goes
		for {
			_, text, err := conn.ReadMessage()
			if err != nil {
				return
			}
			heard(text)
		}
	}()
	return w, nil
}

func (w *wsWire) send(text string) error {
	return w.conn.WriteMessage(websocket.TextMessage, []byte(text))
}

func (w *wsWire) vanish() {
	w.conn.NetConn().(*net.TCPConn).SetLinger(0)
	w.conn.NetConn().Close()
	<-w.done
}

// A stdioWire is a pair of pipes, and the session at their other ends.
type stdioWire struct {
	in, out *os.File
	done    sync.WaitGroup
}

func dialStdio(s *site, heard func([]byte)) (wire, error) {
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	w := &stdioWire{in: in, out: out}
	w.done.Go(func() {
		s.engine.serve(context.Background(), "", frontend.NewStdio(stdin, stdout, jsonrpc.Limits{}))
	})
	w.done.Go(func() {
		for lines := jsonrpc.NewLineReader(out, jsonrpc.Limits{}); ; {
			line, err := lines.ReadLine()
			if err != nil {
				return
			}
			heard(line)
		}
	})
	return w, nil
}

func (w *stdioWire) send(text string) error {
	_, err := fmt.Fprintln(w.in, text)
	return err
}

func (w *stdioWire) vanish() {
	w.in.Close()
	w.out.Close()
	w.done.Wait()
}

// An httpWire is a session of Streamable HTTP: a POST for each message. It
// vanishes with a DELETE, since the end of a connection says nothing there.
type httpWire struct {
	url    string
	heard  func([]byte)
	ctx    context.Context
	drop   context.CancelFunc // drops all connections
	client *http.Client
	done   sync.WaitGroup // POSTs without an end

	mu      sync.Mutex
	session string
}

func newHTTPWire(url string, heard func([]byte)) *httpWire {
	w := &httpWire{url: url, heard: heard, client: &http.Client{Transport: &http.Transport{}}}
	w.ctx, w.drop = context.WithCancel(context.Background())
	return w
}

// send returns when the proxy has taken the message; the answer comes later.
func (w *httpWire) send(text string) error {
	m, err := jsonrpc.Decode([]byte(text))
	if err != nil {
		return err
	}
	if !m.IsRequest() {
		return w.post(text)
	}
	w.done.Go(func() { w.post(text) })
	return nil
}

func (w *httpWire) post(text string) error {
	resp, err := w.do(http.MethodPost, text)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("POST: %s", resp.Status)
	}
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		w.mu.Lock()
		w.session = id
		w.mu.Unlock()
	}
	return readMessages(resp, w.heard)
}

func (w *httpWire) do(method, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(w.ctx, method, w.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	w.mu.Lock()
	if w.session != "" {
		req.Header.Set("Mcp-Session-Id", w.session)
	}
	w.mu.Unlock()
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return w.client.Do(req)
}

// readMessages reads a body of JSON or of events.
func readMessages(resp *http.Response, heard func([]byte)) error {
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return readEvents(bufio.NewScanner(resp.Body), heard)
	}
	text, err := io.ReadAll(resp.Body)
	if len(text) > 0 {
		heard(text)
	}
	return err
}

// readEvents reads messages, each of which stands on one line.
func readEvents(lines *bufio.Scanner, heard func([]byte)) error {
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			heard([]byte(text))
		}
	}
	return lines.Err()
}

func (w *httpWire) vanish() {
	if w.ctx.Err() == nil {
		if resp, err := w.do(http.MethodDelete, ""); err == nil {
			resp.Body.Close()
			w.done.Wait() // each POST has its end
		}
	}
	w.abandon()
}

// abandon leaves the session to its expiry.
func (w *httpWire) abandon() {
	w.drop()
	w.done.Wait()
	w.client.CloseIdleConnections()
}

// An sseWire is the transport of 2024-11-05: one stream down, POSTs up. It
// vanishes when the stream is dropped.
type sseWire struct{ *httpWire }

func dialSSE(s *site, heard func([]byte)) (wire, error) {
	w := sseWire{newHTTPWire(s.url+"/sse", heard)}
	resp, err := w.do(http.MethodGet, "")
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if path, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			w.url = s.url + "/" + path
			break
		}
	}
	w.done.Go(func() {
		defer resp.Body.Close()
		readEvents(lines, heard)
	})
	return w, nil
}

func (w sseWire) send(text string) error { return w.post(text) }

func (w sseWire) vanish() { w.abandon() }
