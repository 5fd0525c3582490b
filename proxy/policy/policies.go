package policy

import (
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// Policies are the rules of a proxy, in order. A nil Policies, and one without rules,
// allows everything. What principals use of their limits outlives a change of the rules.
type Policies struct {
	rules atomic.Pointer[ruleSet] // nil for none
	usage usages
}

// A ruleSet is the rules of one configuration, and who has which grant by them.
type ruleSet struct {
	rules []*rule // static

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
	p := new(Policies)
	if _, err := p.Replace(rules); err != nil {
		return nil, err
	}
	return p, nil
}

// Replace makes other rules count from now on; no rules allow everything. It returns what
// was allowed before, to compare with. With an error, which is that of [New], nothing has
// changed.
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

// current returns the rules that count now; nil for none.
func (p *Policies) current() *ruleSet {
	if p == nil {
		return nil
	}
	return p.rules.Load()
}

// For returns what a client may, nil if there are no policies.
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

// Grants returns what each rule says, in order, of a client that it is about and that has no
// scopes.
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

// ruleFor returns the first rule that is about a client.
func (set *ruleSet) ruleFor(who *identity.Identity) *rule {
	claims := sync.OnceValue(func() (claims map[string]json.RawMessage) {
		_ = json.Unmarshal(who.Claims, &claims) // of a JWT that was read before
		return claims
	})
	i := slices.IndexFunc(set.rules, func(r *rule) bool { return r.Who.matches(who, claims) })
	if i < 0 {
		return nothing
	}
	return set.rules[i]
}

// Differ reports whether two clients may be told different things about the same: what one
// of them got must not be kept for others.
func (p *Policies) Differ() bool {
	set := p.current()
	return set != nil && (!set.rules[0].Who.Any || len(set.rules[0].scopes) > 0)
}
