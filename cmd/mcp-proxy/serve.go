package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newServe() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "serve [--server NAME=COMMAND]… [-- CMD ARGS…]",
		Short: "Serve clients over Streamable HTTP, WebSocket and SSE",
		Long: "Serves clients at /mcp (Streamable HTTP), /ws (WebSocket) and /sse (the transport of 2024-11-05);\n" +
			"/mcp/NAME and /ws/NAME are one upstream, with bare names. SIGINT and SIGTERM drain, a second one ends at once. SIGHUP\n" +
			"reads the configuration again; where stdin is a terminal, it says that the terminal was closed, and stops.",
		Example: "  mcp-proxy serve --config mcp-proxy.yaml\n" +
			"  mcp-proxy serve --port 9000 -- npx -y @modelcontextprotocol/server-everything\n" +
			"  mcp-proxy serve --server files='npx -y @modelcontextprotocol/server-filesystem .' --server docs=https://example.com/mcp\n" +
			"  mcp-proxy serve --listen :8443 --tls-cert cert.pem --tls-key key.pem --token-file token --config mcp-proxy.yaml",
		Args: commandBehindDash,
		RunE: o.withSockets(runServe),
	}
	o.addFlags(cmd)
	o.addCommandFlags(cmd.Flags())
	o.addWatchFlag(cmd.Flags())
	o.addServeFlags(cmd.Flags())
	return cmd
}

// addServeFlags adds the flags that override the configuration of serve.
func (o *options) addServeFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&o.from.Listen, "listen", nil, "address to listen at: HOST:PORT or unix:///path; may be repeated")
	flags.Func("port", "listen at `PORT` of this machine, as --listen 127.0.0.1:PORT does", func(s string) error {
		if _, err := strconv.ParseUint(s, 10, 16); err != nil {
			return errors.New("must be a number from 0 to 65535")
		}
		return flags.Set("listen", net.JoinHostPort("127.0.0.1", s))
	})
	flags.StringSliceVar(&o.from.AllowedOrigins, "cors", nil, "web `ORIGIN` whose pages may be clients, such as https://app.example.com; may be repeated")
	flags.Func("token-file", "`FILE` with the bearer token that clients must send", given(&o.from.TokenFile))
	flags.Func("tls-cert", "PEM `FILE` of our certificate: serve terminates TLS", given(&o.from.TLS.Cert))
	flags.Func("tls-key", "PEM `FILE` of its key", given(&o.from.TLS.Key))
	flags.Func("tls-client-ca", "PEM `FILE` of authorities: clients authenticate with certificates of these", given(&o.from.TLS.ClientCA))
	flags.Func("public-url", "`URL` by which clients reach us, such as https://mcp.example.com", given(&o.from.PublicURL))
	flags.BoolFunc("insecure", "listen beyond loopback although clients do not authenticate", func(s string) (err error) {
		o.from.Insecure = new(bool)
		*o.from.Insecure, err = strconv.ParseBool(s)
		return err
	})
}

// given sets a flag. An empty one is a variable of a script that was not set, and nobody
// who gives a token or a certificate wants none.
func given(to *string) func(string) error {
	return func(s string) error {
		if *to = s; s == "" {
			return errors.New("must not be empty")
		}
		return nil
	}
}

// runServe serves clients over HTTP until a signal says to stop, at sockets if there are any.
func runServe(ctx context.Context, s *start, sockets []net.Listener) error {
	s.reporter = newReporter(s.log, s.cfg)
	p, err := proxy.New(s.cfg, proxy.Options{Log: s.log, Hooks: s.reporter.hooks(), AdminSocket: adminSocket("serve", s.log), Listeners: sockets})
	if err != nil {
		return failedBy(err)
	}
	onTCP := func(address string) bool { return !strings.HasPrefix(address, "unix:") } // on a socket each user is one
	if s.reporter == nil && !s.cfg.Proves() && slices.ContainsFunc(s.cfg.Listen, onTCP) {
		s.log.Warn("no tokenFile and no auth: modern HTTP clients are one principal and share its sessions at legacy upstreams", "principal", "anonymous")
	}
	addresses, err := p.Listen()
	if err != nil {
		return &runError{inUse(err)}
	}
	return s.run(ctx, p, s.cfg.ShutdownGrace, func() {
		secured := s.cfg.TLS != (config.ListenTLS{})
		if !s.reporter.announces(addresses, secured) {
			announce(addresses, secured)
		}
	})
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
			fmt.Fprintf(stdout, "listening on unix://%s (/mcp, /ws, /sse)\n", a)
		default:
			fmt.Fprintf(stdout, "listening on http%[1]s://%[2]s/mcp, ws%[1]s://%[2]s/ws and http%[1]s://%[2]s/sse\n", s, a)
		}
	}
}
