package proxy

import (
	"cmp"
	"log/slog"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

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
