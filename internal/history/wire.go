package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
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

	// leave goes in a way that the transport has: "close" says so and reads what still comes, "hang up" says so
	// and reads nothing, and "vanish" says nothing. A client that started its proxy may also "die" itself: both
	// pipes break. It returns when nothing more will arrive.
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

// dialSocket opens a WebSocket at a URL, as upgrade does.
func dialSocket(url, token string, to receiver) (wire, error) {
	conn, err := upgrade(url, token)
	if err != nil {
		return nil, err
	}
	w := &socket{conn: conn, to: to, done: make(chan struct{})}
	go w.read()
	return w, nil
}

// upgrade opens a WebSocket at a URL, with a token or "".
func upgrade(url, token string) (*websocket.Conn, error) {
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	conn, resp, err := websocket.DefaultDialer.Dial(url, header)
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
	if how != "vanish" {
		w.mu.Lock()
		_ = w.conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""))
		w.mu.Unlock()
	} else {
		_ = w.conn.NetConn().(*net.TCPConn).SetLinger(0)
	}
	if how != "close" {
		w.conn.NetConn().Close()
	}
	<-w.done
}

// pipes are those of a program on stdin and stdout.
type pipes struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  io.ReadCloser
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
	w.in, w.out = in, out
	stderr, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	w.cmd.Stderr = stderr
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go w.read()
	return w, nil
}

func (w *pipes) read() {
	defer close(w.done)
	lines := linesOf(w.out)
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
	switch how {
	case "vanish":
		_ = w.cmd.Process.Kill()
	case "die":
		w.out.Close()
	}
	w.in.Close()
	<-w.done
}
