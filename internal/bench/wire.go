package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// A wire turns messages into the bytes of one transport and back, for one
// connection. It is made for speed against servers that behave.
type wire interface {
	// frame appends msg to dst as it travels to the server.
	frame(dst, msg []byte) []byte
	// next returns the next message from the server, valid until it is called
	// again. An HTTP response without a body is an empty message.
	next(r *bufio.Reader) ([]byte, error)
}

// lineWire is stdio: a message is a line.
type lineWire struct {
	long []byte // a line that exceeds the reader's buffer
}

func (*lineWire) frame(dst, msg []byte) []byte {
	return append(append(dst, msg...), '\n')
}

func (w *lineWire) next(r *bufio.Reader) ([]byte, error) {
	w.long = w.long[:0]
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && len(w.long) == 0 {
			return part, nil
		}
		w.long = append(w.long, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return w.long, err
		}
	}
}

// wsWire is WebSocket (RFC 6455) without extensions. It ignores pings: no
// measurement lasts so long that the server minds.
type wsWire struct {
	msg []byte
}

const (
	wsFin   = 0x80
	wsText  = 0x1
	wsClose = 0x8
	wsMask  = 0x80
)

// frame masks with zero, which leaves the message as it is and costs the server
// as much to undo as any other mask.
func (*wsWire) frame(dst, msg []byte) []byte {
	dst = append(dst, wsFin|wsText)
	switch n := len(msg); {
	case n < 126:
		dst = append(dst, wsMask|byte(n))
	case n < 1<<16:
		dst = append(dst, wsMask|126)
		dst = binary.BigEndian.AppendUint16(dst, uint16(n))
	default:
		dst = append(dst, wsMask|127)
		dst = binary.BigEndian.AppendUint64(dst, uint64(n))
	}
	dst = append(dst, 0, 0, 0, 0)
	return append(dst, msg...)
}

func (w *wsWire) next(r *bufio.Reader) ([]byte, error) {
	w.msg = w.msg[:0]
	for {
		start := len(w.msg)
		first, err := w.readFrame(r)
		if err != nil {
			return nil, err
		}
		switch opcode := first &^ wsFin; {
		case opcode == wsClose:
			return nil, fmt.Errorf("websocket closed: %q", w.msg[start:])
		case opcode > wsClose:
			w.msg = w.msg[:start] // a ping or pong, perhaps between fragments
		case first&wsFin != 0:
			return w.msg, nil
		}
	}
}

// readFrame appends the payload of one frame to w.msg and returns the frame's
// first byte.
func (w *wsWire) readFrame(r *bufio.Reader) (byte, error) {
	head, err := r.Peek(2)
	if err != nil {
		return 0, err
	}
	first, n, size := head[0], int(head[1]), 2
	switch n {
	case 126:
		size += 2
	case 127:
		size += 8
	}
	if head, err = r.Peek(size); err != nil {
		return 0, err
	}
	switch n {
	case 126:
		n = int(binary.BigEndian.Uint16(head[2:]))
	case 127:
		n = int(binary.BigEndian.Uint64(head[2:]))
	}
	r.Discard(size)
	w.msg, err = readInto(w.msg, r, n)
	return first, err
}

// httpWire is Streamable HTTP: a message is a POST, an answer its response, as
// JSON or as the last event of an SSE stream.
type httpWire struct {
	host    string
	root    bool   // the endpoint is /, and not /mcp
	session string // what the server named this session; "" before initialize
	token   string // to show with each request; "" for none
	modern  bool   // there is no session, and headers repeat the body
	body    []byte
}

func (w *httpWire) frame(dst, msg []byte) []byte {
	dst = append(append(append(dst, "POST "...), w.path()...), " HTTP/1.1\r\nHost: "...)
	dst = append(dst, w.host...)
	dst = append(dst, "\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"...)
	if w.session != "" {
		dst = append(dst, "MCP-Protocol-Version: "+revision+"\r\nMcp-Session-Id: "...)
		dst = append(dst, w.session...)
		dst = append(dst, "\r\n"...)
	}
	if w.token != "" {
		dst = append(append(append(dst, "Authorization: Bearer "...), w.token...), "\r\n"...)
	}
	if w.modern {
		dst = append(append(dst, "MCP-Protocol-Version: "+modern+"\r\nMcp-Method: "...), between(msg, `"method":"`)...)
		dst = append(append(dst, "\r\nMcp-Name: "...), between(msg, `,"name":"`)...)
		dst = append(dst, "\r\n"...)
	}
	dst = append(dst, "Content-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(msg)), 10)
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, msg...)
}

func (w *httpWire) path() string {
	if w.root {
		return "/"
	}
	return "/mcp"
}

// between returns what stands in msg after key, to the next quote. The last key
// counts: a client's own name comes before that of a tool.
func between(msg []byte, key string) []byte {
	i := bytes.LastIndex(msg, []byte(key))
	if i < 0 {
		return nil
	}
	value, _, _ := bytes.Cut(msg[i+len(key):], []byte{'"'})
	return value
}

func (w *httpWire) next(r *bufio.Reader) ([]byte, error) {
	head, err := w.readHead(r)
	if err != nil {
		return nil, err
	}
	w.body = w.body[:0]
	if head.chunked {
		err = w.readChunks(r)
	} else {
		w.body, err = readInto(w.body, r, head.length)
	}
	if err != nil {
		return nil, err
	}
	if head.status > 299 {
		return nil, statusError{head.status, string(w.body)}
	}
	if !head.sse {
		return w.body, nil
	}
	if _, event, _ := cutLast(w.body, []byte("data: ")); bytes.HasPrefix(event, []byte("{")) {
		return event, nil
	}
	return nil, errNoAnswer
}

// A statusError is a response that is a refusal.
type statusError struct {
	status int
	body   string
}

func (e statusError) Error() string { return fmt.Sprintf("status %d: %q", e.status, e.body) }

var errNoAnswer = errors.New("the response ended without an answer")

// A responseHead is what a client must know before it reads a body.
type responseHead struct {
	status, length int
	chunked, sse   bool
}

func (w *httpWire) readHead(r *bufio.Reader) (head responseHead, err error) {
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return head, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return head, nil
		}
		if first {
			_, code, _ := bytes.Cut(line, []byte(" "))
			head.status, err = strconv.Atoi(string(code[:min(3, len(code))]))
			if err != nil {
				return head, fmt.Errorf("status line %q: %w", line, err)
			}
			continue
		}
		w.header(&head, line)
	}
}

// header takes in one header line; the names are compared without regard to
// case by what is peculiar to each.
func (w *httpWire) header(head *responseHead, line []byte) {
	name, value, _ := bytes.Cut(line, []byte(": "))
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		head.length, _ = strconv.Atoi(string(value))
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		head.chunked = true
	case bytes.EqualFold(name, []byte("Content-Type")):
		head.sse = bytes.HasPrefix(value, []byte("text/event-stream"))
	case bytes.EqualFold(name, []byte("Mcp-Session-Id")) && w.session == "":
		w.session = string(value)
	}
}

func (w *httpWire) readChunks(r *bufio.Reader) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseUint(string(bytes.TrimRight(line, "\r\n")), 16, 31)
		if err != nil {
			return fmt.Errorf("chunk %q: %w", line, err)
		}
		if w.body, err = readInto(w.body, r, int(size)); err != nil {
			return err
		}
		if _, err := r.Discard(2); err != nil || size == 0 {
			return err
		}
	}
}

// readInto appends the next n bytes of r to dst.
func readInto(dst []byte, r *bufio.Reader, n int) ([]byte, error) {
	start := len(dst)
	if cap(dst)-start < n {
		dst = append(make([]byte, 0, start+n), dst...)
	}
	dst = dst[:start+n]
	_, err := io.ReadFull(r, dst[start:])
	return dst, err
}
