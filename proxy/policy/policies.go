package policy

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// Policies are the rules of a proxy, in order. Nil Policies, and those without rules, allow everything. The usage of
// principals is kept when the rules change.
type Policies struct {
	rules atomic.Pointer[ruleSet] // nil for none

	mu    sync.Mutex                    // guards the fields below, and each usage
	usage map[identity.Principal]*usage // of principals with limits
	sweep int                           // expired usages are dropped at this number of usages
}

// A ruleSet is the rules of one configuration, and the grants of clients.
type ruleSet struct {
	rules []*rule // static

	mu     sync.Mutex // guards grants
	grants map[*identity.Identity]*Grant
}

// maxGrants bounds the cached grants, which save matching a client's identity for each request. A full cache is
// cleared.
const maxGrants = 1024

// Replace replaces the rules; no rules allow everything. It returns the policies before, for comparison. If it fails,
// with an error that names the rule and the invalid glob, it changes nothing.
func (p *Policies) Replace(rules []Rule) (before *Policies, err error) {
	var next *ruleSet
	if len(rules) > 0 {
		next = &ruleSet{grants: make(map[*identity.Identity]*Grant)}
	}
	for _, r := range rules {
		c, err := compile(r)
		if err != nil {
			return nil, err
		}
		next.rules = append(next.rules, c)
	}
	before = new(Policies)
	before.rules.Store(p.rules.Swap(next))
	return before, nil
}

// current returns the rules in force, nil for none.
func (p *Policies) current() *ruleSet {
	if p == nil {
		return nil
	}
	return p.rules.Load()
}

// For returns the grant of a client, nil if there are no policies.
func (p *Policies) For(who *identity.Identity) *Grant {
	set := p.current()
	if set == nil {
		return nil
	}
	set.mu.Lock()
	defer set.mu.Unlock()
	g := set.grants[who]
	if g == nil {
		if len(set.grants) >= maxGrants {
			clear(set.grants)
		}
		g = &Grant{Who: who, rule: set.ruleFor(who), all: p}
		set.grants[who] = g
	}
	return g
}

// Grants returns a grant for each rule, in order, of a client that it matches and that has no scopes.
func (p *Policies) Grants() (all []*Grant) {
	set := p.current()
	if set == nil {
		return nil
	}
	for _, r := range set.rules {
		all = append(all, &Grant{Who: &identity.Identity{}, rule: r, all: p})
	}
	return all
}

// ruleFor returns the first rule that matches a client.
func (set *ruleSet) ruleFor(who *identity.Identity) *rule {
	claims := sync.OnceValue(func() (claims map[string]json.RawMessage) {
		_ = json.Unmarshal(who.Claims, &claims) // the JWT was parsed before
		return claims
	})
	i := slices.IndexFunc(set.rules, func(r *rule) bool { return r.Who.matches(who, claims) })
	if i < 0 {
		return nothing
	}
	return set.rules[i]
}

// Differ reports whether clients may get different answers to the same request, so that one's must not be cached for
// others.
func (p *Policies) Differ() bool {
	set := p.current()
	return set != nil && (!set.rules[0].Who.Any || len(set.rules[0].scopes) > 0)
}
