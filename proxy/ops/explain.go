package ops

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// Answers of an [Explanation].
const (
	AnswerAllowed = "allowed"
	AnswerDenied  = "denied"
	AnswerScopes  = "needs scopes"          // it is in the list, and calls are refused
	AnswerDepends = "depends on the client" // the question has no client
	AnswerUnknown = "unknown"               // the name leads nowhere
)

// KindUpstream is the kind of an [Explanation] of an upstream itself. Its answer is the state or
// AnswerElsewhere, and not about permissions.
const (
	KindUpstream    = "upstream"
	AnswerElsewhere = "at a host elsewhere"
)

// An Explanation says where a name leads, what a client may do with it, and why.
type Explanation struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Answer   string   `json:"answer"`
	Why      string   `json:"why"`                // for people: the rule, and its deciding part
	Client   string   `json:"client,omitempty"`   // as in logs; "" if the question has none
	Rule     string   `json:"rule,omitempty"`     // its key in the configuration; "" if none matches the client
	Glob     string   `json:"glob,omitempty"`     // that decided; "" for none
	Matched  string   `json:"matched"`            // the text that globs were compared with
	Upstream string   `json:"upstream,omitempty"` // "" if not known
	Needs    []string `json:"needs,omitempty"`    // all scopes
	Missing  []string `json:"missing,omitempty"`
	Limits   string   `json:"limits,omitempty"` // of the rule: "rate 10/s, inFlight 16"
	Rules    []Ruling `json:"rules,omitempty"`  // the answer of each policy, if the question has no client
	Notes    []string `json:"notes,omitempty"`  // about uncertainty

	// Of a running proxy or host.
	Running  bool            `json:"running,omitempty"` // always true
	Leads    string          `json:"leads,omitempty"`   // for people: why the name leads to the upstream
	Original string          `json:"original,omitempty"`
	Exposed  string          `json:"exposed,omitempty"` // the name that clients see
	Listed   string          `json:"listed,omitempty"`  // by the upstream: yes, no, or unknown before its first list
	Link     string          `json:"link,omitempty"`    // to the host of the upstream; "" if it runs here
	Servers  []Servers       `json:"servers,omitempty"` // of the upstream, if it runs here
	Failed   observe.Failure `json:"failed,omitzero"`   // of the upstream, as in the status
}

// A Ruling is the answer of one policy.
type Ruling struct {
	Rule   string   `json:"rule"` // its key in the configuration
	Who    string   `json:"who"`  // the clients that it is about
	Answer string   `json:"answer"`
	Glob   string   `json:"glob,omitempty"` // that decided; "" for none
	Needs  []string `json:"needs,omitempty"`
}

// Servers counts the servers of an upstream in one state.
type Servers struct {
	Era    string   `json:"era"`             // of the streams to them
	Speaks []string `json:"speaks,omitzero"` // the known eras of the upstream
	State  string   `json:"state"`
	Count  int      `json:"count"`
}

// Allowed reports whether a call would be forwarded.
func (e *Explanation) Allowed() bool { return e.Answer == AnswerAllowed }

func (e *Explanation) note(format string, args ...any) {
	e.Notes = append(e.Notes, fmt.Sprintf(format, args...))
}

// An Explainer has the inputs of an [Explanation].
type Explainer struct {
	Config   *config.Config
	Policies *policy.Policies // nil on a host
	Resolve  func(catalog.Kind, string) catalog.Resolution
	Now      observe.Snapshot
}

// Explain says where a name or a URI leads now, what its upstream lists, what the upstream's servers do,
// and what a client may do with it: the client that as names, or for "" a client of each policy. It sends
// no requests. The error is about as.
func (x *Explainer) Explain(name, as string) (*Explanation, error) {
	e := &Explanation{Name: name, Running: true}
	who, err := e.clientOf(x.Config, as)
	if err != nil {
		return nil, err
	}
	kind := e.kind()
	l := x.Resolve(listOf(kind), name)
	if kind == policy.Tool && !l.Listed {
		if prompt := x.Resolve(catalog.Prompts, name); prompt.Listed {
			e.Kind, kind, l = "prompt", policy.Prompt, prompt
		}
	}
	e.follow(l, kind)
	e.decide(x.Config, x.Policies, who, kind)
	e.behind(x.Now.Links)
	switch {
	case l.Upstream == "" && !kind.IsResource():
		e.nowhere(l)
		e.upstreamOr(x.Now.Traffic, l.Names)
	case l.Hidden && e.Link != "":
		e.settle(AnswerDenied, "tools of the upstream, in the configuration of its host, hides it from all clients")
	case l.Hidden:
		e.settle(AnswerDenied, fmt.Sprintf("%s: upstreams.%s.tools hides it from all clients", fileOf(x.Config.File), e.Upstream))
	case l.By == catalog.ByPrefix && l.Known && !l.Listed:
		e.settle(AnswerUnknown, e.Upstream+" lists no such "+e.Kind+": a call of it is refused"+config.DidYouMean(e.Name, l.Names))
	}
	e.serversIn(&x.Now)
	return e, nil
}

// ExplainHost says which upstream of a host a name belongs to, by the function called, and what its servers
// do. Only the proxies that are linked to the host know the names and permissions of clients, so as must
// be "".
func ExplainHost(name, as string, now observe.Snapshot, called func(name string) (u *config.Upstream, original string)) (*Explanation, error) {
	if as != "" {
		return nil, errors.New("a host knows no clients: ask the proxy that is linked to it")
	}
	e := &Explanation{Name: name, Running: true, Matched: name}
	kind := e.kind()
	e.Answer, e.Why = AnswerAllowed, "a host has no policies; the proxies that are linked to it may have some"
	if kind.IsResource() {
		return e, nil
	}
	u, original := called(name)
	if u == nil {
		e.settle(AnswerUnknown, "no upstream of this host has that name: names are <upstream>__<name>")
		return e, nil
	}
	e.Upstream, e.Original, e.Matched = u.Name, original, policy.Name(u.Name, original)
	if !catalog.Allows(u.Tools.Allow, u.Tools.Deny, e.Original) {
		e.settle(AnswerDenied, u.Key+".tools hides it from all clients")
	}
	e.serversIn(&now)
	return e, nil
}

// kind distinguishes URIs from names. The lists of upstreams distinguish tools from prompts.
func (e *Explanation) kind() policy.Kind {
	e.Kind = "tool"
	if !isURI.MatchString(e.Name) {
		return policy.Tool
	}
	e.Kind = "resource"
	if strings.Contains(e.Name, "{") {
		return policy.Template
	}
	return policy.Resource
}

// clientOf parses a client: anonymous, operator, token:NAME, user:NAME, certificate:NAME@AUTHORITY or
// jwt:SUBJECT@ISSUER; nil for "".
func (e *Explanation) clientOf(cfg *config.Config, as string) (*identity.Identity, error) {
	kind, name, _ := strings.Cut(as, ":")
	p := identity.Principal{Kind: identity.Kind(kind), Name: name}
	switch p.Kind {
	case "":
		return nil, nil
	case identity.Anonymous, identity.Operator:
		if name != "" {
			return nil, fmt.Errorf("%s has no name", kind)
		}
	case identity.Token:
		names := []string{"default"}
		for _, t := range cfg.Auth.Tokens {
			names = append(names, t.Name)
		}
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("%q is not a token of auth.tokens%s", name, config.DidYouMean(name, names))
		}
	case identity.User:
		p.Name = identity.UserName(name)
	case identity.Certificate, identity.JWT:
		if i := strings.LastIndex(name, "@"); i >= 0 {
			p.Name, p.Issuer = name[:i], name[i+1:]
		}
	default:
		return nil, fmt.Errorf("%q is not a client: use anonymous, operator, token:NAME, user:NAME, certificate:NAME@AUTHORITY or jwt:SUBJECT@ISSUER", as)
	}
	if p.Name == "" && p.Kind != identity.Anonymous && p.Kind != identity.Operator {
		return nil, fmt.Errorf("%s has no name", as)
	}
	if p.Kind == identity.JWT {
		if err := checkIssuer(cfg, p.Issuer); err != nil {
			return nil, err
		}
		e.note("the claims and scopes of a JWT are not known from its name")
	}
	e.Client = p.String()
	return &identity.Identity{Principal: p}, nil
}

func checkIssuer(cfg *config.Config, name string) error {
	var known []string
	for _, i := range cfg.Auth.JWT {
		known = append(known, i.Issuer)
	}
	if slices.Contains(known, name) {
		return nil
	}
	return fmt.Errorf("%q is not an issuer of auth.jwt%s", name, config.DidYouMean(name, known))
}

// upstreamOr explains a name that leads nowhere as that of an upstream, or suggests another name.
func (e *Explanation) upstreamOr(all []observe.Traffic, names []string) {
	var upstreams []string
	for _, t := range all {
		upstreams = append(upstreams, t.Upstream)
		if t.Upstream != e.Name {
			continue
		}
		e.Kind, e.Upstream, e.Answer, e.Why, e.Notes = KindUpstream, t.Upstream, cmp.Or(t.State, AnswerElsewhere), "", nil
		e.Link = t.Link // serversIn adds its last failure
		return
	}
	if hint := config.DidYouMean(e.Name, names); hint != "" {
		e.Why += hint
		return
	}
	prefix, rest, found := strings.Cut(e.Name, "__")
	if near := config.Nearest(prefix, upstreams); near != "" && !(found && near == prefix) {
		if found {
			near += "__" + rest
		}
		e.Why += "; did you mean " + near + "?"
	}
}

// behind sets the link to the upstream, and notes whether it is lost.
func (e *Explanation) behind(links []observe.Link) {
	for _, l := range links {
		if !slices.Contains(l.Upstreams, e.Upstream) {
			continue
		}
		if e.Link = l.Name; !l.Up {
			e.note("the link %s is lost: calls wait a moment for it, and then fail", l.Name)
		} else if l.Through != "" {
			e.note("the host of the link %s has dialled replica %s, which passes calls on", l.Name, l.Through)
		}
	}
}

// listOf returns the list for the kind of a policy.
func listOf(k policy.Kind) catalog.Kind {
	switch k {
	case policy.Tool:
		return catalog.Tools
	case policy.Prompt:
		return catalog.Prompts
	}
	return catalog.Resources
}

// follow records where the name leads.
func (e *Explanation) follow(l catalog.Resolution, kind policy.Kind) {
	e.Upstream, e.Original, e.Exposed, e.Matched = l.Upstream, l.Original, l.Exposed, e.Name
	if !kind.IsResource() && l.Upstream != "" {
		e.Matched = policy.Name(l.Upstream, l.Original)
	}
	e.Leads = map[catalog.Rule]string{
		catalog.BySole:      "it is the only upstream, so names have no prefix",
		catalog.ByPrefix:    "the name begins with its prefix",
		catalog.ByBareName:  "no other upstream is known to have a " + e.Kind + " of that name",
		catalog.ByPolicy:    "policies use this name; clients use " + l.Exposed,
		catalog.ByURI:       "it lists the URI",
		catalog.ByTemplate:  "it lists a template that matches the URI",
		catalog.ByAskingAll: "no upstream is known to list the URI: those with resources are asked, one by one",
	}[l.By]
	if l.Upstream == "" {
		return
	}
	switch {
	case l.Listed:
		e.Listed = "yes"
	case l.Known:
		e.Listed = "no"
	default:
		e.Listed = "unknown"
		e.note("%s has not been listed yet", l.Upstream)
	}
	if l.By == catalog.BySole && e.Listed == "no" {
		e.note("the upstream does not list it; as the only upstream it gets the call anyway")
	}
}

// nowhere explains why a name leads to no upstream.
func (e *Explanation) nowhere(l catalog.Resolution) {
	why := "no upstream is known to have it: names are <prefix>__<name>"
	if l.By == catalog.BySeveral {
		why = "several upstreams have it: " + strings.Join(l.Others, ", ") + "; ask with the prefix of one"
	}
	if !l.Complete {
		e.note("not all links were up yet: an upstream of a host elsewhere may have it")
	}
	e.settle(AnswerUnknown, why)
}

// settle sets an answer that is the same for all clients.
func (e *Explanation) settle(answer, why string) {
	e.Answer, e.Why, e.Rules = answer, why, nil
}

// serversIn counts the servers of the upstream by state, and adds its last failure.
func (e *Explanation) serversIn(now *observe.Snapshot) {
	for _, t := range now.Traffic {
		if t.Upstream == e.Upstream {
			e.Failed = t.Failed
		}
	}
	for _, u := range now.Upstreams {
		if u.Name != e.Upstream {
			continue
		}
		i := slices.IndexFunc(e.Servers, func(s Servers) bool { return s.Era == u.Era && s.State == u.State })
		if i < 0 {
			i = len(e.Servers)
			e.Servers = append(e.Servers, Servers{Era: u.Era, Speaks: u.Speaks, State: u.State})
		}
		e.Servers[i].Count++
	}
}
