package main

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// A reload reads the configuration again, as it was read first. With an error it still says
// which files were read.
type reload func() (*config.Config, error)

// A takeover has a service take over what has changed in the configuration.
type takeover struct {
	// Static.
	ctx   context.Context // done: nothing is taken over any more
	again reload
	first *config.Config
	adopt func(*config.Config) error
	log   *slog.Logger

	mu sync.Mutex // held while the configuration is taken over
}

// onSignal takes over the configuration at each SIGHUP, until stop is called.
func (t *takeover) onSignal() (stop func()) {
	return onEach(func() { t.now() }, syscall.SIGHUP)
}

// now reads the configuration again and takes over its upstreams and links. All else stays as
// it was at the start, of which the log tells, and so does everything if the configuration
// cannot be used. It returns the files that were read, or looked for; nil for none.
func (t *takeover) now() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return nil
	}
	cfg, err := t.again()
	if err == nil {
		err = t.adopt(cfg)
	}
	if err != nil {
		t.log.Error("configuration not taken over", "err", err)
		return cfg.Read
	}
	if keys := t.first.Changed(cfg); len(keys) > 0 {
		t.log.Warn("changed settings that need a restart are not taken over", "keys", strings.Join(keys, ", "))
	}
	t.log.Info("configuration taken over", "upstreams", len(cfg.Upstreams), "links", len(cfg.Links))
	return cfg.Read
}
