package session

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestCallThroughOneUpstream(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"echo","arguments":{"n":9007199254740993}}}`)
		w.client.want(`{"jsonrpc":"2.0","id":"x","result":{"content":[],"structuredContent":{"by":"files","args":{"n":9007199254740993}}}}`)
	})
}

func TestListMergesAndRoutes(t *testing.T) {
	inWorld(t, &Router{}, []string{"files", "docs"}, func(w *world) {
		w.initialize()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"files__echo","inputSchema":{"type":"object"}},{"name":"docs__echo","inputSchema":{"type":"object"}}]}}`)
		w.client.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"docs__echo"}}`)
		w.client.want(`{"jsonrpc":"2.0","id":2,"result":{"content":[],"structuredContent":{"by":"docs","args":{}}}}`)
	})
}

// Messages of an upstream about a call are related to it for the client, in both eras, so that a
// front end finds the response that carries them.
func TestRelated(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.initialize()
		files := w.upstream("files")
		files.handle(func(p *party, m *jsonrpc.Message) {
			p.conn.Send(&jsonrpc.Message{Method: "vendor/news", Related: m.ID})
		})
		var related jsonrpc.ID
		w.client.handle(func(_ *party, m *jsonrpc.Message) { related = m.Related })
		w.client.say(`{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"echo"}}`)
		w.client.take()
		if related.String() != `"x"` {
			t.Errorf("belongs to %v", related)
		}
	})
}
