//go:build unix

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	eras "github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// The official SDK is the client and the server, in each era and at each place.
func TestSDK(t *testing.T) {
	t.Parallel()
	for _, place := range places {
		t.Run(place, func(t *testing.T) { useSDKAt(t, layout{place: place}) })
	}
	for _, l := range otherPairs {
		for _, l.place = range []string{"local", "HTTP", "unix link", "shared"} {
			t.Run(l.pair()+"/"+l.place, func(t *testing.T) { useSDKAt(t, l) })
		}
	}
}

func useSDKAt(t *testing.T, l layout) {
	l.start = "sdkserver"
	switch l.place {
	case "WebSocket":
		t.Skip("the SDK has none")
	case "HTTP":
		server := newSDKServer(l.era)
		listener := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
			&mcp.StreamableHTTPOptions{Stateless: l.era == eras.Modern, PropagateRequestCancellation: true}))
		t.Cleanup(func() {
			listener.Close()
			for session := range server.Sessions() { // its client had no time for a DELETE
				session.Close()
			}
		})
		l.start = strings.TrimPrefix(listener.URL, "http://")
	}
	s := newSite(t, l)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	s.useSDK("a__", &mcp.StreamableClientTransport{Endpoint: s.url + "/mcp", HTTPClient: client})
}

// A server that the SDK restricts to the modern era still accepts initialize, and refuses
// everything after it: a legacy client must be translated.
func TestSDKRestricted(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "restricted", Version: "1"},
		&mcp.ServerOptions{SupportedProtocolVersions: eras.ModernVersions})
	addSDKTools(server)
	listener := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		&mcp.StreamableHTTPOptions{Stateless: true}))
	t.Cleanup(listener.Close)
	s := newSite(t, layout{place: "HTTP", start: strings.TrimPrefix(listener.URL, "http://")})
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	c := s.connectSDK(&mcp.StreamableClientTransport{Endpoint: s.url + "/mcp", HTTPClient: client})
	result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "a__work"})
	if err != nil || result.IsError {
		t.Errorf("got %+v, %v", result, err)
	}
}

// TestSDK over stdio.
func TestSDKStdio(t *testing.T) {
	t.Parallel()
	for _, l := range append([]layout{{}}, otherPairs...) {
		t.Run(l.pair(), func(t *testing.T) {
			s := emptySite(t)
			s.layout = l
			proxy := exec.Command("mcp-proxy", "stdio", "--", "sdkserver")
			proxy.Env = append(proxy.Environ(), "FAKE_ERA="+string(l.era))
			s.useSDK("", &mcp.CommandTransport{Command: proxy})
		})
	}
}

// A sdkClient collects what the SDK's client receives.
type sdkClient struct {
	*mcp.ClientSession
	progress, logged, updated chan string
}

func (s *site) connectSDK(over mcp.Transport) *sdkClient {
	t := s.t
	c := &sdkClient{progress: make(chan string, 999), logged: make(chan string, 999), updated: make(chan string, 999)}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			c.progress <- r.Params.ProgressToken.(string)
		},
		LoggingMessageHandler:  func(_ context.Context, r *mcp.LoggingMessageRequest) { c.logged <- r.Params.Data.(string) },
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { c.updated <- r.Params.URI },
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "decline"}, nil
		},
		//nolint:staticcheck // clients of all versions have sampling today
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			//nolint:staticcheck // likewise
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "sampled"}}, nil
		},
	})
	versions := eras.LegacyVersions
	if s.layout.client == eras.Modern {
		versions = eras.ModernVersions
	}
	var err error
	c.ClientSession, err = client.Connect(t.Context(), over, &mcp.ClientSessionOptions{ProtocolVersion: versions[0]})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if got := c.InitializeResult().ProtocolVersion; got != versions[0] {
		t.Errorf("speaks %s, want %s", got, versions[0])
	}
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

// useSDK uses everything that a server offers; prefix is that of its names.
func (s *site) useSDK(prefix string, over mcp.Transport) {
	t, c := s.t, s.connectSDK(over)
	ctx := t.Context()
	call := func(tool string) (*mcp.CallToolResult, error) {
		return c.CallTool(ctx, &mcp.CallToolParams{Name: prefix + tool, Arguments: struct{}{}, Meta: mcp.Meta{"progressToken": "p", eras.KeyLogLevel: "info"}})
	}
	if listed, err := c.ListTools(ctx, nil); err != nil || len(listed.Tools) < 4 {
		t.Errorf("list: %v %+v", err, listed)
	}
	// A modern process does not say for which call it logs. After a cancelled call, messages do
	// not reach other calls of the same principal for a while.
	late := s.layout.era == eras.Modern && s.layout.place != "HTTP" && s.layout.client == eras.Modern
	if !late {
		c.cancelOne(t, prefix, call)
	}
	if s.layout.client != eras.Modern {
		//nolint:staticcheck // clients of all versions have logging today
		if err := c.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
			t.Fatal("setLevel:", err)
		}
	}
	worked, err := call("work")
	if s.layout.ownProcess() && s.layout.place == "shared" { // a question may still be for the cancelled call
		eventually(t, "work", func() bool {
			worked, err = call("work")
			return err != nil || !worked.IsError
		})
	}
	if err != nil || worked.IsError || worked.Content[0].(*mcp.TextContent).Text != "decline sampled" {
		t.Errorf("work: %v %+v", err, worked)
	}
	hears(t, c.progress, "p")
	hears(t, c.logged, "said")
	if late {
		c.cancelOne(t, prefix, call)
	}
	if err := c.Subscribe(ctx, &mcp.SubscribeParams{URI: "sdk://it"}); err != nil {
		t.Error("subscribe:", err)
	}
	eventually(t, "the update", func() bool { // Subscribe may return before the server has the request
		if _, err := call("update"); err != nil {
			t.Error("update:", err)
		}
		select {
		case got := <-c.updated:
			return got == "sdk://it"
		case <-time.After(100 * time.Millisecond):
			return false
		}
	})
	if r, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: "sdk://it"}); err != nil || r.Contents[0].Text != "read" {
		t.Errorf("read: %v %+v", err, r)
	}
	if r, err := c.GetPrompt(ctx, &mcp.GetPromptParams{Name: prefix + "greet", Arguments: map[string]string{"name": "you"}}); err != nil ||
		r.Messages[0].Content.(*mcp.TextContent).Text != "Hello you" {
		t.Errorf("prompt: %v %+v", err, r)
	}
	if r, err := c.Complete(ctx, &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: prefix + "greet"},
		Argument: mcp.CompleteParamsArgument{Name: "name", Value: "comp"}}); err != nil || r.Completion.Values[0] != "complete" {
		t.Errorf("complete: %v %+v", err, r)
	}
}

// cancelOne cancels a call, and waits until the server has the cancellation.
func (c *sdkClient) cancelOne(t *testing.T, prefix string, call func(string) (*mcp.CallToolResult, error)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() {
		_, err := c.CallTool(ctx, &mcp.CallToolParams{Name: prefix + "wait", Arguments: struct{}{}, Meta: mcp.Meta{"progressToken": "w"}})
		over <- err
	}()
	hears(t, c.progress, "w")
	cancel()
	if err := <-over; err == nil {
		t.Error("the call that was cancelled has a result")
	}
	eventually(t, "the end of the call that was cancelled", func() bool {
		r, err := call("waited")
		return err == nil && !r.IsError
	})
}
