package proxy

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/cluster"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// An Inspection is the result of checking a configuration.
type Inspection struct {
	OK        bool            `json:"ok"`        // there are no problems
	File      string          `json:"file"`      // "" if none was found
	Problems  config.Problems `json:"problems"`  // mistakes: nothing can be served
	Warnings  []string        `json:"warnings"`  // ignored settings of little importance
	Upstreams []string        `json:"upstreams"` // names, in config order; with problems there may be none
	Links     []string        `json:"links"`     // names, in config order
}

// Inspect loads a configuration, and runs [Check] even where something else is wrong, so that all mistakes are
// reported at once.
func Inspect(o config.Options) *Inspection {
	cfg, warnings, problems := config.Read(o)
	for _, p := range Check(cfg) {
		if !slices.ContainsFunc(problems, func(known config.Problem) bool { return p.Source == known.Source && isWithin(p.Key, known.Key) }) {
			problems = append(problems, p)
		}
	}
	in := &Inspection{
		OK: len(problems) == 0, File: cfg.File, Problems: append(config.Problems{}, problems...), Warnings: append([]string{}, warnings...),
		Upstreams: []string{}, Links: []string{},
	}
	for _, u := range cfg.Upstreams {
		in.Upstreams = append(in.Upstreams, u.Name)
	}
	for _, l := range cfg.Links {
		in.Links = append(in.Links, l.Name)
	}
	return in
}

// isWithin reports whether key is other, or below it.
func isWithin(key, other string) bool { return key == other || strings.HasPrefix(key, other+".") }

// Check finds what would fail later, without starting anything: missing commands, and files of tokens, keys, headers
// and TLS that cannot be used.
func Check(cfg *config.Config) config.Problems {
	c := newChecker(cfg)
	c.servingTLS(cfg)
	c.issuers(cfg)
	for _, u := range cfg.Upstreams {
		c.upstream(u)
		c.tls(u.Key+".tls", "ca", u.TLS)
		c.credentials(u.Key+".auth", u.Auth)
	}
	for _, l := range cfg.Links {
		c.tls(l.Key+".tls", "ca", l.TLS)
		c.credentials(l.Key+".auth", l.Auth)
	}
	c.clientTokens(cfg)
	c.linkTokens(cfg.Links)
	c.replicas(cfg.Cluster)
	c.token("admin.tokenFile", cfg.Admin.TokenFile, "operators")
	c.headerFiles("traces", cfg.Traces.HeadersFrom)
	c.tls("traces.tls", "ca", cfg.Traces.TLS)
	return c.problems
}

// warnOfUpstreams logs what keeps upstreams from starting. It is no error: other upstreams work, and a missing command
// may appear later.
func warnOfUpstreams(cfg *config.Config, log *slog.Logger) {
	c := newChecker(cfg)
	for _, u := range cfg.Upstreams {
		c.upstream(u)
	}
	for _, p := range c.problems {
		log.Warn("configuration", "warning", p.Error())
	}
}

// A checker collects the problems of what a configuration names.
type checker struct {
	source   string            // the file of the configuration
	given    map[string]string // flags and variables that have the value of a key in place of the file
	owners   map[string]string // keys of tokens, by token
	problems config.Problems
}

func newChecker(cfg *config.Config) *checker {
	return &checker{source: cfg.File, given: cfg.Given, owners: make(map[string]string)}
}

func (c *checker) found(key string, err error) {
	if err == nil {
		return
	}
	p := config.Problem{Source: c.source, Key: key, Text: err.Error()}
	if from := c.given[key]; from != "" {
		p.Source, p.Key = from, ""
	}
	c.problems = append(c.problems, p)
}

func (c *checker) upstream(u config.Upstream) {
	if u.Command != "" {
		command, dir := commandOf(u).Check()
		c.found(strings.TrimPrefix(u.Key+".command", "--."), command)
		c.found(u.Key+".cwd", dir)
	}
	c.headerFiles(u.Key, u.HeadersFrom)
}

// headerFiles checks files with values of headers.
func (c *checker) headerFiles(key string, from map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		if err := remote.CheckHeaderFile(from[name]); err != nil {
			c.found(key+".headersFrom."+name, fmt.Errorf("%s: %w", from[name], err))
		}
	}
}

// clientTokens checks the tokens of clients.
func (c *checker) clientTokens(cfg *config.Config) {
	c.token("tokenFile", cfg.TokenFile, "clients")
	for _, t := range cfg.Auth.Tokens {
		c.token(t.Key+".tokenFile", t.TokenFile, "clients")
	}
}

// replicas checks the keys of replicas.
func (c *checker) replicas(of config.Cluster) {
	if of.KeyFile != "" {
		c.found("cluster.keyFile", cluster.CheckKeys(of.KeyFile))
	}
}

// issuers checks the key files of token issuers.
func (c *checker) issuers(cfg *config.Config) {
	for _, i := range cfg.Auth.JWT {
		if i.JWKSFile != "" {
			c.found(i.Key+".jwksFile", jwt.CheckFile(i.JWKSFile))
		}
	}
}

// linkTokens checks the tokens of links.
func (c *checker) linkTokens(links []config.Link) {
	for _, l := range links {
		of := ""
		if l.Accept {
			of = "hosts"
		}
		c.token(l.Key+".tokenFile", l.TokenFile, of)
	}
}

// token checks a token file, and that no two peers share a token that tells them apart. of names those peers; "" for
// a token of our own.
func (c *checker) token(key, file, of string) {
	token, err := secretfile.ReadToken(file)
	if err == nil && file != "" && of != "" {
		if first := c.owners[token]; first != "" {
			err = fmt.Errorf("holds the same token as %s: it is what tells %s apart", first, of)
		} else {
			c.owners[token] = key
		}
	}
	c.found(key, err)
}

// credentials checks the files with our own credentials.
func (c *checker) credentials(key string, a config.UpstreamAuth) {
	if o := a.OAuth; o != nil {
		c.file(key+".oauth.clientSecretFile", o.ClientSecretFile, checkSecret)
	}
	if m := a.ClientCredentials; m != nil {
		key += ".clientCredentials"
		c.file(key+".clientSecretFile", m.ClientSecretFile, checkSecret)
		c.file(key+".privateKeyFile", m.PrivateKeyFile, checkPrivateKey)
		c.file(key+".assertionFile", m.AssertionFile, checkSecret)
	}
}

func checkSecret(text string) error {
	if text == "" {
		return errEmpty
	}
	return nil
}

func checkPrivateKey(text string) error {
	_, err := jwt.Assertion([]byte(text), "", "")
	return err
}

// file checks a file, if one is named.
func (c *checker) file(key, path string, check func(text string) error) {
	if path == "" {
		return
	}
	text, err := (&secretfile.File{Path: path}).Read()
	if err == nil {
		err = check(text)
	}
	if err != nil {
		c.found(key, fmt.Errorf("%s: %w", path, err))
	}
}

// servingTLS checks the files with which serve terminates TLS.
func (c *checker) servingTLS(cfg *config.Config) {
	c.tls("tls", "clientCA", config.TLS{CA: cfg.TLS.ClientCA, Cert: cfg.TLS.Cert, Key: cfg.TLS.Key})
}

// tls checks each file, and then certificate and key together. ca is the key of the authorities.
func (c *checker) tls(key, ca string, files config.TLS) {
	before := len(c.problems)
	_, authorities := readCA(files.CA)
	_, cert := readPEM(files.Cert)
	_, private := readPEM(files.Key)
	c.found(key+"."+ca, authorities)
	c.found(key+".cert", cert)
	c.found(key+".key", private)
	if files.Cert == "" || len(c.problems) > before {
		return
	}
	if _, err := tls.LoadX509KeyPair(files.Cert, files.Key); err != nil {
		c.found(key+".cert", fmt.Errorf("does not match its key: %w", err))
	}
}

// checkServing checks the files that serving clients over HTTP needs. The error is [config.Problems].
func checkServing(cfg *config.Config) error {
	c := newChecker(cfg)
	c.servingTLS(cfg)
	if c.problems != nil {
		return c.problems
	}
	return checkClients(cfg)
}

// checkClients checks the files that authenticate clients. The error is [config.Problems].
func checkClients(cfg *config.Config) error {
	c := newChecker(cfg)
	c.clientTokens(cfg)
	c.issuers(cfg)
	if c.problems != nil {
		return c.problems
	}
	return nil
}
