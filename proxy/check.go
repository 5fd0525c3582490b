package proxy

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// Check finds what will fail later and can be seen now, without starting anything:
// commands that are not there, and files of tokens, headers and TLS that cannot be used.
func Check(cfg *config.Config) config.Problems {
	c := checker{file: cfg.File}
	_, err := secretfile.ReadToken(cfg.TokenFile)
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

// warnOfUpstreams logs what keeps upstreams from being started. Others can be
// served all the same, and what is missing may come.
func warnOfUpstreams(cfg *config.Config, log *slog.Logger) {
	c := checker{file: cfg.File}
	for _, u := range cfg.Upstreams {
		c.upstream(u)
	}
	for _, p := range c.problems {
		log.Warn("configuration", "warning", p.Error())
	}
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
		token, err := secretfile.ReadToken(l.TokenFile)
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
