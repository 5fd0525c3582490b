package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// tellStatus logs what the host runs for each signal on asked, until ctx is done.
func (h *hosting) tellStatus(ctx context.Context, asked chan os.Signal, log *slog.Logger) {
	defer signal.Stop(asked)
	for {
		select {
		case <-asked:
			all := h.host.Status()
			log.Info("status", "upstreams", len(all))
			for _, s := range all {
				logStatus(log, s)
			}
		case <-ctx.Done():
			return
		}
	}
}

func logStatus(log *slog.Logger, s upstream.Status) {
	log = log.With("upstream", s.Upstream, "session", s.Key[:min(len(s.Key), 8)], "state", string(s.State), "era", string(s.Era), "speaks", s.Speaks, "failures", s.Failures)
	switch s.State {
	case upstream.StateStarting, upstream.StateRunning, upstream.StateStopping:
		log = log.With("pid", s.PID, "dur", time.Since(s.Started), "in_flight", s.InFlight)
	}
	log.Info("upstream status", "unusable", s.Unusable, "stderr", strings.Join(s.Stderr, "\n"))
}
