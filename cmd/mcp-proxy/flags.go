package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// options are the flags of serve, stdio, connect and host.
type options struct {
	from      config.Options
	watch     bool // serve and host: reload when files change
	logFormat string
	logLevel  string
}

func (o *options) addFlags(cmd *cobra.Command) {
	addConfigFlag(cmd, &o.from.File)
	o.addLogFlags(cmd)
}

// addCommandFlags adds the flags that define upstreams without a file.
func (o *options) addCommandFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&o.from.Servers, "server", nil, "an upstream without a file: `NAME=COMMAND` or NAME=URL; may be repeated")
	flags.StringArrayVar(&o.from.Env, "env", nil, "`NAME=VALUE` for the commands given here; may be repeated")
	flags.Func("cwd", "`DIR` in which the commands given here run", given(&o.from.Cwd))
	flags.BoolVar(&o.from.Shared, "shared", false, "one process of each server given here for all clients, in place of one each")
}

// addWatchFlag adds the flag of commands that can reload their configuration.
func (o *options) addWatchFlag(flags *pflag.FlagSet) {
	flags.BoolVar(&o.watch, "watch", false, "reload the configuration when its files change, as SIGHUP does without a terminal")
}

func (o *options) addLogFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.logFormat, "log-format", "auto", "text, json, or auto: text on a terminal")
	cmd.Flags().StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
}

func addConfigFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "config", "c", "", "configuration file, YAML, JSON or TOML (default: mcp-proxy.yaml in the working directory, then in the user's configuration directory)")
}

// A start is what a command begins with: its configuration and its log.
type start struct {
	cfg   *config.Config
	again func() (*config.Config, error) // reads cfg anew; with an error it still says which files were read
	watch bool                           // reload when one of its files changes
	log   *slog.Logger
	url   string // of the only server, if that was given in place of a configuration
}

// with returns the RunE of a command: load the configuration, then run f.
func (o *options) with(f func(context.Context, *start) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := o.load(args)
		if err != nil {
			return err
		}
		return f(cmd.Context(), s)
	}
}

// load reads the configuration that the flags describe, and sets up the log. args are the command behind "--".
func (o *options) load(args []string) (*start, error) {
	stderr.serves()
	log, err := newLogger(stderr, o.logFormat, o.logLevel)
	if err != nil {
		return nil, err
	}
	o.from.Command, o.from.Instead = args, []string{"--server NAME=COMMAND", "-- CMD ARGS"}
	read := func() (*config.Config, error) {
		cfg, warnings, err := config.Load(o.from)
		if err != nil {
			return cfg, err
		}
		for _, w := range warnings {
			log.Warn("configuration", "warning", w)
		}
		return cfg, nil
	}
	cfg, err := read()
	if err == nil && o.watch && len(cfg.Read) == 0 {
		err = errors.New("--watch needs a configuration file")
	}
	return &start{cfg: cfg, again: read, watch: o.watch, log: log}, err
}

// given returns the setter of a flag that must not be empty. An empty value is most likely a script's variable
// that is not set, and ignoring it would drop a token or a certificate.
func given(to *string) func(string) error {
	return func(s string) error {
		if *to = s; s == "" {
			return errors.New("must not be empty")
		}
		return nil
	}
}

func addJSONFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}
