package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
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
			s, err := o.load(args, config.Options{Host: true})
			if err != nil {
				return err
			}
			return runHost(cmd.Context(), s, at)
		},
	}
	o.addFlags(cmd)
	o.addCommandFlags(cmd.Flags())
	o.addWatchFlag(cmd.Flags())
	flags := cmd.Flags()
	flags.StringVar(&at.Listen, "listen", "", "URL to listen at")
	flags.StringVar(&at.Dial, "dial", "", "URL of the proxy's /link, or of where it listens, to dial")
	flags.StringVar(&at.TokenFile, "token-file", "", "ws and wss: file with the bearer token to ask for, or to send")
	flags.StringVar(&at.TLS.CA, "tls-ca", "", "tls and wss: PEM file of authorities to trust; a listener then asks for client certificates")
	flags.StringVar(&at.TLS.Cert, "tls-cert", "", "tls and wss: PEM file of our certificate")
	flags.StringVar(&at.TLS.Key, "tls-key", "", "tls and wss: PEM file of its key")
	flags.DurationVar(&at.Heartbeat, "heartbeat", 5*time.Second, "how often to ping the proxy; after three pings without an answer it is gone")
	flags.BoolVar(&at.Insecure, "insecure", false, "allow a link that others can read or use")
	return cmd
}

// runHost offers upstreams until a signal says to stop.
func runHost(ctx context.Context, s *start, at config.HostLink) error {
	s.reporter = newReporter(s.log, s.cfg)
	h, err := proxy.NewHost(s.cfg, at, proxy.Options{Log: s.log, Hooks: s.reporter.hooks(), AdminSocket: adminSocket("host", s.log)})
	if err != nil {
		return failedBy(err)
	}
	url, err := h.Listen()
	if err != nil {
		return &runError{inUse(err)}
	}
	return s.run(ctx, h, 2500*time.Millisecond, func() {
		if !s.reporter.hosts(url, at.Dial) && url != "" {
			fmt.Fprintf(stdout, "listening on %s\n", url)
		}
	})
}
