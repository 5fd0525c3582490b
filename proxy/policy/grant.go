package policy

import (
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/glob"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// A Kind is a kind of thing that rules decide about.
type Kind byte

// The kinds. A rule decides about a template by its text, and about the resources that it expands to by their URIs.
const (
	Tool Kind = iota
	Prompt
	Resource
	Template
)

// IsResource reports whether a kind is named by a URI.
func (k Kind) IsResource() bool { return k >= Resource }

// Name returns the name of a tool or prompt in rules: its upstream, and its own name there.
func Name(upstream, original string) string { return upstream + "__" + original }

// A Grant is what one client may do. A nil Grant, where there are no policies, allows everything. It must not be
// changed.
type Grant struct {
	Who  *identity.Identity
	rule *rule
	all  *Policies
}

// A Decision says whether a client may use one thing, and why.
type Decision struct {
	Allowed bool
	Glob    string   // the deciding one; "" for none
	Unclear bool     // servers may take the URI for another one, so it is not allowed
	Needs   []string // all needed scopes, sorted; nil for none
	Missing []string // the needed scopes that the client lacks
}

// Rule returns the key of the rule in the configuration; "" if no rule matches the client, or without policies.
func (g *Grant) Rule() string {
	if g == nil {
		return ""
	}
	return g.rule.Key
}

// Limits returns the limits of the client.
func (g *Grant) Limits() Limits { return g.rule.Limits }

// Visibility returns a key for what the client sees: clients with the same rule see the same lists. It is nil without
// policies.
func (g *Grant) Visibility() *Rule {
	if g == nil {
		return nil
	}
	return &g.rule.Rule
}

// May reports whether the client may see something, and use it if it has the scopes.
func (g *Grant) May(k Kind, name string) bool {
	if g == nil {
		return true
	}
	d, _ := g.rule.decide(k, name)
	return d.Allowed
}

// Decide decides about a tool or prompt, by its [Name], or a resource, by its URI.
func (g *Grant) Decide(k Kind, name string) Decision {
	if g == nil {
		return Decision{Allowed: true}
	}
	d, uri := g.rule.decide(k, name)
	if !d.Allowed {
		return d
	}
	for as, needs := range g.rule.scopes {
		if as.matches(k, name, uri) {
			d.Needs = append(d.Needs, needs...)
		}
	}
	if d.Needs != nil {
		slices.Sort(d.Needs)
		d.Needs = slices.Compact(d.Needs)
		d.Missing = g.Who.Lacks(d.Needs)
	}
	return d
}

// MayMethod reports whether the client may use a method of an extension, which the proxy does not know, for requests
// and notifications. A rule that restricts anything at all restricts these, too: what they do is unknown.
func (g *Grant) MayMethod(method string) bool {
	if g == nil || !g.rule.listed && !g.rule.denies {
		return true
	}
	_, may := glob.First(g.rule.Methods, method)
	return may
}

// MayDeliver reports whether servers may send events for the client to a URL.
func (g *Grant) MayDeliver(url string) bool {
	if g == nil {
		return true
	}
	as, ok := readURI(url)
	return ok && slices.ContainsFunc(g.rule.deliver, func(to *reading) bool { return to.allows(&as) })
}

// MayExtend reports whether the client may use any extension that the proxy does not know.
func (g *Grant) MayExtend() bool {
	return g == nil || !g.rule.listed && !g.rule.denies || len(g.rule.Methods) > 0
}

// Sees reports whether an upstream may have anything for the client. An upstream that has nothing is hidden from the
// client, and not started for it.
func (g *Grant) Sees(upstream string) bool {
	return g.SeesAny(Tool, upstream) || g.SeesAny(Prompt, upstream) || g.SeesAny(Resource, upstream)
}

// SeesAny is Sees for one kind. The package does not know which upstream has which resources.
func (g *Grant) SeesAny(k Kind, upstream string) bool {
	if g == nil {
		return true
	}
	of := Name(upstream, "")
	if k.IsResource() {
		of = ""
	}
	globs := g.rule.globs(k)
	if slices.Contains(globs.Deny, "*") || slices.Contains(globs.Deny, of+"*") {
		return false
	}
	return !g.rule.listed || slices.ContainsFunc(globs.Allow, func(glob string) bool {
		begin := literal(glob)
		return strings.HasPrefix(begin, of) || strings.HasPrefix(of, begin)
	})
}

// literal returns the prefix of everything that a glob matches.
func literal(glob string) string {
	if i := strings.IndexAny(glob, `*?[\`); i >= 0 {
		return glob[:i]
	}
	return glob
}

func (r *rule) globs(k Kind) *Globs {
	switch k {
	case Tool:
		return &r.Tools
	case Prompt:
		return &r.Prompts
	}
	return &r.Resources
}

// decide decides about one thing, and returns the readings of a resource's URI.
func (r *rule) decide(k Kind, name string) (d Decision, uri *reading) {
	if k.IsResource() {
		return r.decideURI(k, name)
	}
	of := r.globs(k)
	if by, denied := glob.First(of.Deny, name); denied {
		return Decision{Glob: by}, nil
	}
	if d.Allowed = !r.listed; !d.Allowed {
		d.Glob, d.Allowed = glob.First(of.Allow, name)
	}
	return d, nil
}

func (r *rule) decideURI(k Kind, name string) (d Decision, uri *reading) {
	if !r.byURI {
		return Decision{Allowed: !r.listed}, &reading{}
	}
	read := readURI
	if k == Template {
		read = readTemplate
	}
	as, ok := read(name)
	if !ok {
		return Decision{Unclear: true}, nil
	}
	for _, g := range r.deny {
		if g.denies(&as) {
			return Decision{Glob: g.text}, nil
		}
	}
	for _, g := range r.allow {
		if g.allows(&as) {
			return Decision{Allowed: true, Glob: g.text}, &as
		}
	}
	return Decision{Allowed: !r.listed}, &as
}
