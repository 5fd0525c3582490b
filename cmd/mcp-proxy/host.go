package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

func newHost() *cobra.Command {
	var o options
	var at config.HostLink
	cmd := &cobra.Command{
		Use:   "host (--listen URL | --dial URL) [-- CMD ARGS…]",
		Short: "Offer upstreams to a proxy elsewhere",
		Long: "Runs the upstreams of a configuration for a proxy in another container or on another machine. The proxy dials it\n" +
			"(links: NAME: {dial: URL}), or it dials the proxy's /link (links: NAME: {accept: true, tokenFile: FILE}). URLs are\n" +
			"unix:///path, tcp://, tls://, ws:// and wss://.",
		Example: "  mcp-proxy host --config tools.yaml --listen unix:///run/mcp/tools.sock\n" +
			"  mcp-proxy host --dial wss://proxy.example.com/link --token-file token -- npx -y some-server",
		Args: commandBehindDash,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := at.Check(); err != nil {
				return err
			}
			cfg, again, log, err := o.load(args, config.Options{Host: true})
			if err != nil {
				return err
			}
			return runHost(cmd.Context(), cfg, at, again, log)
		},
	}
	o.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&at.Listen, "listen", "", "URL to listen at")
	flags.StringVar(&at.Dial, "dial", "", "URL of the proxy's /link, or of where it listens, to dial")
	flags.StringVar(&at.TokenFile, "token-file", "", "ws and wss: file with the bearer token to ask for, or to send")
	flags.StringVar(&at.TLS.CA, "tls-ca", "", "tls and wss: PEM file of authorities to trust; a listener then asks for client certificates")
	flags.StringVar(&at.TLS.Cert, "tls-cert", "", "tls and wss: PEM file of our certificate")
	flags.StringVar(&at.TLS.Key, "tls-key", "", "tls and wss: PEM file of its key")
	flags.DurationVar(&at.Heartbeat, "heartbeat", 5*time.Second, "how often to ask the proxy for a sign of life; after three without one it is gone")
	flags.BoolVar(&at.Insecure, "insecure", false, "accept a link that others can read, or come in by")
	return cmd
}

// runHost offers the upstreams of cfg until a signal says to stop.
func runHost(ctx context.Context, cfg *config.Config, at config.HostLink, again reload, log *slog.Logger) error {
	endpoint, err := endpointOf(at)
	if err != nil {
		return err
	}
	h, err := newHosting(cfg, log)
	if err != nil {
		return err
	}
	defer h.force()
	h.server.Heartbeat = heartbeatOf(at.Heartbeat)
	signals, ignore := stopSignals()
	defer ignore()
	linked, hangUp := context.WithCancel(ctx)
	m, err := meet(linked, h.server, endpoint, at)
	if err != nil {
		hangUp()
		return &runError{inUse(err)}
	}
	asked := make(chan os.Signal, 1)
	notifyStatus(asked)
	go h.tellStatus(linked, asked, log)
	go again.reloadOn(linked, func(cfg *config.Config) error { _, err := h.adopt(cfg); return err }, log)

	grace := lostGrace
	select {
	case s := <-signals:
		grace = cfg.ShutdownGrace
		log.Info("shutting down", "signal", s.String(), "grace", grace)
	case <-m.over:
		err = m.err
	case <-ctx.Done():
	}
	forced := h.shutdown(grace, signals, func() { hangUp(); <-m.over })
	if err == nil && forced {
		err = errors.New("shutdown was forced")
	}
	if err != nil {
		return &runError{err}
	}
	return nil
}

// endpointOf reads the files that the flags name.
func endpointOf(at config.HostLink) (link.Endpoint, error) {
	e := link.Endpoint{URL: at.Listen + at.Dial, Token: tokenFrom(at.TokenFile)}
	if _, err := readToken(at.TokenFile); err != nil {
		return e, config.Problems{{Source: "--token-file", Text: err.Error()}}
	}
	read := clientTLS
	if at.Listen != "" {
		read = serverTLS
	}
	var err error
	if e.TLS, err = read(at.TLS); err != nil {
		return e, config.Problems{{Source: "--tls-ca, --tls-cert, --tls-key", Text: err.Error()}}
	}
	return e, nil
}

// A meeting is where links come from.
type meeting struct {
	over chan struct{} // closed when there are none any more
	err  error         // why; written before that
}

// meet listens at the endpoint or dials it, and serves links there until ctx ends.
func meet(ctx context.Context, server *link.Server, at link.Endpoint, flags config.HostLink) (*meeting, error) {
	m := &meeting{over: make(chan struct{})}
	serve := func() error { return server.Redial(ctx, dialFunc(at.Dial).hinting(tokenHint(flags.TokenFile))) }
	if flags.Listen != "" {
		l, err := at.Listen()
		if err != nil {
			return nil, err
		}
		fmt.Printf("listening on %s\n", linkURL(at, l))
		serve = func() error { return server.Accept(ctx, l) }
	}
	go func() {
		defer close(m.over)
		m.err = serve()
	}()
	return m, nil
}

// linkURL is where a proxy dials l: the port may have been chosen by the system.
func linkURL(at link.Endpoint, l net.Listener) string {
	u, err := url.Parse(at.URL)
	if err != nil || l.Addr().Network() == "unix" {
		return at.String()
	}
	return (&url.URL{Scheme: u.Scheme, Host: l.Addr().String(), Path: u.Path}).String()
}

// lostGrace is the budget of a shutdown that no signal asked for.
const lostGrace = 2500 * time.Millisecond

// shutdown lets what is in flight finish, hangs up, and leaves the rest of one budget
// to the upstreams, to end as they wish; when it is nearly used up, or at a second
// signal, what is left ends by force. It reports whether a signal forced it. Proxies
// that stop at the same time have their last answers then.
func (h *hosting) shutdown(grace time.Duration, signals <-chan os.Signal, hangUp func()) bool {
	limit := time.AfterFunc(max(grace-forceTime, 0), h.force)
	defer limit.Stop()
	gone := make(chan struct{})
	forced := make(chan bool, 1)
	go func() {
		select {
		case <-signals:
			h.force()
			forced <- true
		case <-gone:
			forced <- false
		}
	}()
	h.finish(max(grace-h.stopReserve(), 0))
	hangUp()
	h.stop(h.forced)
	close(gone)
	return <-forced
}

// finish lets what is in flight finish, for at most grace.
func (h *hosting) finish(grace time.Duration) {
	over := time.NewTimer(grace)
	defer over.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for h.busy() {
		select {
		case <-look.C:
		case <-over.C:
			return
		case <-h.forced.Done():
			return
		}
	}
}

// busy reports whether anybody waits for an answer: nobody does for that of a server
// which is being stopped, or is gone, nor for that to a parked call, whose client may
// never come back.
func (h *hosting) busy() bool {
	inFlight := 0
	for _, s := range h.host.Status() {
		if s.State == upstream.StateStarting || s.State == upstream.StateRunning {
			inFlight += s.InFlight
		}
	}
	return inFlight > h.bridge.Parked()
}
