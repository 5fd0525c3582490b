package remote

import (
	"net/http"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A server of the modern era that is replaced by one of the legacy era is found out
// by the way in which it refuses: the stream ends, so that the host asks anew.
func TestServerThatWasReplaced(t *testing.T) {
	refuse := func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		w.Write([]byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}`))
	}
	f := newFake(t)
	c := connectModern(t, f)
	f.handle("server/discover", refuse)
	f.handle("prompts/get", refuse)
	c.request(1, "prompts/get", params(`"name":"p"`))
	if m := c.recv(); m.Error == nil {
		t.Errorf("got %s", m.Append(nil))
	}
	if end := c.end(); end.Cause != jsonrpc.CauseOtherEra || !end.Delivered {
		t.Errorf("ended with %+v", end)
	}
}

// One that refuses a request alone is the one it was, and is not asked each time.
func TestServerThatRefuses(t *testing.T) {
	f := newFake(t)
	f.handle("server/discover", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		reply(w, m, `{"supportedVersions":["2026-07-28"]}`)
	})
	f.handle("prompts/get", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		w.WriteHeader(http.StatusBadRequest)
	})
	c := connectModern(t, f)
	for id := range int64(5) {
		c.request(id+1, "prompts/get", params(`"name":"p"`))
		c.recv()
	}
	f.await("server/discover", 1)
	c.request(9, "ping", params(""))
	c.recv()
	n := 0
	for _, what := range f.all() {
		if what == "server/discover" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("asked %d times", n)
	}
}
