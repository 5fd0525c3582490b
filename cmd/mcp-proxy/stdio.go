package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// runStdio serves the one client on stdin and stdout until it goes away. Hosts
// close stdin, send SIGTERM 2 s later and SIGKILL 2 s after that: a signal ends
// everything within 1.5 s.
func runStdio(ctx context.Context, cfg *config.Config, _ reload, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	p, err := proxy.New(cfg, proxy.Options{Log: log, Stdio: true})
	if err != nil {
		return failedBy(err)
	}
	defer tellStatus(p.Snapshot, log)()
	_ = p.ServeStdio(ctx, os.Stdin, os.Stdout) // that the client went is no failure
	_ = p.Shutdown(ctx)                        // nor is that a signal forces the rest
	return nil
}
