package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// options are what the flags of most commands say.
type options struct {
	config    string
	from      config.Options // what flags of serve set
	watch     bool           // serve and host: its files for changes
	logFormat string
	logLevel  string
}

func (o *options) addFlags(cmd *cobra.Command) {
	addConfigFlag(cmd, &o.config)
	o.addLogFlags(cmd)
}

// addCommandFlags adds the flags that give upstreams without a file.
func (o *options) addCommandFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&o.from.Servers, "server", nil, "an upstream without a file: `NAME=COMMAND` or NAME=URL; may be repeated")
	flags.StringArrayVar(&o.from.Env, "env", nil, "`NAME=VALUE` for the commands given here; may be repeated")
	flags.Func("cwd", "`DIR` in which the commands given here run", given(&o.from.Cwd))
	flags.BoolVar(&o.from.Shared, "shared", false, "one process of each server given here for all clients, in place of one each")
}

// addWatchFlag adds the flag of commands that can take over a changed configuration.
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

// A start is what a command begins with.
type start struct {
	cfg   *config.Config
	again func() (*config.Config, error) // reads cfg anew; with an error it still says which files were read
	watch bool                           // its files
	log   *slog.Logger
}

// with is a command that runs f with what its flags say.
func (o *options) with(f func(context.Context, *start) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := o.load(args, o.from)
		if err != nil {
			return err
		}
		return f(cmd.Context(), s)
	}
}

// load reads the configuration from the flags and what else from says, and sets up
// the log. Arguments are the command behind "--".
func (o *options) load(args []string, from config.Options) (*start, error) {
	log, err := newLogger(stderr, o.logFormat, o.logLevel)
	if err != nil {
		return nil, err
	}
	from.File, from.Command = o.config, args
	from.Servers, from.Env, from.Cwd, from.Shared = o.from.Servers, o.from.Env, o.from.Cwd, o.from.Shared
	read := func() (*config.Config, error) {
		cfg, warnings, err := config.Load(from)
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

func addJSONFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON")
}
