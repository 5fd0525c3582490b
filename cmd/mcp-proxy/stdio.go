package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
)

// runStdio serves the one client on stdin and stdout until it goes away. Hosts
// close stdin, send SIGTERM 2 s later and SIGKILL 2 s after that: a signal ends
// everything within 1.5 s.
func runStdio(ctx context.Context, cfg *config.Config, _ reload, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	e, err := newEngine(cfg, log)
	if err != nil {
		return err
	}
	if len(e.far.accepting()) > 0 {
		return config.Problems{{Source: cfg.File, Key: "links", Text: "accept needs mcp-proxy serve: nothing listens here for a host that dials"}}
	}
	e.near.host.ClientsOperate = true
	e.start()
	defer e.forceSoon(ctx)()
	client := frontend.NewStdio(os.Stdin, os.Stdout, limitsOf(cfg))
	err = e.serve(ctx, "", client)
	e.stop(ctx)
	if !errors.Is(err, jsonrpc.ErrClosed) {
		return &runError{err}
	}
	return nil
}
