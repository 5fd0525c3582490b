package remote

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// sdkServer is a server made with the Go SDK: "ask" asks the user before it
// answers, "wait" tells when it starts and waits until it is cancelled, "drop"
// ends the connection before it answers.
func sdkServer(waits chan<- string) *mcp.Server {
	type none struct{}
	s := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "ask"}, func(ctx context.Context, r *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, any, error) {
		if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1}); err != nil {
			return nil, nil, err
		}
		answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "?"})
		if err != nil {
			return nil, nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "they " + answer.Action}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, any, error) {
		waits <- "started"
		<-ctx.Done()
		waits <- "cancelled"
		return nil, nil, ctx.Err()
	})
	mcp.AddTool(s, &mcp.Tool{Name: "drop"}, func(_ context.Context, r *mcp.CallToolRequest, _ none) (*mcp.CallToolResult, any, error) {
		if r.Extra != nil && r.Extra.CloseSSEStream != nil {
			r.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "dropped"}}}, nil, nil
	})
	return s
}

// TestGoSDK speaks with the transports of the Go SDK. What the server sends
// during a call is related to it, but on HTTP+SSE, which cannot tell.
func TestGoSDK(t *testing.T) {
	waits := make(chan string, 1)
	s := sdkServer(waits)
	defer func() {
		for session := range s.Sessions() { // whose client had no time for a DELETE
			session.Close()
		}
	}()
	get := func(*http.Request) *mcp.Server { return s }
	tests := []struct {
		name    string
		handler http.Handler
		sse     bool
		related string
		dropped string
	}{
		{"streamable", mcp.NewStreamableHTTPHandler(get, nil), false, "1", `"cause":"stream ended"`},
		{"with events kept", mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}), false, "1", `"text":"dropped"`},
		{"SSE", mcp.NewSSEHandler(get, nil), true, "", `"text":"dropped"`},
		{"SSE found out", mcp.NewSSEHandler(get, nil), false, "", `"text":"dropped"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := httptest.NewServer(tt.handler)
			defer h.Close()
			up, l := server(t, h.URL)
			up.SSE = tt.sse
			c := dial(t, up)
			defer c.close()
			c.request(0, "initialize", strings.Replace(initParams, `"capabilities":{}`, `"capabilities":{"elicitation":{}}`, 1))
			if m := c.recv(); m.Result == nil {
				t.Fatalf("initialize was answered with %s", m.Append(nil))
			}
			c.notify("notifications/initialized", "{}")
			c.request(1, "tools/call", `{"name":"ask","arguments":{},"_meta":{"progressToken":"p"}}`)
			if m := c.recv(); m.Method != "notifications/progress" || m.Related.String() != tt.related {
				t.Errorf("got %s, related to %q", m.Append(nil), m.Related)
			}
			question := c.recv()
			if question.Method != "elicitation/create" || question.Related.String() != tt.related {
				t.Errorf("got %s, related to %q", question.Append(nil), question.Related)
			}
			c.send(jsonrpc.NewResult(question.ID, raw(`{"action":"decline"}`)))
			if m := c.recv(); !strings.Contains(string(m.Result), "they decline") {
				t.Errorf("got %s", m.Append(nil))
			}
			c.request(2, "tools/call", `{"name":"wait","arguments":{}}`)
			<-waits
			c.cancel(2)
			<-waits
			c.request(3, "tools/call", `{"name":"drop","arguments":{}}`)
			if m := c.recv(); m.ID != jsonrpc.IntID(3) || !strings.Contains(string(m.Append(nil)), tt.dropped) {
				t.Errorf("got %s", m.Append(nil))
			}
			c.request(4, "tools/list", "{}")
			if m := c.recv(); m.ID != jsonrpc.IntID(4) || m.Result == nil {
				t.Errorf("got %s", m.Append(nil))
			}
			c.close()
			if l.sum("level=WARN") != strings.Count(tt.dropped, "ended") {
				t.Errorf("the log is %s", l)
			}
		})
	}
}
