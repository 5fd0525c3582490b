package proxy

import (
	"cmp"
	"context"
	"log"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

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

// anonymousLog is the log of what peers can cause that have proved nothing: requests that are
// refused, handshakes that fail, links that never come up. Of each message it writes a few
// lines, and then how many were left out, so that nobody can fill a disk or hide a line among
// thousands. Everything of that kind is logged here.
type anonymousLog struct {
	log *slog.Logger // for them

	base  slog.Handler
	mu    sync.Mutex // guards the fields below
	lines map[string]*anonymousLine
	ended bool
}

// A anonymousLine is one message, which is a constant of the program.
type anonymousLine struct {
	limit   *rate.Limiter
	level   slog.Level
	leftOut int
	tells   *time.Timer // of how many were left out; nil if none were
}

const (
	anonymousBurst = 10               // lines of one message at once
	anonymousEvery = 10 * time.Second // another line, and how many were left out
)

func newAnonymousLog(to *slog.Logger) *anonymousLog {
	s := &anonymousLog{base: to.Handler(), lines: make(map[string]*anonymousLine)}
	s.log = slog.New(anonymousHandler{s.base, s})
	return s
}

// An anonymousHandler writes what its anonymousLog admits.
type anonymousHandler struct {
	slog.Handler
	of *anonymousLog
}

// Handle implements [slog.Handler].
func (h anonymousHandler) Handle(ctx context.Context, r slog.Record) error {
	if !h.of.admit(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h anonymousHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return anonymousHandler{h.Handler.WithAttrs(attrs), h.of}
}

// WithGroup implements [slog.Handler].
func (h anonymousHandler) WithGroup(name string) slog.Handler {
	return anonymousHandler{h.Handler.WithGroup(name), h.of}
}

// admit reports whether a line is written, and counts it if not.
func (s *anonymousLog) admit(r slog.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[r.Message]
	if l == nil {
		l = &anonymousLine{limit: rate.NewLimiter(rate.Every(anonymousEvery), anonymousBurst)}
		s.lines[r.Message] = l
	}
	if s.ended || l.limit.Allow() {
		return true
	}
	l.level = r.Level
	if l.leftOut++; l.tells == nil {
		l.tells = time.AfterFunc(anonymousEvery, func() { s.tell(r.Message) })
	}
	return false
}

// tell writes how many lines of a message were left out.
func (s *anonymousLog) tell(message string) {
	s.mu.Lock()
	l := s.lines[message]
	level, n := l.level, l.leftOut
	l.leftOut, l.tells = 0, nil
	s.mu.Unlock()
	if n == 0 { // end has told
		return
	}
	r := slog.NewRecord(time.Now(), level, message+": … and more", 0)
	r.Add("left_out", n)
	_ = s.base.Handle(context.Background(), r)
}

// end tells at once what is still to be told. Nothing is left out any more.
func (s *anonymousLog) end() {
	s.mu.Lock()
	s.ended = true
	var untold []string
	for message, l := range s.lines {
		if l.tells != nil && l.tells.Stop() {
			untold = append(untold, message)
		}
	}
	s.mu.Unlock()
	for _, message := range untold {
		s.tell(message)
	}
}

// httpErrors is what net/http writes its errors to: connections that end in a TLS handshake,
// or that are none.
func (s *anonymousLog) httpErrors() *log.Logger { return log.New(httpErrors{s.log}, "", 0) }

type httpErrors struct{ log *slog.Logger }

// Write implements [io.Writer].
func (e httpErrors) Write(line []byte) (int, error) {
	e.log.Debug("HTTP connection failed", "err", strings.TrimSpace(string(line)))
	return len(line), nil
}
