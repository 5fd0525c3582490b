//go:build unix

//nolint:staticcheck // sampling and logging go with 2026-07-28; clients of all versions have them today.
package main

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	eras "github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// newSDKServer returns a server that uses everything in the official SDK, for the versions of
// one era.
func newSDKServer(era eras.Era) *mcp.Server {
	accept := func(context.Context, *mcp.SubscribeRequest) error { return nil }
	versions := eras.LegacyVersions
	if era == eras.Modern {
		versions = eras.ModernVersions
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, &mcp.ServerOptions{
		SupportedProtocolVersions: versions,
		SubscribeHandler:          accept,
		UnsubscribeHandler:        func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		CompletionHandler: func(_ context.Context, r *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{r.Params.Argument.Value + "lete"}}}, nil
		},
	})
	s.AddReceivingMiddleware(narrow(era))
	addSDKTools(s)
	s.AddResource(&mcp.Resource{URI: "sdk://it", Name: "it"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: "sdk://it", Text: "read"}}}, nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "greet", Arguments: []*mcp.PromptArgument{{Name: "name"}}}, func(_ context.Context, r *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: "Hello " + r.Params.Arguments["name"]}}}}, nil
	})
	return s
}

// narrow removes the other era from a server, which the options of the SDK do not do
// completely.
func narrow(era eras.Era) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			switch {
			case strings.HasPrefix(method, "notifications/"):
			case era == eras.Modern && method == "initialize":
				return nil, &jsonrpc.Error{Code: eras.CodeUnsupportedVersion, Message: "unsupported protocol version", Data: json.RawMessage(`{"supported":["2026-07-28"]}`)}
			case era != eras.Modern && (method == "server/discover" || method == "subscriptions/listen"):
				return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found: " + method}
			}
			return next(ctx, method, req)
		}
	}
}

// addSDKTools adds work, which reports progress, logs and asks; update; wait, which waits until
// it is cancelled; and waited, which fails until then.
func addSDKTools(s *mcp.Server) {
	mcp.AddTool(s, &mcp.Tool{Name: "work"}, sdkWork)
	mcp.AddTool(s, &mcp.Tool{Name: "update"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{}, nil, s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: "sdk://it"})
	})
	var waited atomic.Bool
	mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		if err := sdkProgress(ctx, r); err != nil {
			return nil, nil, err
		}
		<-ctx.Done()
		waited.Store(true)
		return nil, nil, ctx.Err()
	})
	mcp.AddTool(s, &mcp.Tool{Name: "waited"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{IsError: !waited.Load()}, nil, nil
	})
}

func sdkProgress(ctx context.Context, r *mcp.CallToolRequest) error {
	return r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
}

// sdkWork reports progress, logs and asks twice before it answers with the client's answers.
func sdkWork(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
	elicit := &mcp.ElicitParams{Message: "sure?"}
	sample := &mcp.CreateMessageWithToolsParams{MaxTokens: 10, Messages: []*mcp.SamplingMessageV2{{Role: "user", Content: []mcp.Content{&mcp.TextContent{Text: "?"}}}}}
	if _, modern := r.Params.Meta[eras.KeyVersion]; modern {
		return sdkAskByResult(ctx, r, elicit, sample)
	}
	if err := sdkTell(ctx, r); err != nil {
		return nil, nil, err
	}
	elicited, err := r.Session.Elicit(ctx, elicit)
	if err != nil {
		return nil, nil, err
	}
	sampled, err := r.Session.CreateMessageWithTools(ctx, sample)
	if err != nil {
		return nil, nil, err
	}
	return sdkHeard(elicited.Action, sampled), nil, nil
}

// sdkAskByResult asks by results, as in the modern era: one question in each.
func sdkAskByResult(ctx context.Context, r *mcp.CallToolRequest, elicit *mcp.ElicitParams, sample *mcp.CreateMessageWithToolsParams) (*mcp.CallToolResult, any, error) {
	switch answer := r.Params.InputResponses["q"].(type) {
	case *mcp.ElicitResult:
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"q": sample}, RequestState: answer.Action}, nil, nil
	case *mcp.CreateMessageWithToolsResult:
		return sdkHeard(r.Params.RequestState, answer), nil, nil
	}
	if err := sdkTell(ctx, r); err != nil {
		return nil, nil, err
	}
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"q": elicit}, RequestState: "first"}, nil, nil
}

func sdkTell(ctx context.Context, r *mcp.CallToolRequest) error {
	if err := sdkProgress(ctx, r); err != nil {
		return err
	}
	return r.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "said"})
}

func sdkHeard(action string, sampled *mcp.CreateMessageWithToolsResult) *mcp.CallToolResult {
	text := action + " " + sampled.Content[0].(*mcp.TextContent).Text
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// sdkServer is that server on stdio.
func sdkServer() {
	newSDKServer(eras.Era(os.Getenv("FAKE_ERA"))).Run(context.Background(), &mcp.StdioTransport{})
}
