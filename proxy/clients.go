package proxy

import (
	"log/slog"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/auth"
)

// newClients returns who says who clients on HTTP are; nil if they are asked for nothing.
func newClients(cfg *config.Config, log *slog.Logger) *auth.Clients {
	c := &auth.Clients{PublicURL: cfg.PublicURL, Certificates: cfg.TLS.ClientCA != ""}
	if cfg.TokenFile != "" {
		c.Tokens = append(c.Tokens, auth.NewToken("default", secretfile.Token(cfg.TokenFile), log))
	}
	for _, t := range cfg.Auth.Tokens {
		c.Tokens = append(c.Tokens, auth.NewToken(t.Name, secretfile.Token(t.TokenFile), log))
	}
	for _, i := range cfg.Auth.JWT {
		c.Issuers = append(c.Issuers, trusted(i, log))
	}
	if len(c.Tokens)+len(c.Issuers) == 0 && !c.Certificates {
		return nil
	}
	return c
}

func trusted(i config.Issuer, log *slog.Logger) *jwt.Issuer {
	return &jwt.Issuer{
		Name: i.Issuer, Audience: i.Audience, Algorithms: i.Algorithms, Skew: i.Skew,
		Principal: i.Principal, Scopes: i.Scopes,
		Keys: jwt.NewKeys(jwt.Source{Issuer: i.Issuer, URL: i.JWKSURL, File: i.JWKSFile}, log),
	}
}

// checkClients reports what clients prove themselves with and what cannot be read.
func checkClients(cfg *config.Config) error {
	c := newChecker(cfg)
	c.clientTokens(cfg)
	c.issuers(cfg)
	if c.problems != nil {
		return c.problems
	}
	return nil
}
