package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

const metaText = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// newPrincipalServer starts a server whose conns the test serves.
func newPrincipalServer(t *testing.T, setUp func(*HTTP)) *testServer {
	t.Helper()
	var conns <-chan jsonrpc.Conn
	ts := newTestServer(t, func(h *HTTP) {
		conns = manualPrincipal(h)
		if setUp != nil {
			setUp(h)
		}
	})
	ts.conns = conns
	return ts
}

// newBubblePrincipals returns a client in a bubble, and the conns as they begin.
func newBubblePrincipals(t *testing.T) (*testClient, <-chan jsonrpc.Conn) {
	t.Helper()
	var conns <-chan jsonrpc.Conn
	ts := newBubbleServer(t, func(h *HTTP) { conns = manualPrincipal(h) })
	return ts.at("/mcp"), conns
}

// manualPrincipal passes the conns of h to the returned channel.
func manualPrincipal(h *HTTP) <-chan jsonrpc.Conn {
	manually := &HTTP{}
	conns := manual(manually)
	h.ServePrincipal = func(ctx context.Context, who identity.Principal, upstream string, c jsonrpc.Conn) error {
		return manually.Serve(ctx, &identity.Identity{Principal: who}, upstream, c)
	}
	return conns
}

// modern returns a well-formed modern POST. params may be "", and get a _meta; set changes headers
// as in request.
func (c *testClient) modern(id, method, params string, set ...string) *http.Request {
	c.t.Helper()
	headers := []string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", method}
	if name := named(params); name != "" {
		headers = append(headers, "Mcp-Name", name)
	}
	return c.request(http.MethodPost, modernText(id, method, params), append(headers, set...)...)
}

func modernText(id, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s}}`, id, method, strings.Join(nonEmpty(params, metaText), ","))
}

func nonEmpty(all ...string) (some []string) {
	for _, s := range all {
		if s != "" {
			some = append(some, s)
		}
	}
	return some
}

// named returns the Mcp-Name for params.
func named(params string) string {
	var p struct{ Name, URI, TaskID string }
	json.Unmarshal([]byte("{"+params+"}"), &p)
	return p.Name + p.URI + p.TaskID
}

// send starts a request whose response comes later.
func (c *testClient) send(req *http.Request) <-chan *http.Response {
	got := make(chan *http.Response, 1)
	go func() {
		defer close(got)
		resp, err := c.http.Do(req)
		if err == nil {
			c.t.Cleanup(func() { resp.Body.Close() })
			got <- resp
		}
	}()
	return got
}

// wantCancel checks that the next message of a conn cancels m.
func wantCancel(t *testing.T, conn jsonrpc.Conn, m *jsonrpc.Message) {
	t.Helper()
	wantText(t, conntest.Recv(t, conn), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+m.ID.String()+`}}`)
}

// noted returns a notification that belongs to m.
func noted(m *jsonrpc.Message, method, params string) *jsonrpc.Message {
	n := jsonrpc.NewNotification(method, json.RawMessage(params))
	n.Related = m.ID
	return n
}

// wantBody checks the status of a response, and that its body is a JSON text.
func wantBody(t *testing.T, resp *http.Response, status int, want string) {
	t.Helper()
	if resp == nil {
		t.Fatal("no response")
	}
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != status || string(body) != want || mediaType(resp.Header.Get("Content-Type")) != typeJSON {
		t.Errorf("%d %s\nwant %d %s", resp.StatusCode, body, status, want)
	}
}
