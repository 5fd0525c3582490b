package link_test

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// Both ends run on one connection. To stop them, cancel the server's ctx alone: its handlers
// finish, the link ends, and so does the client.
func Example() {
	client := &link.Client{}
	server := &link.Server{Handle: func(ctx context.Context, h link.Hello, c jsonrpc.Conn, over func(error)) {
		fmt.Println("serving", h.Upstream)
		<-ctx.Done()
		over(&jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("terminated"), Delivered: true})
	}}
	near, far := net.Pipe() // or the two ends of a socket
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(ctx, far) })
	wg.Go(func() { client.Serve(context.Background(), near) })

	conn, err := client.Open(ctx, link.Hello{Upstream: "files", Key: "1", Era: "legacy"})
	if err != nil {
		fmt.Println(err)
		return
	}
	stop()
	_, err = conn.Recv()
	fmt.Println(err)
	wg.Wait()
	// Output:
	// serving files
	// connection closed: signal: terminated
}
