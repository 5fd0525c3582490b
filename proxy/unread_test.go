package proxy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// An unread server answers calls of the tool big with 200 KiB, and none of the tool slow. It sends
// notifications when flood is closed.
type unread struct {
	answered  atomic.Int64
	slow      chan struct{} // a call has come
	cancelled chan string
	flood     chan struct{}
}

func (s *unread) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		s.stream(w, r)
		return
	}
	text, _ := io.ReadAll(r.Body)
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name string }
	}
	_ = json.Unmarshal(text, &m)
	answer := func(result string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
	}
	switch {
	case m.Method == "initialize":
		w.Header().Set("Mcp-Session-Id", "1")
		answer(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"s","version":"1"}}`)
	case m.Method == "tools/list":
		answer(`{"tools":[{"name":"big","inputSchema":{"type":"object"}},{"name":"slow","inputSchema":{"type":"object"}}]}`)
	case m.Method == "notifications/cancelled":
		s.cancelled <- string(text)
		w.WriteHeader(http.StatusAccepted)
	case m.Params.Name == "slow":
		s.slow <- struct{}{}
		<-r.Context().Done()
	case m.Params.Name == "big":
		answer(`{"content":[{"type":"text","text":"` + strings.Repeat("x", 200<<10) + `"}]}`)
		s.answered.Add(1)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func (s *unread) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.(http.Flusher).Flush()
	select {
	case <-s.flood:
		for range 12_000 { // more than may wait for one client
			fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
		}
		w.(http.Flusher).Flush()
	case <-r.Context().Done():
	}
	<-r.Context().Done()
}

// A client of a shared server stops reading. It loses its stream, and its call is cancelled at the server.
func TestUnreadAnswersOfSharedServer(t *testing.T) {
	t.Parallel()
	const calls = 40
	s := &unread{slow: make(chan struct{}, 1), cancelled: make(chan string, calls), flood: make(chan struct{})}
	server := httptest.NewServer(s)
	defer server.Close()
	log := &journal{}
	p, err := proxy.New(&config.Config{
		Upstreams: []config.Upstream{{Name: "u", Shared: true, Remote: config.Remote{URL: server.URL}}},
	}, proxy.Options{Log: logTo(log)})
	if err != nil {
		t.Fatal(err)
	}
	c := dialStdio(t, p)
	call := func(id int, tool string) {
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, id, tool))
	}
	call(1000, "slow")
	<-s.slow
	for id := range calls {
		call(id+1, "big")
	}
	eventually(t, "all answers", func() bool { return s.answered.Load() == calls })
	close(s.flood)
	select {
	case <-s.cancelled:
	case <-time.After(20 * time.Second):
		t.Error("the call was not cancelled at the server")
	}
	if !strings.Contains(log.String(), "client of a shared upstream does not read") {
		t.Errorf("no line about the client: %.3000s", log)
	}
	c.in.Close()
	c.out.Close()
	p.Close()
}
