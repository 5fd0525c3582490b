package proxy

import (
	"cmp"
	"log/slog"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/auth"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
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

// policiesOf returns what clients may by the configuration, nil for everything. The error is
// a [config.Problems].
func policiesOf(cfg *config.Config) (*policy.Policies, error) {
	var rules []policy.Rule
	for _, p := range cfg.Policies {
		rules = append(rules, ruleOf(p))
	}
	policies, err := policy.New(rules)
	if err != nil { // config has refused that; nobody may come past it
		return nil, config.Problems{{Source: cfg.File, Key: "policies", Text: err.Error()}}
	}
	return policies, nil
}

func ruleOf(p config.Policy) policy.Rule {
	return policy.Rule{
		Key: p.Key,
		Who: policy.Who{
			Any: p.Who.Any, Anonymous: p.Who.Anonymous, Operator: p.Who.Operator,
			Token: p.Who.Token, User: identity.UserName(p.Who.User), Certificate: p.Who.Certificate,
			Issuer: p.Who.Issuer, Principal: p.Who.Principal, Claims: p.Who.Claims,
		},
		Tools:     policy.Globs(p.Tools),
		Prompts:   policy.Globs(p.Prompts),
		Resources: policy.Globs(p.Resources),
		Scopes:    p.Scopes,
		Limits:    policy.Limits(p.Limits),
	}
}

// admitOf returns who may begin a session, nil for everybody. The log names the rule by which
// one may not.
func admitOf(policies *policy.Policies, log *slog.Logger) func(*identity.Identity) (leave func(), refusal *identity.Refusal) {
	if policies == nil {
		return nil
	}
	return func(who *identity.Identity) (leave func(), refusal *identity.Refusal) {
		if leave, refusal = policies.Admit(who); refusal != nil {
			log.Debug("session refused by a policy", "principal", who.String(), "rule", cmp.Or(policies.For(who).Rule(), "none"), "cause", refusal.Text)
		}
		return leave, refusal
	}
}
