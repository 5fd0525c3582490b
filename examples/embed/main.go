// Command embed mounts mcp-proxy into your own web server: MCP clients connect to two servers at /tools/mcp, and all
// other paths are yours.
//
//	go run ./examples/embed
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func main() {
	cfg, _, err := config.Load(config.Options{File: "examples/quickstart.yaml"})
	if err != nil {
		log.Fatal(err)
	}
	p, err := proxy.New(cfg, proxy.Options{Log: slog.Default()})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/tools/", http.StripPrefix("/tools", p.Handler()))
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "my own page") })
	web := &http.Server{Addr: "127.0.0.1:8081"}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	go func() {
		defer stop()
		log.Print(web.ListenAndServe())
	}()

	<-ctx.Done() // then end clients first, the web server last
	end, cancel := context.WithTimeout(context.Background(), cfg.ShutdownGrace)
	defer cancel()
	p.Shutdown(end)
	web.Close()
}
