// Command embed mounts mcp-proxy into a web server of your own: MCP clients reach
// two servers at /tools/mcp, and everything else is yours.
//
//	go run ./examples/embed
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/pool"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

const address = "127.0.0.1:8081"

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	// The far half: what runs the servers.
	host := &upstream.Host{
		Log: log,
		Upstreams: map[string]upstream.Upstream{
			"clock": {Command: &process.Command{Path: "go", Args: []string{"run", "./examples/servers/clock"}}},
			"notes": {Command: &process.Command{Path: "go", Args: []string{"run", "./examples/servers/notes"}}},
		},
	}
	translator := &pool.Bridge{Log: log, Open: host.Open}
	host.Bridge = struct { // for clients and servers of different eras
		*pool.Bridge
		*translate.Translator
	}{translator, &translate.Translator{Log: log, Open: host.Open}}
	server := &link.Server{
		Log: log,
		Handle: func(ctx context.Context, h link.Hello, c jsonrpc.Conn) error {
			return host.Attach(ctx, h.Upstream, h.Key, mcp.Era(h.Era), c)
		},
	}

	// The near half: what serves clients.
	client := &link.Client{Log: log}
	router := &session.Router{
		Log:       log,
		Upstreams: []session.Upstream{{Name: "clock"}, {Name: "notes"}},
		Dialer: session.DialFunc(func(ctx context.Context, name, key string, era mcp.Era) (jsonrpc.Conn, error) {
			return client.Open(ctx, link.Hello{Upstream: name, Key: key, Era: string(era)})
		}),
	}
	front := &frontend.HTTP{
		Log: log,
		Serve: func(ctx context.Context, _ string, c jsonrpc.Conn) error {
			return router.Serve(ctx, c)
		},
		ServePrincipal: router.ServePrincipal,
	}

	// Between them a link, here in memory.
	linked, hangUp := context.WithCancel(context.Background())
	near, far := link.Ring()
	var wg sync.WaitGroup
	wg.Go(func() { client.Serve(linked, near) })
	wg.Go(func() { server.Serve(context.Background(), far) })

	mux := http.NewServeMux()
	mux.Handle("/tools/", http.StripPrefix("/tools", front))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "my own page") })
	web := &http.Server{Addr: address, Handler: mux}
	wg.Go(func() {
		if err := web.ListenAndServe(); err != http.ErrServerClosed {
			log.Error("web server", "err", err)
			stop()
		}
	})
	fmt.Printf("MCP at http://%s/tools/mcp\n", address)

	// The end, from the clients to the servers.
	<-ctx.Done()
	front.Close()
	web.Close()
	hangUp()
	wg.Wait()
	translator.Stop(context.Background())
	host.Stop(context.Background())
}
