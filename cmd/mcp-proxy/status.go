package main

import (
	"log/slog"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// tellStatus logs what runs for each signal that asks, until stop is called.
func tellStatus(snapshot func() proxy.Snapshot, log *slog.Logger) (stop func()) {
	return onEach(func() {
		now := snapshot()
		log.Info("status", "upstreams", len(now.Upstreams))
		for _, u := range now.Upstreams {
			logUpstream(log, u)
		}
		for _, s := range now.Sessions {
			log.Info("session status", "session", s.ID, "client", s.Client, "principal", s.Principal, "transport", s.Transport,
				"era", s.Era, "dur", time.Since(s.Began), "in_flight", s.InFlight)
		}
		for _, l := range now.Links {
			log.Info("link status", "link", l.Name, "up", l.Up, "lost", l.Lost, "upstreams", l.Upstreams)
		}
	}, statusSignals...)
}

func logUpstream(log *slog.Logger, u proxy.Upstream) {
	log = log.With("upstream", u.Name, "session", u.Session, "state", u.State, "era", u.Era, "speaks", u.Speaks, "failures", u.Failures)
	switch u.State {
	case "starting", "running", "stopping":
		log = log.With("pid", u.PID, "dur", time.Since(u.Started), "in_flight", u.InFlight)
	}
	log.Info("upstream status", "unusable", u.Unusable, "stderr", strings.Join(u.Stderr, "\n"))
}
