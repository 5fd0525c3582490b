package main

import (
	"context"
	"log/slog"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// A reload reads the configuration again, as it was read first.
type reload func() (*config.Config, error)

// onSignal has the upstreams and links of the configuration taken over anew at each
// SIGHUP, until stop is called. Everything else in it is as it was at the start. One
// that cannot be used changes nothing. When ctx is done the signal has no effect.
func (again reload) onSignal(ctx context.Context, adopt func(*config.Config) error, log *slog.Logger) (stop func()) {
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
		log.Info("configuration taken over", "upstreams", len(cfg.Upstreams), "links", len(cfg.Links))
	}, syscall.SIGHUP)
}
