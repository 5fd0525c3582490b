package frontend

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// modernScripted is a small modern server. "notify" sends progress, "never" reports started, and
// cancelled when it is; any other tool returns its arguments.
func modernScripted(c jsonrpc.Conn, started, cancelled chan<- struct{}) error {
	for {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		answer := func(result string) { c.Send(jsonrpc.NewResult(m.ID, json.RawMessage(result))) }
		switch m.Method {
		case "server/discover":
			answer(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}},"ttlMs":0,"cacheScope":"private",
				"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"test","version":"1"}}}`)
		case "tools/list":
			answer(`{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{"name":"notify","inputSchema":{"type":"object"}},{"name":"never","inputSchema":{"type":"object"}},
				{"name":"back","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"},"empty":{"type":"string","x-mcp-header":"E"}}}}]}`)
		case "subscriptions/listen":
			c.Send(noted(m, "notifications/subscriptions/acknowledged", `{"notifications":{"toolsListChanged":true}}`))
			c.Send(noted(m, "notifications/tools/list_changed", `{}`))
		case "notifications/cancelled":
			cancelled <- struct{}{}
		case "tools/call":
			callModern(c, m, started)
		}
	}
}

func callModern(c jsonrpc.Conn, m *jsonrpc.Message, started chan<- struct{}) {
	name, _ := jsonrpc.Member(m.Params, "name")
	arguments, _ := jsonrpc.Member(m.Params, "arguments")
	text := jsonrpc.Quote(string(arguments))
	switch string(name) {
	case `"never"`:
		started <- struct{}{}
		return
	case `"notify"`:
		meta, _ := jsonrpc.Member(m.Params, "_meta")
		token, _ := jsonrpc.Member(meta, "progressToken")
		c.Send(noted(m, "notifications/progress", `{"progress":1,"progressToken":`+string(token)+`}`))
		text = json.RawMessage(`"notified"`)
	}
	c.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"resultType":"complete","content":[{"type":"text","text":`+string(text)+`}]}`)))
}

// TestSDKModernClient uses the official Go client, which finds out that there are no sessions.
func TestSDKModernClient(t *testing.T) {
	started, cancelled := make(chan struct{}, 1), make(chan struct{}, 10)
	ts := newTestServer(t, func(h *HTTP) {
		h.ServePrincipal = principal(func(c jsonrpc.Conn) error { return modernScripted(c, started, cancelled) })
	})
	progress, changed := make(chan struct{}, 10), make(chan struct{}, 10)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { progress <- struct{}{} },
		ToolListChangedHandler:      func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
	})
	cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: ts.url + "/mcp", HTTPClient: ts.client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	if v := cs.InitializeResult().ProtocolVersion; v != "2026-07-28" {
		t.Fatalf("the client speaks %s", v)
	}
	conntest.Await(t, "list change", changed) // it forgets the tools with that
	if list, err := cs.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 3 {
		t.Fatalf("ListTools: %v, %v", list, err)
	}
	callSDK(t, cs, "notify", "notified")
	conntest.Await(t, "progress", progress)
	r, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "back", Arguments: map[string]any{"region": " é", "n": 42, "empty": ""}})
	if err != nil || r.Content[0].(*mcp.TextContent).Text != `{"empty":"","n":42,"region":" é"}` {
		t.Errorf("CallTool: %v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "never"}); err == nil {
		t.Error("a cancelled call returned a result")
	}
	conntest.Await(t, "cancel", cancelled)
	callSDK(t, cs, "notify", "notified")
}
