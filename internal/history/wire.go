package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/gorilla/websocket"
)

// A wire carries the messages of one client. What arrives goes to the receiver's receive, and the end
// to its ended, once, whoever caused it.
type wire interface {
	// send sends a message; a failure is an end, too.
	send(m *message)

	// cancel ends a request in the way of this transport and era.
	cancel(id string)

	// leave goes in a way that the transport has: "close" says so, "vanish" does not. It returns
	// when nothing more will arrive.
	leave(how string)
}

type receiver interface {
	receive(m *message)
	refused(id string, why string) // the request with this id was refused before it was read
	ended(err error)
}

// notifyCancelled is the cancellation of transports where a message is one.
func notifyCancelled(w wire, id string) {
	w.send(&message{Method: "notifications/cancelled", Params: encode(object{"requestId": json.RawMessage(id)})})
}

// A socket is a WebSocket.
type socket struct {
	conn *websocket.Conn
	to   receiver
	done chan struct{} // closed when nothing arrives any more

	mu sync.Mutex // one writes
}

func dialSocket(url, token string, to receiver) (wire, error) {
	conn, err := upgrade(url, token)
	if err != nil {
		return nil, err
	}
	w := &socket{conn: conn, to: to, done: make(chan struct{})}
	go w.read()
	return w, nil
}

// upgrade opens a WebSocket at the URL of a proxy.
func upgrade(url, token string) (*websocket.Conn, error) {
	header := http.Header{"Authorization": {"Bearer " + token}}
	conn, resp, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(url, "http")+"/ws", header)
	if resp != nil {
		resp.Body.Close()
	}
	return conn, err
}

func (w *socket) read() {
	defer close(w.done)
	defer w.conn.Close()
	for {
		_, text, err := w.conn.ReadMessage()
		if err != nil {
			w.to.ended(err)
			return
		}
		arrived(w.to, text)
	}
}

// linesOf reads lines, which are as long as a message may be.
func linesOf(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	return lines
}

// arrived hands on a message, or that it is none.
func arrived(to receiver, text []byte) {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		to.receive(&message{Method: "unreadable", Params: encode(string(text))})
		return
	}
	to.receive(&m)
}

func (w *socket) send(m *message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.conn.WriteMessage(websocket.TextMessage, m.bytes()) // a failure shows at read
}

func (w *socket) cancel(id string) { notifyCancelled(w, id) }

func (w *socket) leave(how string) {
	if how == "vanish" {
		_ = w.conn.NetConn().(*net.TCPConn).SetLinger(0)
		w.conn.NetConn().Close()
	} else {
		w.mu.Lock()
		_ = w.conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""))
		w.mu.Unlock()
	}
	<-w.done
}

// pipes are those of a program on stdin and stdout.
type pipes struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	to   receiver
	done chan struct{} // closed when nothing arrives any more, and the program is reaped

	mu sync.Mutex // one writes
}

// runPipes runs a program, whose stderr is added to a file.
func runPipes(argv []string, log string, to receiver) (wire, error) {
	w := &pipes{cmd: exec.Command(argv[0], argv[1:]...), to: to, done: make(chan struct{})}
	in, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.in = in
	stderr, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	w.cmd.Stderr = stderr
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go w.read(out)
	return w, nil
}

func (w *pipes) read(out io.Reader) {
	defer close(w.done)
	lines := linesOf(out)
	for lines.Scan() {
		arrived(w.to, lines.Bytes())
	}
	_ = w.cmd.Wait()
	w.to.ended(errors.Join(lines.Err(), io.EOF))
}

func (w *pipes) send(m *message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.in.Write(append(m.bytes(), '\n')) // a failure shows at read
}

func (w *pipes) cancel(id string) { notifyCancelled(w, id) }

func (w *pipes) leave(how string) {
	if how == "vanish" {
		_ = w.cmd.Process.Kill()
	}
	w.in.Close()
	<-w.done
}

// posts are Streamable HTTP of either era: a POST for each message. The wire ends by itself
// when the server does not know its session.
type posts struct {
	url    string
	token  string
	modern bool
	to     receiver
	client *http.Client
	all    context.Context // of all POSTs
	drop   context.CancelCauseFunc
	done   sync.WaitGroup // POSTs

	mu      sync.Mutex
	session string
	open    map[string]context.CancelFunc // requests, by id
	over    sync.Once                     // tells the receiver of the end
}

func newPosts(url, token string, modern bool, to receiver) *posts {
	w := &posts{url: url, token: token, modern: modern, to: to, open: map[string]context.CancelFunc{}}
	w.client = &http.Client{Transport: &http.Transport{}}
	w.all, w.drop = context.WithCancelCause(context.Background())
	return w
}

func (w *posts) send(m *message) {
	id, isRequest := string(m.ID), m.isRequest()
	if w.modern && !isRequest {
		return // that era has none of these over HTTP
	}
	body := m.bytes()
	ctx, cancel := context.WithCancel(w.all)
	if isRequest {
		w.mu.Lock()
		w.open[id] = cancel
		w.mu.Unlock()
	}
	name := ""
	if p, err := m.params(); err == nil {
		name = p.Name
	}
	w.done.Go(func() {
		defer cancel()
		answered, err := w.post(ctx, body, w.header(m.Method, name))
		if err != nil && ctx.Err() == nil {
			w.end(fmt.Errorf("POST %s: %w", m.Method, err))
		} else if isRequest && !answered && ctx.Err() == nil {
			w.to.refused(id, "the response ends without an answer")
		}
	})
}

func (w *posts) header(method, name string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Authorization": {"Bearer " + w.token}}
	if w.modern {
		h["Mcp-Protocol-Version"], h["Mcp-Method"] = []string{modernVersion}, []string{method}
		if name != "" {
			h["Mcp-Name"] = []string{name}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session != "" {
		h["Mcp-Session-Id"] = []string{w.session}
	}
	return h
}

// post returns whether a response was among the messages that it received.
func (w *posts) post(ctx context.Context, body []byte, header http.Header) (answered bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	req.Header = header
	resp, err := w.client.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
		w.mu.Lock()
		w.session = id
		w.mu.Unlock()
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		return readEvents(linesOf(resp.Body), w.to)
	}
	text, err := io.ReadAll(resp.Body)
	var m message
	switch {
	case err != nil || resp.StatusCode == http.StatusAccepted:
		return false, err
	case json.Unmarshal(text, &m) == nil && m.ID != nil && string(m.ID) != "null":
		w.to.receive(&m)
		return true, nil
	default:
		return false, fmt.Errorf("HTTP %d: %s", resp.StatusCode, text)
	}
}

// readEvents reads messages, each in one line of an event, and returns whether a response was among them.
func readEvents(lines *bufio.Scanner, to receiver) (answered bool, err error) {
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok && text != "" {
			var m message
			answered = json.Unmarshal([]byte(text), &m) == nil && m.isResponse() || answered
			arrived(to, []byte(text))
		}
	}
	return answered, lines.Err()
}

func (w *posts) end(err error) { w.over.Do(func() { w.to.ended(err) }) }

func (w *posts) cancel(id string) {
	if !w.modern {
		notifyCancelled(w, id)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if stop := w.open[id]; stop != nil {
		stop()
	}
}

// leave with "vanish" leaves a session of the legacy era to its expiry.
func (w *posts) leave(how string) {
	if how != "vanish" && !w.modern {
		req, err := http.NewRequestWithContext(w.all, http.MethodDelete, w.url, nil)
		if err == nil {
			req.Header = w.header("", "")
			if resp, err := w.client.Do(req); err == nil {
				resp.Body.Close()
				w.done.Wait() // each POST has an end
			}
		}
	}
	w.drop(errors.New("left"))
	w.done.Wait()
	w.client.CloseIdleConnections()
	w.end(io.EOF)
}

// An eventStream is the transport of 2024-11-05: one stream down, POSTs up, one after the other.
type eventStream struct {
	*posts
	up chan *message // to post; never closed
}

func openEventStream(url, token string, to receiver) (wire, error) {
	w := eventStream{newPosts(url+"/sse", token, false, to), make(chan *message, 100)}
	req, err := http.NewRequestWithContext(w.all, http.MethodGet, w.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header = w.header("", "")
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	lines := linesOf(resp.Body)
	for lines.Scan() {
		if path, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			w.url = url + "/" + strings.TrimPrefix(path, "/")
			break
		}
	}
	w.done.Go(func() {
		defer resp.Body.Close()
		_, err := readEvents(lines, to)
		w.end(errors.Join(err, io.EOF))
	})
	w.done.Go(w.run)
	return w, nil
}

func (w eventStream) send(m *message) {
	select {
	case w.up <- m:
	case <-w.all.Done():
	}
}

func (w eventStream) run() {
	for {
		select {
		case m := <-w.up:
			if _, err := w.post(w.all, m.bytes(), w.header(m.Method, "")); err != nil && w.all.Err() == nil {
				w.end(fmt.Errorf("POST %s: %w", m.Method, err))
			}
		case <-w.all.Done():
			return
		}
	}
}

func (w eventStream) cancel(id string) { notifyCancelled(w, id) }

func (w eventStream) leave(string) { w.posts.leave("vanish") }
