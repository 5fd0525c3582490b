package mcp

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func FuzzFilter(f *testing.F) {
	f.Add([]byte(`{"notifications":{"toolsListChanged":true,"promptsListChanged":false,"x":[1.0],"resourceSubscriptions":["a","a","\ud800"],"taskIds":[]}}`))
	f.Add([]byte(`{"notifications":{"toolsListChanged":1,"ToolsListChanged":true}}`))
	f.Add([]byte(`{"notifications":[]}`))
	f.Add([]byte(`{"notifications":{"taskIds":[1]}}`))
	f.Fuzz(func(t *testing.T, params []byte) {
		if m, err := jsonrpc.Decode(append(append([]byte(`{"jsonrpc":"2.0","method":"x","params":`), params...), '}')); err != nil || m.Batch != nil {
			return // params are valid JSON
		}
		read, err := ReadFilter(ReadParams(MethodListen, params))
		if err != nil {
			return
		}
		if len(read.URIs) > MaxWatched || len(read.Tasks) > MaxWatched {
			t.Error("too long")
		}
		read.As = nil
		again, err := ReadFilter(ReadParams(MethodListen, jsonrpc.Set(nil, jsonrpc.Value{Key: "notifications", Text: read.Text()})))
		again.As = nil
		if err != nil || !again.Equal(&read) {
			t.Errorf("%q: read %+v, again %+v, %v", params, read, again, err)
		}
	})
}
