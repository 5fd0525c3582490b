package policy

import (
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/glob"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// A Kind is what a rule decides about.
type Kind byte

// The kinds. A template of resources is decided by its own text, and the resources that it
// expands to by theirs.
const (
	Tool Kind = iota
	Prompt
	Resource
	Template
)

// IsResource reports whether a kind is called by a URI.
func (k Kind) IsResource() bool { return k >= Resource }

// Name is how rules call a tool or prompt: by its upstream and by its own name there.
func Name(upstream, original string) string { return upstream + "__" + original }

// A Grant is what one client may. A nil Grant is that of everybody where there are no
// policies: all. It must not be changed.
type Grant struct {
	Who  *identity.Identity
	rule *rule
	all  *Policies
}

// A Decision is what a client may do with one thing, and why.
type Decision struct {
	Allowed bool
	Glob    string   // that has decided; "" for none
	Unclear bool     // a URI that servers can take for another one; it is not allowed
	Needs   []string // all scopes that are needed, sorted; nil for none
	Missing []string // of them, those that the client does not have
}

// Rule returns where the rule is configured; "" if none is about the client, or if there
// are no policies.
func (g *Grant) Rule() string {
	if g == nil {
		return ""
	}
	return g.rule.Key
}

// Limits returns those of the client.
func (g *Grant) Limits() Limits { return g.rule.Limits }

// A Visibility tells apart who may see what: clients of one Visibility see the same. The zero Visibility
// is that of all where there are no policies.
type Visibility struct{ rule *rule }

// Visibility returns which lists the client sees.
func (g *Grant) Visibility() Visibility {
	if g == nil {
		return Visibility{}
	}
	return Visibility{g.rule}
}

// May reports whether the client may see something and use it, if it has the scopes.
func (g *Grant) May(k Kind, name string) bool {
	if g == nil {
		return true
	}
	d, _ := g.rule.decide(k, name)
	return d.Allowed
}

// Decide says what the client may do with a tool, a prompt ([Name] says what they are
// called) or a resource.
func (g *Grant) Decide(k Kind, name string) Decision {
	if g == nil {
		return Decision{Allowed: true}
	}
	d, uri := g.rule.decide(k, name)
	if !d.Allowed {
		return d
	}
	for _, s := range g.rule.scopes {
		if s.matches(k, name, uri) {
			d.Needs = append(d.Needs, s.needs...)
		}
	}
	if d.Needs != nil {
		slices.Sort(d.Needs)
		d.Needs = slices.Compact(d.Needs)
		d.Missing = g.Who.Lacks(d.Needs)
	}
	return d
}

// Unlisted reports whether the client may do what has no name that a rule could allow: a
// request that nobody here knows. It may not if only what is listed is allowed.
func (g *Grant) Unlisted() bool { return g == nil || !g.rule.listed }

// Sees reports whether an upstream may have anything for the client. Of one that has
// nothing the client hears nothing, and it is not started for it.
func (g *Grant) Sees(upstream string) bool {
	return g.SeesAny(Tool, upstream) || g.SeesAny(Prompt, upstream) || g.SeesAny(Resource, upstream)
}

// SeesAny is Sees for one kind. Which upstream has which resources is not known here.
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

// literal returns what all that a glob matches begins with.
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

// decide says whether a rule lets something pass, and how the URI of a resource was read.
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
