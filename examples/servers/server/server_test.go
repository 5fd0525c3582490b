package server

import (
	"bufio"
	"context"
	"io"
	"testing"
)

// TestServe: a conversation, line by line. A cancelled request gets no answer.
func TestServe(t *testing.T) {
	waits := make(chan struct{})
	s := &Server{Name: "x", Version: "1", Methods: map[string]Method{
		"wait": func(ctx context.Context, _ *Request) (any, error) {
			close(waits)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}, Tools: []Tool{{Name: "fails", Call: func(context.Context, *Request) (any, error) { return nil, io.ErrNoProgress }}}}
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- s.Serve(t.Context(), in, out) }()
	lines := bufio.NewScanner(fromServer)
	say := func(line, want string) {
		t.Helper()
		io.WriteString(toServer, line+"\n")
		if want == "" {
			return
		}
		if lines.Scan(); lines.Text() != want {
			t.Errorf("%s:\n%s, want\n%s", line, lines.Text(), want)
		}
	}
	const info = `"capabilities":{"tools":{}},"protocolVersion":"2025-06-18","serverInfo":{"name":"x","version":"1"}`
	say(`{"jsonrpc":"2.0","id":1,"method":"server/discover"}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found: server/discover"}}`)
	say(`{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`, `{"jsonrpc":"2.0","id":2,"result":{`+info+`}}`)
	say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "")
	say(`{"jsonrpc":"2.0","id":"a","method":"ping"}`, `{"jsonrpc":"2.0","id":"a","result":{}}`)
	say(`{`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not a message"}}`)
	say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"fails"}}`,
		`{"jsonrpc":"2.0","id":3,"result":{"content":[{"text":"`+io.ErrNoProgress.Error()+`","type":"text"}],"isError":true}}`)
	say(`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"none"}}`, `{"jsonrpc":"2.0","id":4,"error":{"code":-32602,"message":"unknown tool: none"}}`)
	say(`{"jsonrpc":"2.0","id":5,"method":"wait"}`, "")
	<-waits
	say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`, "")
	say(`{"jsonrpc":"2.0","id":6,"method":"ping"}`, `{"jsonrpc":"2.0","id":6,"result":{}}`)
	toServer.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
