package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func TestServe(t *testing.T) {
	in := strings.Join([]string{
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hi"}}}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"echo","arguments":{"size":4}}}`,
		`{"jsonrpc":"2.0","method":"ping","id":4}`,
	}, "\n") + "\n"
	want := strings.Join([]string{
		`{"jsonrpc":"2.0","id":0,"result":` + welcome + `}`,
		`{"jsonrpc":"2.0","id":"a","result":` + tools + `}`,
		`{"jsonrpc":"2.0","id":2,"result":{"resultType":"complete","content":[{"type":"text","text":"hi"}]}}`,
		`{"jsonrpc":"2.0","id":3,"result":{"resultType":"complete","content":[{"type":"text","text":"xxxx"}]}}`,
		`{"jsonrpc":"2.0","id":4,"result":{}}`,
	}, "\n") + "\n"

	var out strings.Builder
	if err := serve(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestServeHTTP(t *testing.T) {
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveHTTP(far, far)
	}()
	client := http.Client{Transport: &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil },
	}}
	large := `"` + strings.Repeat("x", 100_000) + `"`
	for _, c := range []struct {
		method, message string
		status          int
		want            string
	}{
		{http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, http.StatusOK, `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, http.StatusAccepted, ""},
		{http.MethodGet, "", http.StatusMethodNotAllowed, ""},
		{
			http.MethodPost, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"text":` + large + `}}`, http.StatusOK,
			`{"jsonrpc":"2.0","id":2,"result":{"resultType":"complete","content":[{"type":"text","text":` + large + `}]}}`,
		},
	} {
		req, err := http.NewRequest(c.method, "http://echo/mcp", strings.NewReader(c.message))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || string(bytes.TrimSpace(got)) != c.want {
			t.Errorf("%s: %d %.200q, %v", c.message[:min(len(c.message), 60)], resp.StatusCode, got, err)
		}
	}
	near.Close()
	<-done
}
