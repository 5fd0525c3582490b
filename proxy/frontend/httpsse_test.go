package frontend

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// connectLegacy opens a session of the 2024-11-05 transport.
func (ts *testServer) connectLegacy() (*testClient, *events) {
	ts.t.Helper()
	resp := ts.at("/sse").get()
	ev := newEvents(ts.t, resp)
	endpoint := ev.one()
	if endpoint.Type != "endpoint" || strings.HasPrefix(endpoint.Data, "/") || strings.Contains(endpoint.Data, ":") {
		ts.t.Fatalf("first event %+v, want a relative endpoint", endpoint)
	}
	base, _ := url.Parse(ts.url + "/some/prefix/sse") // as a client behind a reverse proxy sees it
	u, err := base.Parse(endpoint.Data)
	if err != nil || u.Path != "/some/prefix/message" {
		ts.t.Fatalf("endpoint %q leads to %v (%v)", endpoint.Data, u, err)
	}
	c := ts.at("/message?" + u.RawQuery)
	return c, ev
}

func TestLegacy(t *testing.T) {
	ts := newTestServer(t, nil)
	c, ev := ts.connectLegacy()
	wantStatus(t, c.post(strings.Replace(initializeText, "%", "2024-11-05", 1)), http.StatusAccepted)
	got := ev.one()
	if got.Type != "message" || got.LastEventID != "" {
		t.Errorf("event %+v, want a message without an id", got)
	}
	if m := got.message(t); m.Result == nil {
		t.Errorf("initialize: %s", m.Append(nil))
	}
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), http.StatusAccepted)
	wantStatus(t, c.post(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"x":1.0}}`), http.StatusAccepted)
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":1,"result":{"x":1.0}}`)

	wantRefusal(t, c.post(`garbage`), 400, jsonrpc.CodeParseError)
	wantRefusal(t, c.post(`[`+ping+`]`), 400, jsonrpc.CodeInvalidRequest)
	wantRefusal(t, c.post(ping, "Content-Type", "text/plain"), 415, jsonrpc.CodeInvalidRequest)
	wantRefusal(t, ts.at("/message").post(ping), 404, jsonrpc.CodeInvalidRequest)
	wantRefusal(t, ts.at("/message?sessionId=nobody").post(ping), 404, jsonrpc.CodeInvalidRequest)
	wantRefusal(t, ts.at("/sse").get("Accept", "application/json"), 406, jsonrpc.CodeInvalidRequest)

	// A session id of one transport is not valid on the other.
	other := ts.at("/mcp")
	other.session, other.version = c.url[strings.Index(c.url, "=")+1:], "2025-06-18"
	wantRefusal(t, other.post(ping), 404, jsonrpc.CodeInvalidRequest)
	s := ts.only()
	conntest.Eventually(t, "nothing is kept, since nobody can resume it", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.out.store) == 0 && len(s.out.standalone.events) == 0
	})
}

// TestD36 drops the GET: the session is over, and POSTs are rejected.
func TestD36_LegacyDrop(t *testing.T) {
	ts := newManualServer(t, nil)
	c, ev := ts.connectLegacy()
	conn := conntest.Await(t, "session", ts.conns)
	wantStatus(t, c.post(ping), http.StatusAccepted)
	conntest.Recv(t, conn)
	ev.close()
	wantRecvEnds(t, conn, errDropped)
	wantRefusal(t, c.post(ping), http.StatusNotFound, jsonrpc.CodeInvalidRequest)
}

// TestLegacyServeCloses ends the session by Serve: the stream ends after the messages that were
// sent before.
func TestLegacyServeCloses(t *testing.T) {
	ts := newManualServer(t, nil)
	c, ev := ts.connectLegacy()
	conn := conntest.Await(t, "session", ts.conns)
	conn.Send(note("notifications/last"))
	conn.Close()
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","method":"notifications/last"}`)
	ev.end()
	wantRefusal(t, c.post(ping), http.StatusNotFound, jsonrpc.CodeInvalidRequest)
}
