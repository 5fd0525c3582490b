package main

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newServe() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "serve [-- CMD ARGS…]",
		Short: "Serve clients over Streamable HTTP, WebSocket and SSE",
		Long: "Serves clients at /mcp (Streamable HTTP), /ws (WebSocket) and /sse (the transport of 2024-11-05);\n" +
			"/mcp/NAME and /ws/NAME are one upstream, with bare names. SIGINT and SIGTERM drain, a second one ends at once; SIGHUP\n" +
			"reads the configuration again, for its upstreams and links.",
		Example: "  mcp-proxy serve --config mcp-proxy.yaml\n" +
			"  mcp-proxy serve --listen 127.0.0.1:9000 -- npx -y @modelcontextprotocol/server-everything",
		Args: commandBehindDash,
		RunE: o.with(runServe),
	}
	o.addFlags(cmd)
	cmd.Flags().StringSliceVar(&o.listen, "listen", nil, "address to listen at: HOST:PORT or unix:///path; may be repeated")
	return cmd
}

// runServe serves clients over HTTP until a signal says to stop.
func runServe(ctx context.Context, s *start) error {
	p, err := proxy.New(s.cfg, proxy.Options{Log: s.log})
	if err != nil {
		return failedBy(err)
	}
	if s.cfg.TokenFile == "" {
		s.log.Warn("no tokenFile: modern HTTP clients are one principal, and share the sessions kept for them at legacy upstreams", "principal", "anonymous")
	}
	addresses, err := p.Listen()
	if err != nil {
		return &runError{inUse(err)}
	}
	return s.run(ctx, p, s.cfg.ShutdownGrace, func() { announce(addresses, s.cfg.TLS != (config.ListenTLS{})) })
}

// announce prints where clients reach us, on stdout.
func announce(addresses []net.Addr, secured bool) {
	s := ""
	if secured {
		s = "s"
	}
	for _, a := range addresses {
		switch a.Network() {
		case "unix":
			fmt.Printf("listening on unix://%s (/mcp, /ws, /sse)\n", a)
		default:
			fmt.Printf("listening on http%[1]s://%[2]s/mcp, ws%[1]s://%[2]s/ws and http%[1]s://%[2]s/sse\n", s, a)
		}
	}
}
