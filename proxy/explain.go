package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/auth"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A Question is what [Explain] answers.
type Question struct {
	// Name is that of a tool or prompt, as clients see it or as <upstream>__<name>; or a URI.
	Name string
	Kind string // "tool", "prompt" or "resource"; "" tells by the name

	// As is who asks: anonymous, operator, token:NAME, user:NAME, certificate:NAME@AUTHORITY or
	// jwt:SUBJECT@ISSUER. Claims are the payload of a JWT instead; nil for none.
	As     string
	Claims json.RawMessage
}

// Answers of an [Explanation].
const (
	AnswerAllowed = "allowed"
	AnswerDenied  = "denied"
	AnswerScopes  = "needs scopes"          // it is listed, and refused
	AnswerDepends = "depends on the client" // and nobody has said who asks
	AnswerUnknown = "unknown"               // it leads nowhere
)

// KindUpstream is the kind of an [Explanation] of an upstream itself. Its answer is the state,
// or AnswerElsewhere, and says nothing of what a client may.
const (
	KindUpstream    = "upstream"
	AnswerElsewhere = "at a host elsewhere"
)

// An Explanation says where a name leads, what a client may do with it, and why.
type Explanation struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Answer   string   `json:"answer"`
	Why      string   `json:"why"`                // for people: which rule, and what of it has decided
	Client   string   `json:"client,omitempty"`   // as logs name it; "" if nobody has said who asks
	Rule     string   `json:"rule,omitempty"`     // where it is in the configuration; "" if none is about the client
	Glob     string   `json:"glob,omitempty"`     // that has decided, if one has
	Matched  string   `json:"matched"`            // what globs were held against
	Upstream string   `json:"upstream,omitempty"` // "" if the configuration does not say
	Needs    []string `json:"needs,omitempty"`    // all scopes
	Missing  []string `json:"missing,omitempty"`
	Limits   string   `json:"limits,omitempty"` // of the rule: "rate 10/s, inFlight 16"
	Rules    []Ruling `json:"rules,omitempty"`  // what each policy says, if nobody has said who asks
	Notes    []string `json:"notes,omitempty"`  // what is not certain

	// Of a proxy or host that runs.
	Running  bool      `json:"running,omitempty"` // it was asked; else the configuration alone
	Leads    string    `json:"leads,omitempty"`   // for people: why the name leads to the upstream
	Original string    `json:"original,omitempty"`
	Exposed  string    `json:"exposed,omitempty"` // the name that clients see
	Listed   string    `json:"listed,omitempty"`  // by the upstream: yes, no, or unknown while nobody has asked it
	Link     string    `json:"link,omitempty"`    // to the host of the upstream; "" if it runs here
	Servers  []Servers `json:"servers,omitempty"` // of the upstream, if it runs here
	Failed   Failure   `json:"failed,omitzero"`   // of the upstream, as in the status
}

// A Ruling is what one policy says of something.
type Ruling struct {
	Rule   string   `json:"rule"` // where it is in the configuration
	Who    string   `json:"who"`  // whom it is about
	Answer string   `json:"answer"`
	Glob   string   `json:"glob,omitempty"` // that has decided, if one has
	Needs  []string `json:"needs,omitempty"`
}

// Servers are those of an upstream that do the same.
type Servers struct {
	Era    string   `json:"era"`             // of the streams to them
	Speaks []string `json:"speaks,omitzero"` // the eras of the upstream, as far as is known
	State  string   `json:"state"`
	Count  int      `json:"count"`
}

// Allowed reports whether a call would be passed on.
func (e *Explanation) Allowed() bool { return e.Answer == AnswerAllowed }

func (e *Explanation) note(format string, args ...any) {
	e.Notes = append(e.Notes, fmt.Sprintf(format, args...))
}

// Explain decides from a configuration alone, as a proxy with it would. The error says what
// is wrong with the question, or is [config.Problems].
func Explain(cfg *config.Config, q Question) (*Explanation, error) {
	policies, err := policiesOf(cfg)
	if err != nil {
		return nil, err
	}
	e := &Explanation{Name: q.Name}
	who, kind, err := e.asked(cfg, q)
	if err != nil {
		return nil, err
	}
	u, original := e.resolve(cfg, kind)
	e.decide(cfg, policies, who, kind)
	if u != nil && kind == policy.Tool && !catalog.Allows(u.Tools.Allow, u.Tools.Deny, original) {
		e.hidden(fileOf(cfg.File) + ": " + u.Key + ".tools hides it from all clients")
	}
	e.nobodys(cfg, u, kind)
	return e, nil
}

// nobodys answers for a name of a tool or a prompt that surely leads to no upstream.
func (e *Explanation) nobodys(cfg *config.Config, u *config.Upstream, kind policy.Kind) {
	if u != nil || kind.IsResource() || len(cfg.Upstreams) == 0 || len(cfg.Links) > 0 || slices.ContainsFunc(cfg.Upstreams, e.isBare(cfg)) {
		return
	}
	var all []observe.Traffic
	for _, up := range cfg.Upstreams {
		all = append(all, observe.Traffic{Upstream: up.Name, State: "configured"})
	}
	e.unknown("no upstream of this name is configured: a name is <prefix>__<name>")
	e.Notes = nil
	e.upstreamOr(all, nil)
}

// isBare reports whether names of an upstream have no prefix.
func (e *Explanation) isBare(cfg *config.Config) func(config.Upstream) bool {
	naming := catalog.Naming(strings.TrimPrefix(cfg.Prefix, "auto"))
	return func(u config.Upstream) bool { return naming.Prefix(u.Name, u.Prefix, true) == "" }
}

// asked reads the question: who asks, nil if nobody says, and for what.
func (e *Explanation) asked(cfg *config.Config, q Question) (who *identity.Identity, kind policy.Kind, err error) {
	if q.As != "" || q.Claims != nil {
		if who, err = e.client(cfg, q); err != nil {
			return nil, 0, err
		}
		e.Client = who.String()
	}
	kind, err = e.kind(q)
	return who, kind, err
}

// decide answers by the policies.
func (e *Explanation) decide(cfg *config.Config, policies *policy.Policies, who *identity.Identity, kind policy.Kind) {
	if who == nil && len(cfg.Policies) > 0 {
		e.decideForAll(cfg, policies, kind)
		return
	}
	g := policies.For(who)
	d := g.Decide(kind, e.Matched)
	e.Glob, e.Needs, e.Missing = d.Glob, d.Needs, d.Missing
	e.Answer = answerOf(d)
	e.because(g, cfg.File)
	if d.Unclear {
		e.Why = fmt.Sprintf("%s: %s is about resources, and servers could take this URI for another one", fileOf(cfg.File), e.Rule)
	}
}

// decideForAll answers with what each policy says: nobody has said who asks.
func (e *Explanation) decideForAll(cfg *config.Config, policies *policy.Policies, kind policy.Kind) {
	for i, g := range policies.Grants() {
		d := g.Decide(kind, e.Matched)
		r := Ruling{Rule: g.Rule(), Who: whoText(cfg.Policies[i].Who), Answer: answerOf(d), Glob: d.Glob, Needs: d.Needs}
		e.Rules = append(e.Rules, r)
	}
	e.Answer = AnswerDepends
	e.Why = fmt.Sprintf("%s: of the policies the first that is about a client counts, and who matches none may nothing", fileOf(cfg.File))
	if last := cfg.Policies[len(cfg.Policies)-1]; last.Who.Any && !slices.ContainsFunc(e.Rules, func(r Ruling) bool { return r.Answer != e.Rules[0].Answer }) {
		e.Answer, e.Why = e.Rules[0].Answer, fileOf(cfg.File)+": all policies say so"
	}
}

func answerOf(d policy.Decision) string {
	switch {
	case !d.Allowed:
		return AnswerDenied
	case d.Missing != nil:
		return AnswerScopes
	}
	return AnswerAllowed
}

// whoText is whom a policy is about.
func whoText(w config.Who) string {
	var parts []string
	for _, p := range []struct{ what, name string }{
		{"token", w.Token}, {"user", w.User}, {"certificate", w.Certificate}, {"issuer", w.Issuer}, {"principal", w.Principal},
	} {
		if p.name != "" {
			parts = append(parts, p.what+" "+p.name)
		}
	}
	for _, claim := range slices.Sorted(maps.Keys(w.Claims)) {
		parts = append(parts, "with "+claim+" "+w.Claims[claim])
	}
	switch {
	case w.Any:
		return "any client"
	case w.Anonymous:
		return "anonymous"
	case w.Operator:
		return "operator"
	}
	return strings.Join(parts, ", ")
}

// hidden makes the answer that nobody may.
func (e *Explanation) hidden(why string) {
	e.Answer, e.Why, e.Rules = AnswerDenied, why, nil
}

func fileOf(file string) string {
	if file == "" {
		return "the configuration"
	}
	return file
}

// because fills in which rule has decided, and what of it.
func (e *Explanation) because(g *policy.Grant, file string) {
	if g == nil {
		e.Why = fmt.Sprintf("%s has no policies: all is allowed", fileOf(file))
		return
	}
	e.Rule = g.Rule()
	at := fileOf(file) + ": " + e.Rule
	switch {
	case e.Rule == "":
		e.Why = fmt.Sprintf("%s: no policy is about this client, so it may nothing", fileOf(file))
		return
	case e.Answer == AnswerScopes:
		e.Why = fmt.Sprintf("%s.scopes wants what the client does not have", at)
	case e.Answer == AnswerAllowed && e.Glob != "":
		e.Why = fmt.Sprintf("%s.%ss.allow has %q", at, e.Kind, e.Glob)
	case e.Answer == AnswerAllowed:
		e.Why = fmt.Sprintf("%s is about this client, allows all that it does not deny, and does not deny this", at)
	case e.Glob != "":
		e.Why = fmt.Sprintf("%s.%ss.deny has %q", at, e.Kind, e.Glob)
	default:
		e.Why = fmt.Sprintf("%s allows only what it lists, and lists no such %s", at, e.Kind)
	}
	e.Limits = limitsText(g.Limits())
}

func limitsText(l policy.Limits) string {
	var parts []string
	add := func(n float64, format string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, n))
		}
	}
	add(l.Rate, "rate %.4g/s")
	add(float64(l.InFlight), "inFlight %g")
	add(float64(l.Sessions), "sessions %g")
	return strings.Join(parts, ", ")
}

var isURI = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`) // RFC 3986 3.1; no name that models read has a colon

func (e *Explanation) kind(q Question) (policy.Kind, error) {
	e.Kind = q.Kind
	if e.Kind == "" {
		e.Kind = "tool"
		if isURI.MatchString(q.Name) {
			e.Kind = "resource"
		}
	}
	switch e.Kind {
	case "tool":
		return policy.Tool, nil
	case "prompt":
		return policy.Prompt, nil
	case "resource":
		if strings.Contains(q.Name, "{") {
			return policy.Template, nil
		}
		return policy.Resource, nil
	}
	return 0, fmt.Errorf("%q is neither tool, prompt nor resource", q.Kind)
}

// resolve finds which upstream a name belongs to, and its own name there, as far as the
// configuration says. An upstream of a host elsewhere is not known here: nil.
func (e *Explanation) resolve(cfg *config.Config, kind policy.Kind) (*config.Upstream, string) {
	e.Matched = e.Name
	if kind.IsResource() {
		return nil, ""
	}
	naming := catalog.Naming(strings.TrimPrefix(cfg.Prefix, "auto"))
	sole := len(cfg.Upstreams) == 1 && len(cfg.Links) == 0
	var found *config.Upstream
	longest, bare := "", 0
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		own := naming.Prefix(u.Name, u.Prefix, !sole)
		if own == "" {
			bare++
		}
		for _, prefix := range []string{own, policy.Name(u.Name, "")} {
			if len(prefix) > len(longest) && strings.HasPrefix(e.Name, prefix) {
				found, longest = u, prefix
			}
		}
	}
	original := strings.TrimPrefix(e.Name, longest)
	switch {
	case found != nil:
	case sole:
		found = &cfg.Upstreams[0]
	case len(cfg.Links) > 0 && strings.Contains(e.Name, "__"):
		e.note("no upstream of this name is configured here; hosts behind links may have one")
		return nil, ""
	case bare > 0:
		e.note("several upstreams have names without a prefix: ask for <upstream>__%s", e.Name)
		return nil, ""
	default:
		e.note("no upstream of this name is configured: a name is <upstream>__<name>")
		return nil, ""
	}
	e.Upstream, e.Matched = found.Name, policy.Name(found.Name, original)
	return found, original
}

// client returns who asks.
func (e *Explanation) client(cfg *config.Config, q Question) (*identity.Identity, error) {
	if q.Claims != nil {
		if q.As != "" {
			return nil, errors.New("a client is given by what it is or by claims, not by both")
		}
		return e.byClaims(cfg, q.Claims)
	}
	kind, name, _ := strings.Cut(q.As, ":")
	p := identity.Principal{Kind: identity.Kind(kind), Name: name}
	switch p.Kind {
	case identity.Anonymous, identity.Operator:
		if name != "" {
			return nil, fmt.Errorf("%s has no name", kind)
		}
		return &identity.Identity{Principal: p}, nil
	case identity.Token:
		names := []string{"default"}
		for _, t := range cfg.Auth.Tokens {
			names = append(names, t.Name)
		}
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%q is no token of auth.tokens%s", name, config.DidYouMean(name, names))
		}
	case identity.User:
		p.Name = identity.UserName(name)
	case identity.Certificate, identity.JWT:
		if i := strings.LastIndex(name, "@"); i >= 0 {
			p.Name, p.Issuer = name[:i], name[i+1:]
		}
	default:
		return nil, fmt.Errorf("%q is no client: it is anonymous, operator, token:NAME, user:NAME, certificate:NAME@AUTHORITY or jwt:SUBJECT@ISSUER", q.As)
	}
	if p.Name == "" {
		return nil, fmt.Errorf("%s has no name", q.As)
	}
	if p.Kind == identity.JWT {
		if _, err := issuerOf(cfg, p.Issuer); err != nil {
			return nil, err
		}
		e.note("the claims and scopes of a JWT are not known from its name: --claims FILE has them")
	}
	return &identity.Identity{Principal: p}, nil
}

func issuerOf(cfg *config.Config, name string) (*config.Issuer, error) {
	var known []string
	for i := range cfg.Auth.JWT {
		if cfg.Auth.JWT[i].Issuer == name {
			return &cfg.Auth.JWT[i], nil
		}
		known = append(known, cfg.Auth.JWT[i].Issuer)
	}
	return nil, fmt.Errorf("%q is no issuer of auth.jwt%s", name, config.DidYouMean(name, known))
}

// byClaims returns the client of a JWT with this payload. Nobody has signed it, and whether
// it has expired, or is for somebody else, is not looked at.
func (e *Explanation) byClaims(cfg *config.Config, payload json.RawMessage) (*identity.Identity, error) {
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil || claims == nil {
		return nil, errors.New("the claims are not a JSON object")
	}
	name, _ := claims["iss"].(string)
	issuer, err := issuerOf(cfg, name)
	if err != nil {
		return nil, fmt.Errorf("iss: %w", err)
	}
	subject, ok := claims[issuer.Principal].(string)
	if !ok || subject == "" {
		return nil, fmt.Errorf("the claims have no %q, by which %s names clients", issuer.Principal, issuer.Key)
	}
	who := &identity.Identity{Principal: identity.Principal{Kind: identity.JWT, Issuer: name, Name: subject}, Scopes: auth.Scopes(claims), Claims: payload}
	for _, s := range who.Lacks(issuer.Scopes) {
		e.note("%s wants the scope %s of each token: one with these claims is refused", issuer.Key, s)
	}
	return who, nil
}
