package main

import (
	"context"
	"log/slog"
	"strings"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// A reload reads the configuration again, as it was read first.
type reload func() (*config.Config, error)

// onSignal reads the configuration again at each SIGHUP and takes over its upstreams and
// links, until stop is called. All else stays as it was at the start, of which the log
// tells, and so does everything if the configuration cannot be used. When ctx is done the
// signal has no effect.
func (again reload) onSignal(ctx context.Context, first *config.Config, adopt func(*config.Config) error, log *slog.Logger) (stop func()) {
	return onEach(func() {
		if ctx.Err() != nil {
			return
		}
		cfg, err := again()
		if err == nil {
			err = adopt(cfg)
		}
		if err != nil {
			log.Error("configuration not taken over", "err", err)
			return
		}
		if keys := first.Changed(cfg); len(keys) > 0 {
			log.Warn("changed settings that need a restart are not taken over", "keys", strings.Join(keys, ", "))
		}
		log.Info("configuration taken over", "upstreams", len(cfg.Upstreams), "links", len(cfg.Links))
	}, syscall.SIGHUP)
}
