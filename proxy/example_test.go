package proxy_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A proxy is a handler like any other; what it serves is a configuration.
func ExampleNew() {
	server := sdkServer()
	defer server.Close()

	cfg, _, err := config.Load(config.Options{URL: server.URL})
	if err != nil {
		log.Fatal(err)
	}
	p, err := proxy.New(cfg, proxy.Options{})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/tools/", http.StripPrefix("/tools", p.Handler()))
	web := httptest.NewServer(mux)

	fmt.Println(listTools(web.URL + "/tools/mcp"))

	p.Close()
	web.Close()
	// Output: [greet hang]
}

// A program that serves one client, as an MCP host starts it.
func ExampleProxy_ServeStdio() {
	cfg, _, err := config.Load(config.Options{Command: []string{"npx", "-y", "some-server"}})
	if err != nil {
		log.Fatal(err)
	}
	p, err := proxy.New(cfg, proxy.Options{Log: slog.Default(), Stdio: true})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	log.Print(p.ServeStdio(context.Background(), os.Stdin, os.Stdout))
}

// A shutdown lets requests finish, as long as there is time.
func ExampleProxy_Shutdown() {
	p, err := proxy.New(&config.Config{}, proxy.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel() // before the end, this ends it by force
	fmt.Println(p.Shutdown(ctx))
	// Output: <nil>
}

// An sdkHTTP is an MCP server on HTTP: greet answers, hang does not.
type sdkHTTP struct {
	*httptest.Server
	mcp     *mcp.Server
	over    chan struct{} // hang ends
	hanging chan struct{} // has an element for each call of hang that has come; beyond 16 they are not counted
}

func (s *sdkHTTP) Close() {
	close(s.over)
	s.Server.Close()
	for session := range s.mcp.Sessions() { // whose client had no time for a DELETE
		session.Close()
	}
}

func sdkServer() *sdkHTTP {
	over, hanging := make(chan struct{}), make(chan struct{}, 16)
	server := mcp.NewServer(&mcp.Implementation{Name: "server", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "greet"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hello"}}}, nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "hang"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		select {
		case hanging <- struct{}{}:
		default:
		}
		select {
		case <-ctx.Done():
		case <-over:
		}
		return nil, nil, ctx.Err()
	})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	return &sdkHTTP{web, server, over, hanging}
}

// connect returns an MCP client at a URL.
func connect(url string) *mcp.ClientSession {
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil)
	session, err := client.Connect(context.Background(), &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		log.Fatal(err)
	}
	return session
}

// listTools returns the names of the tools at a URL.
func listTools(url string) (names []string) {
	session := connect(url)
	defer session.Close()
	list, err := session.ListTools(context.Background(), nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range list.Tools {
		names = append(names, t.Name)
	}
	return names
}
