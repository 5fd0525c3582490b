package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
)

// listen serves HTTP on loopback until it fails.
func listen() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	os.Stdout.WriteString("listening on http://" + l.Addr().String() + "/mcp\n")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			serveHTTP(c, c) // the client sees how it ends
		}()
	}
}

// serveHTTP answers the requests of one connection until it ends: a POST in
// JSON, and any other method with 405.
func serveHTTP(r io.Reader, w io.Writer) error {
	in := bufio.NewReaderSize(r, 64<<10)
	var text bytes.Buffer
	message := bufio.NewWriterSize(&text, 64<<10)
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return err
		}
		line, err := io.ReadAll(req.Body)
		if err != nil {
			return err
		}
		text.Reset()
		answer(message, line)
		message.Flush()
		out := net.Buffers{[]byte(head(req.Method, text.Len())), text.Bytes()}
		if _, err := out.WriteTo(w); err != nil { // with one system call
			return err
		}
	}
}

// head returns the response to a request whose answer has size bytes.
func head(method string, size int) string {
	switch {
	case method != http.MethodPost:
		return "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"
	case size == 0:
		return "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
	}
	return "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(size) + "\r\n\r\n"
}
