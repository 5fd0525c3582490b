package policy

import (
	"encoding/json"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// Policies are the rules of a proxy, in order. A nil Policies allows everything.
type Policies struct {
	rules []*rule // static
	usage usages

	mu     sync.Mutex // guards grants
	grants map[*identity.Identity]*Grant
}

// maxGrants bounds the identities whose grants are remembered: a token that is good for
// some time is looked at once. When there are more, all are looked at again.
const maxGrants = 1024

// New returns the policies of rules. It is nil if there are none. The error names the rule
// and the glob that is none.
func New(rules []Rule) (*Policies, error) {
	if len(rules) == 0 {
		return nil, nil
	}
	p := &Policies{grants: make(map[*identity.Identity]*Grant)}
	for _, r := range rules {
		c, err := compile(r)
		if err != nil {
			return nil, err
		}
		p.rules = append(p.rules, c)
	}
	return p, nil
}

// For returns what a client may, nil if there are no policies.
func (p *Policies) For(who *identity.Identity) *Grant {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.grants[who]
	if g == nil {
		if len(p.grants) >= maxGrants {
			clear(p.grants)
		}
		g = &Grant{Who: who, rule: p.ruleFor(who), all: p}
		p.grants[who] = g
	}
	return g
}

// Grants returns what each rule says, in order, of a client that it is about and that has no
// scopes.
func (p *Policies) Grants() (all []*Grant) {
	for _, r := range p.rules {
		all = append(all, &Grant{Who: &identity.Identity{}, rule: r, all: p})
	}
	return all
}

// ruleFor returns the first rule that is about a client.
func (p *Policies) ruleFor(who *identity.Identity) *rule {
	claims := sync.OnceValue(func() (claims map[string]json.RawMessage) {
		_ = json.Unmarshal(who.Claims, &claims) // of a JWT that was read before
		return claims
	})
	i := slices.IndexFunc(p.rules, func(r *rule) bool { return r.Who.matches(who, claims) })
	if i < 0 {
		return nothing
	}
	return p.rules[i]
}

// Differ reports whether two clients may be told different things about the same: what one
// of them got must not be kept for others.
func (p *Policies) Differ() bool {
	return p != nil && (!p.rules[0].Who.Any || len(p.rules[0].scopes) > 0)
}
