package main

import (
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
		`{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"hi"}]}}`,
		`{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":"xxxx"}]}}`,
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
