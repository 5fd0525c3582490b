package frontend

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// scripted is a small server: the tool "ask" elicits before it answers, "notify" sends progress on
// the call's stream and log messages on the standalone one.
func scripted(c jsonrpc.Conn) error {
	asking := make(map[jsonrpc.ID]jsonrpc.ID) // question → call
	for n := int64(1); ; n++ {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		switch {
		case m.IsResponse():
			c.Send(jsonrpc.NewResult(asking[m.ID], json.RawMessage(`{"content":[{"type":"text","text":"asked"}]}`)))
		case m.Method == "tools/list":
			c.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[{"name":"ask","inputSchema":{"type":"object"}}]}`)))
		case m.Method == "tools/call":
			callScripted(c, m, n, asking)
		default:
			if reply := echoed(m); reply != nil {
				c.Send(reply)
			}
		}
	}
}

func callScripted(c jsonrpc.Conn, m *jsonrpc.Message, n int64, asking map[jsonrpc.ID]jsonrpc.ID) {
	name, _ := jsonrpc.Member(m.Params, "name")
	switch string(name) {
	case `"ask"`:
		question := jsonrpc.NewRequest(jsonrpc.IntID(n), "elicitation/create",
			json.RawMessage(`{"message":"sure?","requestedSchema":{"type":"object","properties":{}}}`))
		question.Related = m.ID
		asking[question.ID] = m.ID
		c.Send(question)
	case `"notify"`:
		meta, _ := jsonrpc.Member(m.Params, "_meta")
		token, _ := jsonrpc.Member(meta, "progressToken")
		progress := jsonrpc.NewNotification("notifications/progress", json.RawMessage(`{"progress":1,"progressToken":`+string(token)+`}`))
		progress.Related = m.ID
		c.Send(progress)
		c.Send(jsonrpc.NewNotification("notifications/message", json.RawMessage(`{"level":"info","data":"hello"}`)))
		c.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"content":[{"type":"text","text":"notified"}]}`)))
	case `"never"`:
		c.Send(jsonrpc.NewNotification("notifications/message", json.RawMessage(`{"level":"info","data":"started"}`)))
	}
}

// TestSDKClient uses the official Go client, with and without the token, over both HTTP transports.
func TestSDKClient(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) {
		h.Serve = untilDone(scripted)
		h.Guard.Clients = secret("secret")
	})
	ts.client.Transport = bearer{ts.client.Transport}
	for name, transport := range map[string]mcp.Transport{
		"streamable": &mcp.StreamableClientTransport{Endpoint: ts.url + "/mcp", HTTPClient: ts.client},
		"upstream":   &mcp.StreamableClientTransport{Endpoint: ts.url + "/mcp/files", HTTPClient: ts.client},
		"2024-11-05": &mcp.SSEClientTransport{Endpoint: ts.url + "/sse", HTTPClient: ts.client},
	} {
		t.Run(name, func(t *testing.T) { testSDKClient(t, transport) })
	}
	conntest.Eventually(t, "all sessions have ended", func() bool {
		open, _ := ts.connections()
		modern := ts.streamable.modern
		modern.mu.Lock()
		defer modern.mu.Unlock()
		return open == len(modern.conns) // of the question whether the server is modern
	})
}

// bearer adds a token to requests.
type bearer struct{ http.RoundTripper }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer secret")
	return b.RoundTripper.RoundTrip(r)
}

func testSDKClient(t *testing.T, transport mcp.Transport) {
	progress, logged, asked := make(chan struct{}, 10), make(chan any, 10), make(chan struct{}, 10)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { progress <- struct{}{} },
		LoggingMessageHandler:       func(_ context.Context, r *mcp.LoggingMessageRequest) { logged <- r.Params.Data },
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			asked <- struct{}{}
			return &mcp.ElicitResult{Action: "accept"}, nil
		},
	})
	cs, err := client.Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	if list, err := cs.ListTools(t.Context(), nil); err != nil || len(list.Tools) != 1 {
		t.Fatalf("ListTools: %v, %v", list, err)
	}
	callSDK(t, cs, "ask", "asked")
	conntest.Await(t, "question", asked)
	callSDK(t, cs, "notify", "notified")
	conntest.Await(t, "progress", progress)
	conntest.Await(t, "log message", logged)

	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "never"})
		failed <- err
	}()
	conntest.Await(t, "start of the call", logged)
	cancel()
	if err := conntest.Await(t, "end of the cancelled call", failed); err == nil {
		t.Error("a cancelled call returned a result")
	}
	callSDK(t, cs, "ask", "asked")
}

func callSDK(t *testing.T, cs *mcp.ClientSession, tool, want string) {
	t.Helper()
	params := &mcp.CallToolParams{Name: tool, Meta: mcp.Meta{"progressToken": "p"}}
	r, err := cs.CallTool(t.Context(), params)
	if err != nil {
		t.Fatalf("CallTool %s: %v", tool, err)
	}
	if text, ok := r.Content[0].(*mcp.TextContent); !ok || text.Text != want {
		t.Errorf("CallTool %s returned %v", tool, r.Content[0])
	}
}

// TestD28_SDKClient cuts all connections of the official client during a call: the client resumes,
// and the call returns.
func TestD28_SDKClient(t *testing.T) {
	t.Parallel()
	started, finish := make(chan struct{}), make(chan struct{})
	ts := newTestServer(t, func(h *HTTP) {
		h.Serve = untilDone(func(c jsonrpc.Conn) error { return slow(c, started, finish) })
	})
	logged := make(chan struct{}, 1)
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		LoggingMessageHandler: func(context.Context, *mcp.LoggingMessageRequest) { logged <- struct{}{} },
	})
	cs, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: ts.url + "/mcp", HTTPClient: ts.client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	var wg sync.WaitGroup
	wg.Go(func() { callSDK(t, cs, "slow", "done") })
	conntest.Await(t, "call", started)
	conntest.Await(t, "log message", logged) // with it, an event id
	ts.cut()
	close(finish)
	wg.Wait()
}

// slow is a server whose one call logs, then waits for finish.
func slow(c jsonrpc.Conn, started, finish chan struct{}) error {
	for {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		if m.Method != "tools/call" {
			if reply := echoed(m); reply != nil {
				c.Send(reply)
			}
			continue
		}
		log := jsonrpc.NewNotification("notifications/message", json.RawMessage(`{"level":"info","data":1}`))
		log.Related = m.ID
		c.Send(log)
		close(started)
		<-finish
		c.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"content":[{"type":"text","text":"done"}]}`)))
	}
}
