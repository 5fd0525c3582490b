package proxy

import (
	"cmp"
	"log/slog"
	"reflect"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/auth"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// The proofs are what clients on HTTP prove themselves with, as configured. What is the same
// after a reload goes on as it is: its keys are known, and what clients have opened stays.
type proofs struct {
	// Static after construction.
	static *config.Config // of which publicURL and tls do not change
	log    *slog.Logger

	current *auth.Current
	tokens  map[config.NamedToken]*auth.Token // guarded by Proxy.reloading, as the field below
	issuers []trusted
}

// A trusted is an issuer of tokens, and how it is configured.
type trusted struct {
	config config.Issuer
	issuer *jwt.Issuer
}

func newProofs(cfg *config.Config, log *slog.Logger) *proofs {
	p := &proofs{static: cfg, log: log, current: auth.NewCurrent(nil)}
	p.adopt(p.plan(cfg))
	return p
}

// A proofPlan is what proofs are going to be.
type proofPlan struct {
	clients *auth.Clients
	tokens  map[config.NamedToken]*auth.Token
	issuers []trusted
}

// plan returns what clients prove themselves with by another configuration. It changes
// nothing.
func (p *proofs) plan(cfg *config.Config) (next proofPlan) {
	next.clients = &auth.Clients{PublicURL: p.static.PublicURL, Certificates: p.static.TLS.ClientCA != ""}
	next.tokens = make(map[config.NamedToken]*auth.Token)
	for _, t := range staticTokens(cfg) {
		known := p.tokens[t]
		if known == nil {
			known = auth.NewToken(t.Name, secretfile.Token(t.TokenFile), p.log)
		}
		next.tokens[t] = known
		next.clients.Tokens = append(next.clients.Tokens, known)
	}
	for _, i := range cfg.Auth.JWT {
		i.Key = ""
		at := slices.IndexFunc(p.issuers, func(known trusted) bool { return reflect.DeepEqual(known.config, i) })
		one := trusted{i, nil}
		if at >= 0 {
			one = p.issuers[at]
		} else {
			one.issuer = p.trust(i)
		}
		next.issuers = append(next.issuers, one)
		next.clients.Issuers = append(next.clients.Issuers, one.issuer)
	}
	return next
}

func (p *proofs) adopt(next proofPlan) {
	p.tokens, p.issuers = next.tokens, next.issuers
	p.current.Replace(next.clients)
}

// staticTokens are those of a configuration. That of tokenFile is called default.
func staticTokens(cfg *config.Config) (all []config.NamedToken) {
	if cfg.TokenFile != "" {
		all = append(all, config.NamedToken{Name: "default", TokenFile: cfg.TokenFile})
	}
	for _, t := range cfg.Auth.Tokens {
		t.Key = "" // the same token may move in the file
		all = append(all, t)
	}
	return all
}

func (p *proofs) trust(i config.Issuer) *jwt.Issuer {
	return &jwt.Issuer{
		Name: i.Issuer, Audience: i.Audience, Algorithms: i.Algorithms, Skew: i.Skew,
		Principal: i.Principal, Scopes: i.Scopes,
		Keys: jwt.NewKeys(i.Issuer, i.JWKSURL, i.JWKSFile, p.log),
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

// policiesOf returns what clients may by the configuration. The error is a
// [config.Problems].
func policiesOf(cfg *config.Config) (*policy.Policies, error) {
	policies := new(policy.Policies)
	if _, err := policies.Replace(rulesOf(cfg)); err != nil { // config has refused that; nobody may come past it
		return nil, config.Problems{{Source: cfg.File, Key: "policies", Text: err.Error()}}
	}
	return policies, nil
}

func rulesOf(cfg *config.Config) (rules []policy.Rule) {
	for _, p := range cfg.Policies {
		rules = append(rules, ruleOf(p))
	}
	return rules
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

// admitOf returns who may begin a session. The log names the rule by which one may not.
func admitOf(policies *policy.Policies, log *slog.Logger) func(*identity.Identity) (leave func(), refusal *identity.Refusal) {
	return func(who *identity.Identity) (leave func(), refusal *identity.Refusal) {
		if leave, refusal = policies.Admit(who); refusal != nil {
			log.Debug("session refused by a policy", "principal", who.String(), "rule", cmp.Or(policies.For(who).Rule(), "none"), "cause", refusal.Text)
		}
		return leave, refusal
	}
}
