package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
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

// runServe serves clients over HTTP until a signal asks to stop. It listens at sockets if there are any, else
// where the configuration says.
func runServe(ctx context.Context, s *start, sockets []net.Listener) error {
	n := newReporter(s.log, s.cfg)
	p, err := proxy.New(s.cfg, proxy.Options{Log: s.log, Hooks: n.hooks(), CacheDir: cacheDir(), AdminSocket: adminSocket("serve", s.log), Listeners: sockets})
	if err != nil {
		return failedBy(err)
	}
	onTCP := func(address string) bool { return !strings.HasPrefix(address, "unix:") } // on a Unix socket each user is a principal
	if n == nil && !s.cfg.Proves() && slices.ContainsFunc(s.cfg.Listen, onTCP) {
		s.log.Warn("no tokenFile and no auth: modern HTTP clients are one principal and share its sessions at legacy upstreams", "principal", "anonymous")
	}
	addresses, err := p.Listen()
	if err != nil {
		return &runError{cannotListen(err)}
	}
	return s.run(ctx, p, n, s.cfg.ShutdownGrace, func() {
		secure := "" // "s" as in https and wss, with TLS
		if s.cfg.TLS != (config.ListenTLS{}) {
			secure = "s"
		}
		if !n.announces(addresses, secure) {
			announce(addresses, secure)
		}
	})
}

// announce prints to stdout where clients reach us.
func announce(addresses []net.Addr, secure string) {
	for _, a := range addresses {
		switch a.Network() {
		case "unix":
			fmt.Fprintf(stdout, "listening on unix://%s (/mcp, /ws, /sse)\n", a)
		default:
			fmt.Fprintf(stdout, "listening on http%[1]s://%[2]s/mcp, ws%[1]s://%[2]s/ws and http%[1]s://%[2]s/sse\n", secure, a)
		}
	}
}

// withSockets is with for a command that listens at the sockets that systemd has opened, if any
// (sd_listen_fds(3)), instead of those in flags and the configuration. Child processes do not inherit them.
func (o *options) withSockets(f func(context.Context, *start, []net.Listener) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		sockets, err := activation.Listeners()
		if err != nil {
			return &runError{err}
		}
		if len(sockets) > 0 && (cmd.Flags().Changed("listen") || cmd.Flags().Changed("port")) {
			return errors.New("systemd has opened the sockets to listen at: leave out --listen and --port")
		}
		for i, l := range sockets {
			if l == nil {
				return &runError{fmt.Errorf("socket %d of systemd is not a listening socket: use ListenStream= and Accept=no", i+1)}
			}
			o.from.Listen = append(o.from.Listen, addressOf(l))
		}
		return o.with(func(ctx context.Context, s *start) error { return f(ctx, s, sockets) })(cmd, args)
	}
}

// addressOf returns the address of l as a configuration writes it.
func addressOf(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix://" + l.Addr().String()
	}
	return l.Addr().String()
}

func newHost() *cobra.Command {
	o := options{from: config.Options{Host: true}}
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
			s, err := o.load(args)
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

// runHost serves proxies until a signal asks to stop.
func runHost(ctx context.Context, s *start, at config.HostLink) error {
	n := newReporter(s.log, s.cfg)
	h, err := proxy.NewHost(s.cfg, at, proxy.Options{Log: s.log, CacheDir: cacheDir(), Hooks: n.hooks(), AdminSocket: adminSocket("host", s.log)})
	if err != nil {
		return failedBy(err)
	}
	url, err := h.Listen()
	if err != nil {
		return &runError{cannotListen(err)}
	}
	return s.run(ctx, h, n, 2500*time.Millisecond, func() {
		if !n.hosts(url, at.Dial) && url != "" {
			fmt.Fprintf(stdout, "listening on %s\n", url)
		}
	})
}
