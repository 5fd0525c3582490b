package proxy

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/auth"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
)

// A front is the front end for clients on HTTP, with /link besides, while hosts may
// dial us.
type front struct {
	*frontend.HTTP
	links       *links
	proofs      *proofs
	connectPage *ops.ConnectPage // nil: there is none

	once    sync.Once
	keys    gate        // of proofs
	leaving atomic.Bool // each response is the last on its connection
}

// newFront returns the front end to the sessions of a router. The error says that nobody
// may listen so.
func newFront(cfg *config.Config, router *session.Router, known func(who *identity.Identity, upstream string) bool, ls *links, o Options) (*front, error) {
	f := &front{links: ls, proofs: newProofs(cfg, o.Log)}
	f.HTTP = &frontend.HTTP{
		Serve:          router.Serve,
		ServePrincipal: router.ServePrincipal,
		Admit:          admitOf(router.Policies, o.anonymous.log),
		Known:          known,
		Guard: frontend.Guard{
			AllowedHosts: allowedHosts(cfg), AllowedOrigins: cfg.AllowedOrigins,
			Listen: cfg.Listen, Insecure: cfg.Insecure,
		},
		Limits:      limitsOf(cfg),
		Sessions:    cfg.Limits.Sessions,
		SessionIdle: cfg.SessionIdle,
		SessionGone: cfg.SessionGone,
		Traces:      router.Hooks.Follower != nil,
		Log:         o.Log,
	}
	if tell := router.Hooks.Refused; tell != nil {
		f.Guard.Refused = func(why *identity.Refusal) { tell(why.Reason()) }
	}
	f.Guard.Clients = f.proofs.current
	return f, f.Guard.Check() // config has refused that; nobody may come past it
}

// mayListen reports whether the addresses at which we listen are safe with other proofs.
func (f *front) mayListen(next proofPlan) error {
	g := f.Guard
	g.Clients = auth.NewCurrent(next.clients)
	return g.Check()
}

// start looks after what clients prove themselves with until ctx ends. Whoever ends it
// waits for f.keys.
func (f *front) start(ctx context.Context) {
	f.once.Do(func() { f.keys.run(func() { f.proofs.current.Run(ctx) }) })
}

// leave drains, and sends clients away behind what they are answered: to another proxy, if
// there are several.
func (f *front) leave() {
	f.leaving.Store(true)
	f.Drain()
}

// ServeHTTP implements [http.Handler].
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.leaving.Load() {
		w.Header().Set("Connection", "close")
	}
	switch {
	case f.connectPage.Has(r):
		f.connectPage.ServeHTTP(w, r)
		return
	case r.URL.Path != "/link" || len(f.links.accepting()) == 0:
		f.HTTP.ServeHTTP(w, r)
		return
	}
	if err := f.Guard.Admit(w, r); err != nil {
		f.links.refused(r, err)
		return
	}
	f.links.ServeHTTP(w, r)
}

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
