package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/gorilla/websocket"
)

// stdio serves the client on in and out until in ends.
func (r *router) stdio(in io.Reader, out io.Writer) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	answers := bufio.NewWriterSize(out, 64<<10)
	w := waiting{
		answer: func(parts ...[]byte) error {
			for _, part := range parts {
				answers.Write(part)
			}
			return answers.WriteByte('\n')
		},
		flush: answers.Flush,
	}
	var long []byte
	for {
		line, err := readLine(lines, &long)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.send(line, w, lines.Buffered() > 0); err != nil {
			return err
		}
	}
}

var upgrader = websocket.Upgrader{Subprotocols: []string{"mcp"}}

// webSocket serves one client.
func (r *router) webSocket(rw http.ResponseWriter, req *http.Request) {
	c, err := upgrader.Upgrade(rw, req, nil)
	if err != nil {
		return
	}
	defer c.Close()
	w := waiting{answer: func(parts ...[]byte) error {
		m, err := c.NextWriter(websocket.TextMessage)
		if err != nil {
			return err
		}
		for _, part := range parts {
			m.Write(part)
		}
		return m.Close()
	}}
	for {
		_, msg, err := c.ReadMessage()
		if err != nil || r.send(msg, w, false) != nil {
			return
		}
	}
}

// http serves one request of any client.
func (r *router) http(rw http.ResponseWriter, req *http.Request) {
	msg, err := body(req.Body, req.ContentLength)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	e, err := read(msg)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	answered := make(chan []byte, 1)
	w := waiting{answer: func(parts ...[]byte) error {
		answered <- bytes.Join(parts, nil)
		return nil
	}}
	if err := r.send(msg, w, false); err != nil {
		http.Error(rw, err.Error(), http.StatusBadGateway)
		return
	}
	if e.end == 0 {
		rw.WriteHeader(http.StatusAccepted)
		return
	}
	select {
	case answer := <-answered:
		respond(rw, e, answer)
	case <-req.Context().Done():
	}
}

// respond writes an answer, that to initialize with the name of a session.
func respond(rw http.ResponseWriter, e envelope, parts ...[]byte) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	h := rw.Header()
	if e.method == "initialize" {
		h.Set("Mcp-Session-Id", "floor")
	}
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(size))
	for _, part := range parts {
		rw.Write(part)
	}
}

func body(r io.Reader, size int64) ([]byte, error) {
	if size < 0 {
		return io.ReadAll(r)
	}
	msg := make([]byte, size)
	_, err := io.ReadFull(r, msg)
	return msg, err
}

// forwarder sends each request to the remote server at url, with an id of its own.
func forwarder(url string) http.Handler {
	client := http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	var last atomic.Int64
	forward := func(req *http.Request, e envelope, msg []byte) (*http.Response, error) {
		text := msg
		if e.end > 0 {
			text = append(append([]byte(nil), msg[:e.start]...), strconv.FormatInt(last.Add(1), 10)...)
			text = append(text, msg[e.end:]...)
		}
		out, err := http.NewRequestWithContext(req.Context(), http.MethodPost, url, bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		out.Header.Set("Content-Type", "application/json")
		out.Header.Set("Accept", "application/json, text/event-stream")
		return client.Do(out)
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		msg, err := body(req.Body, req.ContentLength)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		e, err := read(msg)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		resp, err := forward(req, e, msg)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		answer, err := body(resp.Body, resp.ContentLength)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		if e.end == 0 {
			rw.WriteHeader(resp.StatusCode)
			return
		}
		a, err := read(answer)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		respond(rw, e, answer[:a.start], msg[e.start:e.end], answer[a.end:])
	})
}
