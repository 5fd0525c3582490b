//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

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
		defer conn.Close() // the other end has closed
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

// A stdioWire is a pair of pipes, with the session at their other ends.
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
		s.proxy.ServeStdio(context.Background(), stdin, stdout)
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

// closeStdin half-closes a client on stdio.
func (c *client) closeStdin() {
	w := c.wire
	if m, ok := w.(*modernWire); ok {
		w = m.wire
	}
	w.(*stdioWire).in.Close()
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

// An httpWire is a session of Streamable HTTP: a POST for each message. It vanishes with a
// DELETE, since the end of a connection has no meaning there.
type httpWire struct {
	url    string
	heard  func([]byte)
	ctx    context.Context
	drop   context.CancelFunc // drops all connections
	client *http.Client
	done   sync.WaitGroup // POSTs that have not ended

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

// readEvents reads messages, one on each line.
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
			w.done.Wait() // wait for the end of each POST
		}
	}
	w.abandon()
}

// abandon drops all connections: the session expires.
func (w *httpWire) abandon() {
	w.drop()
	w.done.Wait()
	w.client.CloseIdleConnections()
}

// An sseWire is the transport of 2024-11-05: one stream down, POSTs up. To vanish, it drops the
// stream.
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
