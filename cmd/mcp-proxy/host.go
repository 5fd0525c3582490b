package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"syscall"
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
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := at.Check(); err != nil {
				return err
			}
			cfg, log, err := o.load(cmd, args, config.Options{Host: true})
			if err != nil {
				return err
			}
			return runHost(cmd.Context(), cfg, at, log)
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
func runHost(ctx context.Context, cfg *config.Config, at config.HostLink, log *slog.Logger) error {
	endpoint, err := endpointOf(at)
	if err != nil {
		return err
	}
	h, err := newHosting(cfg, log)
	if err != nil {
		return err
	}
	h.server.Heartbeat = heartbeatOf(at.Heartbeat)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	linked, hangUp := context.WithCancel(ctx)
	defer hangUp()
	ended, err := meet(linked, h.server, endpoint, at.Listen != "")
	if err != nil {
		return &runError{err}
	}
	asked := make(chan os.Signal, 1)
	notifyStatus(asked)
	go h.tellStatus(linked, asked, log)

	forced := false
	select {
	case s := <-signals:
		log.Info("shutting down", "signal", s.String(), "grace", cfg.ShutdownGrace)
		forced = h.finish(signals, max(cfg.ShutdownGrace-stopReserve, 0))
	case err = <-ended:
	case <-ctx.Done():
	}
	hangUp()
	if err != nil {
		ended = nil // it was that
	}
	forced = h.windUp(ended, signals, forced) || forced
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

// meet listens at the endpoint or dials it, and serves links there until ctx ends.
// The channel then gets why.
func meet(ctx context.Context, server *link.Server, at link.Endpoint, listens bool) (<-chan error, error) {
	ended := make(chan error, 1)
	if !listens {
		go func() { ended <- server.Redial(ctx, at.Dial) }()
		return ended, nil
	}
	l, err := at.Listen()
	if err != nil {
		return nil, err
	}
	fmt.Printf("listening on %s\n", linkURL(at, l))
	go func() { ended <- server.Accept(ctx, l) }()
	return ended, nil
}

// linkURL is where a proxy dials l: the port may have been chosen by the system.
func linkURL(at link.Endpoint, l net.Listener) string {
	u, err := url.Parse(at.URL)
	if err != nil || l.Addr().Network() == "unix" {
		return at.String()
	}
	return (&url.URL{Scheme: u.Scheme, Host: l.Addr().String(), Path: u.Path}).String()
}

// finish lets what is in flight finish, for at most grace or until a signal. It
// reports whether that was a signal. Proxies that stop at the same time have
// their last answers then.
func (h *hosting) finish(signals <-chan os.Signal, grace time.Duration) (forced bool) {
	over := time.NewTimer(grace)
	defer over.Stop()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for h.busy() {
		select {
		case <-look.C:
		case <-over.C:
			return false
		case <-signals:
			return true
		}
	}
	return false
}

// windUpTime leaves of stopReserve what it takes to end upstreams by force.
const windUpTime = stopReserve - 750*time.Millisecond

// windUp waits for the end of the links, if ended is not nil, and ends what outlives
// them: as it wishes for a while, by force after that, at a signal, or at once. It
// reports whether that was a signal.
func (h *hosting) windUp(ended <-chan error, signals <-chan os.Signal, atOnce bool) (forced bool) {
	rest, force := context.WithTimeout(context.Background(), windUpTime)
	defer force()
	if atOnce {
		force()
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if ended != nil {
			<-ended
		}
		h.stop(rest)
	}()
	for {
		select {
		case <-signals:
			forced = true
			force()
		case <-stopped:
			return forced
		}
	}
}

// busy reports whether anybody waits for an answer: nobody does for that of a server
// which is being stopped, or is gone.
func (h *hosting) busy() bool {
	for _, s := range h.host.Status() {
		lives := s.State == upstream.StateStarting || s.State == upstream.StateRunning
		if lives && s.InFlight > 0 {
			return true
		}
	}
	return false
}
