package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// deny draws what one principal may not use, tells the judge, and returns rules that say so: what is denied, or what is
// allowed.
func (s *simulation) deny() []policy.Rule {
	who := pick(s.random, principals[:2])
	r := policy.Rule{Key: "policies[0]", Who: policy.Who{Token: who}}
	allows := s.random.IntN(2) == 0
	r.Tools.Allow = []string{"none"}
	for i, name := range s.servers {
		what := pick(s.random, []string{tool, "*", ""})
		if what == "" && (i > 0 || len(s.servers) > 1) {
			r.Tools.Allow, r.Resources.Allow = append(r.Tools.Allow, policy.Name(name, "*")), append(r.Resources.Allow, thingOf(name))
			continue
		}
		what = cmp.Or(what, "*")
		s.rec.add("nemesis", Denies, "", fmt.Sprintf("%s %s %s", who, name, what))
		r.Tools.Deny = append(r.Tools.Deny, policy.Name(name, what))
		if what == "*" {
			r.Resources.Deny = append(r.Resources.Deny, thingOf(name))
		} else {
			r.Tools.Allow, r.Resources.Allow = append(r.Tools.Allow, policy.Name(name, numbered+"*")), append(r.Resources.Allow, thingOf(name))
		}
	}
	if allows {
		r.Tools.Deny, r.Resources.Deny = nil, nil
	} else {
		r.Tools.Allow, r.Resources.Allow = nil, nil
	}
	return []policy.Rule{r, {Key: "policies[1]", Who: policy.Who{Any: true}}}
}

// policies are those of a new proxy.
func (s *simulation) policies() *policy.Policies {
	p := &policy.Policies{}
	if _, err := p.Replace(slices.Clone(s.rules)); err != nil {
		panic(err) // deny has made them
	}
	return p
}
