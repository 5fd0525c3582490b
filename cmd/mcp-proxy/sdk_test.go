//go:build unix

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// newSDKServer returns a server made with the official SDK that uses all it has.
func newSDKServer() *mcp.Server {
	accept := func(context.Context, *mcp.SubscribeRequest) error { return nil }
	s := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler:   accept,
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{r.Params.Argument.Value + "lete"}}}, nil
		},
	})
	mcp.AddTool(s, &mcp.Tool{Name: "work"}, sdkWork)
	mcp.AddTool(s, &mcp.Tool{Name: "update"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{}, nil, s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: "sdk://it"})
	})
	s.AddResource(&mcp.Resource{URI: "sdk://it", Name: "it"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "sdk://it", Text: "read"}}}, nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "greet", Arguments: []*mcp.PromptArgument{{Name: "name"}}}, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Hello " + r.Params.Arguments["name"]}}}}, nil
	})
	return s
}

// sdkWork tells, logs and asks before it answers with what it heard.
func sdkWork(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
	if err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1}); err != nil {
		return nil, nil, err
	}
	//lint:ignore SA1019 every version that clients speak today has logging
	if err := r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "said"}); err != nil {
		return nil, nil, err
	}
	elicited, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "sure?"})
	if err != nil {
		return nil, nil, err
	}
	//nolint:staticcheck // every version that clients speak today has sampling
	sampled, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 10, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: "?"}}}})
	if err != nil {
		return nil, nil, err
	}
	text := elicited.Action + " " + sampled.Content.(*mcp.TextContent).Text
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
}

// sdkServer is that server on stdio.
func sdkServer() { newSDKServer().Run(context.Background(), &mcp.StdioTransport{}) }

// The official SDK is the client and the server, wherever that is.
func TestSDK(t *testing.T) {
	for _, place := range places {
		t.Run(place, func(t *testing.T) {
			l := layout{place: place, start: "sdkserver"}
			switch place {
			case "WebSocket":
				t.Skip("the SDK has none")
			case "HTTP":
				server := newSDKServer()
				listener := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
				t.Cleanup(listener.Close)
				l.start = strings.TrimPrefix(listener.URL, "http://")
			}
			useSDK(newSite(t, l))
		})
	}
}

// A sdkClient keeps what the SDK's client hears.
type sdkClient struct {
	*mcp.ClientSession
	progress, logged, updated chan string
}

func (s *site) connectSDK() *sdkClient {
	t := s.t
	c := &sdkClient{progress: make(chan string, 9), logged: make(chan string, 9), updated: make(chan string, 9)}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			c.progress <- r.Params.ProgressToken.(string)
		},
		LoggingMessageHandler:  func(_ context.Context, r *mcp.LoggingMessageRequest) { c.logged <- r.Params.Data.(string) },
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { c.updated <- r.Params.URI },
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
		//nolint:staticcheck // likewise
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			//nolint:staticcheck // likewise
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "sampled"}}, nil
		},
	})
	http := &http.Client{Transport: &http.Transport{}}
	var err error
	c.ClientSession, err = client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.url + "/mcp", HTTPClient: http}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		http.CloseIdleConnections()
	})
	return c
}

// hears waits for one message.
func hears(t *testing.T, from chan string, want string) {
	t.Helper()
	select {
	case got := <-from:
		if got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Errorf("%q was not heard", want)
	}
}

func useSDK(s *site) {
	t, c := s.t, s.connectSDK()
	ctx := t.Context()
	//lint:ignore SA1019 every version that clients speak today has logging
	if err := c.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
		t.Fatal("setLevel:", err)
	}
	worked, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "a__work", Arguments: struct{}{}, Meta: mcp.Meta{"progressToken": "p"}})
	if err != nil || worked.IsError || worked.Content[0].(*mcp.TextContent).Text != "decline sampled" {
		t.Errorf("work: %v %+v", err, worked)
	}
	hears(t, c.progress, "p")
	hears(t, c.logged, "said")

	if err := c.Subscribe(ctx, &mcp.SubscribeParams{URI: "sdk://it"}); err != nil {
		t.Error("subscribe:", err)
	}
	if _, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "a__update", Arguments: struct{}{}}); err != nil {
		t.Error("update:", err)
	}
	hears(t, c.updated, "sdk://it")
	if r, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: "sdk://it"}); err != nil || r.Contents[0].Text != "read" {
		t.Errorf("read: %v %+v", err, r)
	}
	if r, err := c.GetPrompt(ctx, &mcp.GetPromptParams{Name: "a__greet", Arguments: map[string]string{"name": "you"}}); err != nil ||
		r.Messages[0].Content.(*mcp.TextContent).Text != "Hello you" {
		t.Errorf("prompt: %v %+v", err, r)
	}
	if r, err := c.Complete(ctx, &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "a__greet"},
		Argument: mcp.CompleteParamsArgument{Name: "name", Value: "comp"}}); err != nil || r.Completion.Values[0] != "complete" {
		t.Errorf("complete: %v %+v", err, r)
	}
}
