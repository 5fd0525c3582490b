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

// A front is the front end for clients on HTTP, with /link for hosts that dial this proxy.
type front struct {
	*frontend.HTTP
	links       *links
	clients     *auth.Current    // who may use it
	proofs      *proofs          // of clients; guarded by Proxy.reloading
	connectPage *ops.ConnectPage // nil for none

	once    sync.Once   // start
	keys    gate        // the goroutine that keeps the keys of clients up to date
	leaving atomic.Bool // each response is the last on its connection
}

// newFront returns the front end to the sessions of a router. The error says that the
// addresses are not safe to listen at.
func newFront(cfg *config.Config, router *session.Router, known func(who *identity.Identity, upstream string) bool, ls *links, o Options) (*front, error) {
	f := &front{links: ls, proofs: (&proofs{static: cfg, log: o.Log}).plan(cfg)}
	f.clients = auth.NewCurrent(f.proofs.clients)
	f.HTTP = &frontend.HTTP{
		Serve:          router.Serve,
		ServePrincipal: router.ServePrincipal,
		Admit:          admitOf(router.Policies, o.anonymous.log),
		Known:          known,
		Forwards:       router.Forwards,
		Guard: frontend.Guard{
			AllowedHosts: allowedHosts(cfg), AllowedOrigins: cfg.AllowedOrigins,
			Listen: cfg.Listen, Insecure: cfg.Insecure,
		},
		Limits:      limitsOf(cfg),
		Sessions:    cfg.Limits.Sessions,
		SessionIdle: cfg.SessionIdle,
		SessionGone: cfg.SessionGone,
		Traces:      router.Hooks.Follower != nil,
		Version:     router.Version,
		Log:         o.Log,
	}
	if tell := router.Hooks.Refused; tell != nil {
		f.Guard.Refused = func(why *identity.Refusal) { tell(why.Reason()) }
	}
	f.Guard.Clients = f.clients
	return f, f.Guard.Check() // config refuses that already; this check must not be bypassed
}

// mayListen returns an error unless the addresses are safe to listen at with other proofs.
func (f *front) mayListen(next *proofs) error {
	g := f.Guard
	g.Clients = auth.NewCurrent(next.clients)
	return g.Check()
}

// adopt authenticates clients by other proofs.
func (f *front) adopt(next *proofs) {
	f.proofs = next
	f.clients.Replace(next.clients)
}

// start keeps the keys of clients up to date until ctx ends. The caller then waits for f.keys.
func (f *front) start(ctx context.Context) {
	f.once.Do(func() { f.keys.run(func() { f.clients.Run(ctx) }) })
}

// leave drains. It closes the connection of each client behind a response, so that the client
// may connect to another proxy.
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

// proofs are the tokens, issuers and certificates that authenticate clients on HTTP, as one
// configuration has them. They do not change.
type proofs struct {
	static *config.Config // publicURL and tls, which a reload does not change
	log    *slog.Logger

	clients *auth.Clients
	tokens  map[config.NamedToken]*auth.Token
	issuers []config.Issuer // of clients.Issuers
}

// plan returns the proofs of another configuration. Tokens and issuers that are in both stay
// the same: their keys are known, and what clients have opened stays open.
func (p *proofs) plan(cfg *config.Config) *proofs {
	next := &proofs{static: p.static, log: p.log, tokens: make(map[config.NamedToken]*auth.Token)}
	next.clients = &auth.Clients{PublicURL: p.static.PublicURL, Certificates: p.static.TLS.ClientCA != ""}
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
		next.issuers = append(next.issuers, i)
		next.clients.Issuers = append(next.clients.Issuers, p.issuer(i))
	}
	return next
}

// staticTokens returns the tokens of a configuration. The name of tokenFile is "default".
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

// issuer returns the issuer with that configuration, a new one if p has none.
func (p *proofs) issuer(i config.Issuer) *jwt.Issuer {
	same := func(known config.Issuer) bool { return reflect.DeepEqual(known, i) }
	if at := slices.IndexFunc(p.issuers, same); at >= 0 {
		return p.clients.Issuers[at]
	}
	return &jwt.Issuer{
		Name: i.Issuer, Audience: i.Audience, Algorithms: i.Algorithms, Skew: i.Skew,
		Principal: i.Principal, Scopes: i.Scopes,
		Keys: jwt.NewKeys(i.Issuer, i.JWKSURL, i.JWKSFile, p.log),
	}
}

// policiesOf returns the policies of a configuration. The error is a [config.Problems].
func policiesOf(cfg *config.Config) (*policy.Policies, error) {
	policies := new(policy.Policies)
	if _, err := policies.Replace(rulesOf(cfg)); err != nil { // config refuses it, too; nothing may bypass the check
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
		Methods:   p.Methods,
		Deliver:   p.Events.Deliver,
		Scopes:    p.Scopes,
		Limits:    policy.Limits(p.Limits),
	}
}

// admitOf returns the function that admits sessions by policies. The log names the rule that refuses one.
func admitOf(policies *policy.Policies, log *slog.Logger) func(*identity.Identity) (leave func(), refusal *identity.Refusal) {
	return func(who *identity.Identity) (leave func(), refusal *identity.Refusal) {
		if leave, refusal = policies.Admit(who); refusal != nil {
			log.Debug("session refused by a policy", "principal", who.String(), "rule", cmp.Or(policies.For(who).Rule(), "none"), "cause", refusal.Text)
		}
		return leave, refusal
	}
}
