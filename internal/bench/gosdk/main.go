// Command gosdk is what one gets who writes a proxy with the Go SDK and nothing else:
// a server whose tools call those of a client. It is started as
//
//	gosdk [-http ADDRESS] URL|COMMAND…
//
// and speaks stdio, or Streamable HTTP with a server of each session's own. It is here
// to be measured.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"os/exec"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	log.SetFlags(0)
	address := flag.String("http", "", "serve Streamable HTTP at this `address` instead of stdio")
	flag.Parse()
	if err := run(context.Background(), *address, flag.Args()); err != nil {
		log.Fatal("gosdk: ", err)
	}
}

func run(ctx context.Context, address string, upstream []string) error {
	if address != "" {
		return http.ListenAndServe(address, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server {
			s, err := proxy(ctx, upstream)
			if err != nil {
				log.Print("gosdk: ", err)
			}
			return s
		}, nil))
	}
	s, err := proxy(ctx, upstream)
	if err != nil {
		return err
	}
	return s.Run(ctx, &mcp.StdioTransport{})
}

// proxy returns a server that has the tools of upstream.
func proxy(ctx context.Context, upstream []string) (*mcp.Server, error) {
	implementation := &mcp.Implementation{Name: "gosdk", Version: "1"}
	far, err := mcp.NewClient(implementation, nil).Connect(ctx, transport(upstream), nil)
	if err != nil {
		return nil, err
	}
	s := mcp.NewServer(implementation, &mcp.ServerOptions{
		InitializedHandler: func(_ context.Context, req *mcp.InitializedRequest) {
			go func() { // the server of a session ends with it
				req.Session.Wait()
				far.Close()
			}()
		},
	})
	for tool, err := range far.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		s.AddTool(tool, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return far.CallTool(ctx, &mcp.CallToolParams{Name: req.Params.Name, Arguments: req.Params.Arguments})
		})
	}
	return s, nil
}

func transport(upstream []string) mcp.Transport {
	if strings.HasPrefix(upstream[0], "http:") {
		return &mcp.StreamableClientTransport{Endpoint: upstream[0]}
	}
	return &mcp.CommandTransport{Command: exec.Command(upstream[0], upstream[1:]...)}
}
