package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

func newLogin() *cobra.Command {
	o := proxy.LoginOptions{Show: showLogin}
	cmd := loginCommand(&o, runLogin, &cobra.Command{
		Use:   "login UPSTREAM|URL",
		Short: "Log in to a remote server with OAuth, in a browser",
		Long: "Logs in to an upstream of the configuration, or to the server at a URL, and keeps the tokens, which are refreshed when they\n" +
			"are used. A running proxy or host uses them within a second. connect and stdio log in by themselves when a server asks.",
		Example: "  mcp-proxy login docs\n" +
			"  mcp-proxy login https://example.com/mcp --device",
	})
	cmd.Flags().BoolVar(&o.Device, "device", false, "log in with a browser on another device, by a code, where the server offers that")
	cmd.Flags().StringVar(&o.ClientID, "client-id", "", "client id that the server knows us by, where none is configured; it is kept with the login; an https URL is that of a client id metadata document")
	cmd.Flags().BoolVar(&o.NoBrowser, "no-browser", false, "open no browser, print the address to open")
	cmd.Flags().StringSliceVar(&o.Scopes, "scope", nil, "scopes to ask for, instead of those that are configured, that the server names or that were granted before; may be repeated")
	return cmd
}

func newLogout() *cobra.Command {
	return loginCommand(new(proxy.LoginOptions), runLogout, &cobra.Command{
		Use:   "logout UPSTREAM|URL",
		Short: "Log out of a remote server: revoke its tokens and delete them",
	})
}

// loginCommand gives a command the argument and the flag that login and logout have in common, and runs f.
func loginCommand(
	o *proxy.LoginOptions, f func(ctx context.Context, cfg *config.Config, name, given string, o proxy.LoginOptions) error, cmd *cobra.Command,
) *cobra.Command {
	var file string
	cmd.Args = oneLogin
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, name, err := loginConfig(file, args[0])
		if err != nil {
			return err
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		return f(ctx, cfg, name, args[0], *o)
	}
	addConfigFlag(cmd, &file)
	return cmd
}

// oneLogin checks the arguments of login and logout.
func oneLogin(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf("%s needs one upstream or URL, as in mcp-proxy %[1]s https://example.com/mcp", cmd.Name())
	}
	return nil
}

// loginConfig returns a configuration with the upstream or URL that is given, and the upstream's name in it.
func loginConfig(file, given string) (*config.Config, string, error) {
	from, name := config.Options{File: file, Instead: []string{"a URL"}}, given
	if strings.Contains(given, "://") {
		if file != "" {
			return nil, "", errors.New("a URL and --config exclude each other")
		}
		from = config.Options{URL: given}
	}
	cfg, _, err := config.Load(from)
	if err == nil && from.URL != "" {
		name = cfg.Upstreams[0].Name
	}
	return cfg, name, err
}

func runLogin(ctx context.Context, cfg *config.Config, name, given string, o proxy.LoginOptions) error {
	kept, err := proxy.Login(ctx, cfg, name, o)
	if err != nil {
		return loginFailed(err)
	}
	fmt.Fprintf(stdout, "Logged in to %s. The tokens are in %s.\n", given, kept)
	return nil
}

func runLogout(ctx context.Context, cfg *config.Config, name, given string, o proxy.LoginOptions) error {
	kept, unrevoked, err := proxy.Logout(ctx, cfg, name, o)
	switch {
	case errors.Is(err, proxy.ErrNoLogin):
		return &runError{fmt.Errorf("not logged in to %s: %s has no tokens", given, kept)}
	case err != nil:
		return loginFailed(err)
	case unrevoked != nil:
		fmt.Fprintf(stdout, "Logged out of %s: the tokens are deleted. Copies of them stay valid until they expire (%v).\n", given, unrevoked)
	default:
		fmt.Fprintf(stdout, "Logged out of %s: the tokens are revoked and deleted.\n", given)
	}
	return nil
}

// loginFailed returns a [proxy.LoginError] as it is, since it is about usage, and others as a runError.
func loginFailed(err error) error {
	if usage, ok := errors.AsType[*proxy.LoginError](err); ok {
		return usage
	}
	return &runError{fmt.Errorf("login: %w", err)}
}

// showLogin tells a person at a terminal what to do. It writes to stderr: programs read stdout.
func showLogin(p proxy.LoginPrompt) {
	switch {
	case p.Code != "":
		fmt.Fprintf(stderr, "Open this page on any device, and enter the code %s if it asks for one:\n\n  %s\n\n", p.Code, p.URL)
	case p.Opened:
		fmt.Fprintf(stderr, "Your browser opens, to log in. If it does not, open this page:\n\n  %s\n\n", p.URL)
	default:
		fmt.Fprintf(stderr, "Open this page in a browser on this machine, to log in:\n\n  %s\n\n", p.URL)
	}
}

// askIn returns what showLogin does, for a process whose stderr is a log.
func askIn(log *slog.Logger) func(proxy.LoginPrompt) {
	return func(p proxy.LoginPrompt) {
		if p.Opened {
			log.Warn("a server requires a login: a browser was opened", "server", p.Host, "url", p.URL)
			return
		}
		log.Warn("a server requires a login: open this page in a browser on this machine", "server", p.Host, "url", p.URL)
	}
}
