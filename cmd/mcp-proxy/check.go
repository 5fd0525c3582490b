package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

func newCheck() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Validate a configuration: one line for each mistake, exit code 2",
		Long: "Validates a configuration and what it names: commands that are not there, and files of tokens, headers and TLS that\n" +
			"cannot be used. Nothing is started. Each mistake is a line with file and key, and the exit code is 2.",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) > 1:
				return errors.New("check takes one FILE")
			case len(args) == 1 && file != "":
				return errors.New("check takes FILE or --config FILE, not both")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				file = args[0]
			}
			return runCheck(file)
		},
	}
	addConfigFlag(cmd, &file)
	return cmd
}

func runCheck(file string) error {
	cfg, warnings, err := config.Load(config.Options{File: file})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", w)
	}
	if problems := checkAll(cfg); len(problems) > 0 {
		return problems
	}
	fmt.Printf("%s: ok, %d %s", cfg.File, len(cfg.Upstreams), plural("upstream", len(cfg.Upstreams)))
	if n := len(cfg.Links); n > 0 {
		fmt.Printf(", %d %s", n, plural("link", n))
	}
	fmt.Println()
	return nil
}

// A checker collects what is wrong with what a configuration names.
type checker struct {
	file     string
	problems config.Problems
}

func (c *checker) found(key string, err error) {
	if err != nil {
		c.problems = append(c.problems, config.Problem{Source: c.file, Key: key, Text: err.Error()})
	}
}

// checkAll finds whatever would fail later and can be seen now.
func checkAll(cfg *config.Config) config.Problems {
	c := checker{file: cfg.File}
	_, err := readToken(cfg.TokenFile)
	c.found("tokenFile", err)
	for _, u := range cfg.Upstreams {
		c.upstream(u)
		c.tls(u.Key, u.TLS)
	}
	for _, l := range cfg.Links {
		c.tls(l.Key, l.TLS)
	}
	c.linkTokens(cfg.Links)
	return c.problems
}

// checkUpstreams finds what keeps upstreams from being started. Others can be
// served all the same, and what is missing may come.
func checkUpstreams(cfg *config.Config) config.Problems {
	c := checker{file: cfg.File}
	for _, u := range cfg.Upstreams {
		c.upstream(u)
	}
	return c.problems
}

func (c *checker) upstream(u config.Upstream) {
	if u.Command != "" {
		command, dir := commandOf(u).Check()
		c.found(strings.TrimPrefix(u.Key+".command", "--."), command)
		c.found(u.Key+".cwd", dir)
	}
	for _, name := range slices.Sorted(maps.Keys(u.HeadersFrom)) {
		if err := remote.CheckHeaderFile(u.HeadersFrom[name]); err != nil {
			c.found(u.Key+".headersFrom."+name, fmt.Errorf("%s: %w", u.HeadersFrom[name], err))
		}
	}
}

// linkTokens also checks that no two links accept the same token: it is what tells
// their hosts apart.
func (c *checker) linkTokens(links []config.Link) {
	owners := make(map[string]string)
	for _, l := range links {
		token, err := readToken(l.TokenFile)
		if err == nil && l.Accept {
			if first := owners[token]; first != "" {
				err = fmt.Errorf("holds the same token as that of %s: it is what tells their hosts apart", first)
			} else {
				owners[token] = l.Key
			}
		}
		c.found(l.Key+".tokenFile", err)
	}
}

// tls checks each file, and then certificate and key together.
func (c *checker) tls(key string, files config.TLS) {
	before := len(c.problems)
	_, ca := readCA(files.CA)
	_, cert := readPEM(files.Cert)
	_, private := readPEM(files.Key)
	c.found(key+".tls.ca", ca)
	c.found(key+".tls.cert", cert)
	c.found(key+".tls.key", private)
	if files.Cert == "" || len(c.problems) > before {
		return
	}
	if _, err := tls.LoadX509KeyPair(files.Cert, files.Key); err != nil {
		c.found(key+".tls.cert", fmt.Errorf("does not make a certificate with its key: %w", err))
	}
}

// readPEM reads a file, if one is named, that must hold something.
func readPEM(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	if err == nil && len(text) == 0 {
		err = errors.New("is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return text, nil
}
