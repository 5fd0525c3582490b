package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// A reload reads the configuration again, as it was read first.
type reload func() (*config.Config, error)

// reloadOn has the upstreams and links of the configuration taken over anew at each
// SIGHUP, until ctx ends. Everything else in it is as it was at the start. One that cannot
// be used changes nothing.
func (again reload) reloadOn(ctx context.Context, adopt func(*config.Config) error, log *slog.Logger) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGHUP)
	defer signal.Stop(asked)
	for {
		select {
		case <-asked:
		case <-ctx.Done():
			return
		}
		cfg, err := again()
		if err == nil {
			err = adopt(cfg)
		}
		if err != nil {
			log.Error("configuration not taken over", "err", err)
			continue
		}
		log.Info("configuration taken over", "upstreams", len(cfg.Upstreams), "links", len(cfg.Links))
	}
}
