package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

func id(kind identity.Kind, issuer, name, claims string, scopes ...string) *identity.Identity {
	who := &identity.Identity{Principal: identity.Principal{Kind: kind, Issuer: issuer, Name: name}, Scopes: scopes}
	if claims != "" {
		who.Claims = []byte(claims)
	}
	return who
}

func policies(t testing.TB, rules ...Rule) *Policies {
	t.Helper()
	for i := range rules {
		rules[i].Key = fmt.Sprintf("policies[%d]", i)
	}
	if len(rules) == 0 {
		return nil
	}
	p := new(Policies)
	if _, err := p.Replace(rules); err != nil {
		t.Fatal(err)
	}
	return p
}

// A rule matches only its kind of principal: a JWT whose subject is ci is not the token ci.
func TestWho(t *testing.T) {
	const login = "https://login.example.com"
	clients := map[string]*identity.Identity{
		"nobody":   identity.Nobody,
		"operator": identity.TheOperator,
		"ci":       id(identity.Token, "", "ci", ""),
		"ann":      id(identity.User, "", "ann", ""),
		"1000":     id(identity.User, "", "1000", ""),
		"cert":     id(identity.Certificate, "CN=ca", "ci", ""),
		"cert2":    id(identity.Certificate, "CN=other", "ci", ""),
		"jwt":      id(identity.JWT, login, "ci", `{"sub":"ci","groups":["admin","dev"],"scope":"a b","n":7,"ok":true,"team":"x y","o":{"k":"v"},"z":null}`),
		"jwt2":     id(identity.JWT, "https://other.example.com", "ci", `{"sub":"ci","groups":"admin"}`),
		"jwt3":     id(identity.JWT, login, "bob", `{"groups":["administrator"],"scope":"ab"}`),
	}
	for _, c := range []struct {
		who  Who
		want string
	}{
		{Who{Any: true}, "1000 ann cert cert2 ci jwt jwt2 jwt3 nobody operator"},
		{Who{Anonymous: true}, "nobody"},
		{Who{Operator: true}, "operator"},
		{Who{Token: "ci"}, "ci"},
		{Who{User: "ann"}, "ann"},
		{Who{User: "1000"}, "1000"},
		{Who{Certificate: "ci"}, "cert cert2"},
		{Who{Certificate: "ci", Issuer: "CN=ca"}, "cert"},
		{Who{Issuer: "CN=ca"}, "cert"},
		{Who{Issuer: login}, "jwt jwt3"},
		{Who{Issuer: login, Principal: "ci"}, "jwt"},
		{Who{Issuer: login, Claims: map[string]string{"groups": "admin"}}, "jwt"},
		{Who{Issuer: login, Claims: map[string]string{"scope": "b"}}, "jwt"},
		{Who{Issuer: login, Claims: map[string]string{"team": "x y"}}, "jwt"},
		{Who{Issuer: login, Claims: map[string]string{"n": "7", "ok": "true"}}, "jwt"},
		{Who{Issuer: login, Claims: map[string]string{"groups": "admin", "scope": "c"}}, ""},
		{Who{Issuer: login, Claims: map[string]string{"z": "null"}}, ""},
		{Who{Issuer: login, Claims: map[string]string{"o": `{"k":"v"}`}}, ""},
		{Who{Issuer: login, Claims: map[string]string{"absent": ""}}, ""},
		{Who{Issuer: "https://other.example.com", Claims: map[string]string{"groups": "admin"}}, "jwt2"},
		{Who{Token: "ci", Issuer: login}, ""},
		{Who{}, ""},
	} {
		p := policies(t, Rule{Who: c.who})
		var got []string
		for name, who := range clients {
			if p.For(who).Rule() != "" {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v is about %q, want %q", c.who, got, c.want)
		}
	}
}

// The first rule that matches a client decides alone. A client without a rule may do nothing.
func TestFirstRuleDecides(t *testing.T) {
	ci, other := id(identity.Token, "", "ci", ""), id(identity.Token, "", "other", "")
	p := policies(t,
		Rule{Who: Who{Token: "ci"}, Tools: Globs{Allow: []string{"files__read*"}}},
		Rule{Who: Who{Token: "ci"}})
	for who, want := range map[*identity.Identity]string{ci: "policies[0]", other: ""} {
		if got := p.For(who).Rule(); got != want {
			t.Errorf("%v: %q, want %q", who, got, want)
		}
	}
	for name, want := range map[string]bool{"files__read_file": true, "files__write": false, "docs__read": false} {
		if p.For(ci).May(Tool, name) != want {
			t.Errorf("ci: %s is %v", name, !want)
		}
		if p.For(other).May(Tool, name) || p.For(other).Sees("files") || p.For(other).MayExtend() {
			t.Error("other may", name)
		}
	}
	if g := (*Policies)(nil).For(ci); g != nil || !g.May(Resource, "x") || !g.Sees("x") || !g.MayExtend() || !g.Decide(Tool, "x").Allowed {
		t.Error("without policies everything is allowed")
	}
}

// A rule without globs allows everything; one with an allow list allows nothing else, of all kinds; deny wins.
func TestMay(t *testing.T) {
	const uri = "file:///a/b"
	for _, c := range []struct {
		name                   string
		rule                   Rule
		tool, prompt, resource bool
		extends, sees          bool
	}{
		{"nothing said", Rule{}, true, true, true, true, true},
		{"tools denied", Rule{Tools: Globs{Deny: []string{"files__*"}}}, false, true, true, false, true},
		{"with methods", Rule{Tools: Globs{Deny: []string{"files__*"}}, Methods: []string{"acme/*"}}, false, true, true, true, true},
		{"a tool allowed", Rule{Tools: Globs{Allow: []string{"files__x"}}}, true, false, false, false, true},
		{"allowed and denied", Rule{Tools: Globs{Allow: []string{"*"}, Deny: []string{"*x"}}}, false, false, false, false, true},
		{"a glob that only looks like all", Rule{Tools: Globs{Deny: []string{"file*"}}, Prompts: Globs{Deny: []string{"*"}}, Resources: Globs{Deny: []string{"*"}}}, false, false, false, false, true},
		{"resources allowed", Rule{Resources: Globs{Allow: []string{"file:///a/*"}}}, false, false, true, false, true},
		{"prompts allowed", Rule{Prompts: Globs{Allow: []string{"files__x"}}}, false, true, false, false, true},
		{"of another", Rule{Tools: Globs{Allow: []string{"docs__*"}}}, false, false, false, false, false},
		{"of some", Rule{Tools: Globs{Allow: []string{"f*x"}}}, true, false, false, false, true},
		{"allowed and denied at once", Rule{Tools: Globs{Allow: []string{"files__x"}, Deny: []string{"files__*"}}}, false, false, false, false, false},
		{"all denied", Rule{Tools: Globs{Deny: []string{"files__*"}}, Prompts: Globs{Deny: []string{"*"}}, Resources: Globs{Deny: []string{"*"}}}, false, false, false, false, false},
	} {
		c.rule.Who.Any = true
		g := policies(t, c.rule).For(identity.Nobody)
		got := []bool{g.May(Tool, "files__x"), g.May(Prompt, "files__x"), g.May(Resource, uri), g.MayExtend(), g.Sees("files")}
		if want := []bool{c.tool, c.prompt, c.resource, c.extends, c.sees}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", c.name, got, want)
		}
	}
}

// The scopes of several globs add up, and are sorted.
func TestScopes(t *testing.T) {
	p := policies(t, Rule{Who: Who{Any: true}, Tools: Globs{Deny: []string{"files__rm"}},
		Scopes: map[string][]string{"files__*": {"files"}, "files__w*": {"write", "files"}, "file:///*": {"read"}, "files__rm": {"all"}}})
	who := id(identity.JWT, "https://i", "a", "", "files")
	for _, c := range []struct {
		kind           Kind
		name           string
		needs, missing string
	}{
		{Tool, "docs__x", "", ""},
		{Tool, "files__r", "files", ""},
		{Tool, "files__w", "files write", "write"},
		{Prompt, "files__w", "files write", "write"},
		{Resource, "FILE:///x", "read", "read"},
		{Tool, "files__rm", "", ""},
	} {
		d := p.For(who).Decide(c.kind, c.name)
		if strings.Join(d.Needs, " ") != c.needs || strings.Join(d.Missing, " ") != c.missing || d.Allowed == (c.name == "files__rm") {
			t.Errorf("%s: %+v", c.name, d)
		}
	}
	if !p.Differ() || policies(t, Rule{Who: Who{Any: true}}).Differ() || (*Policies)(nil).Differ() {
		t.Error("lists differ where rules do")
	}
}

// An invalid glob is an error, and not a rule that denies nothing.
func TestBadGlobs(t *testing.T) {
	for _, r := range []Rule{{Tools: Globs{Deny: []string{"["}}}, {Prompts: Globs{Allow: []string{`\`}}}, {Scopes: map[string][]string{"[": {"x"}}}} {
		r.Key = "policies[3]"
		if _, err := new(Policies).Replace([]Rule{r}); err == nil || !strings.Contains(err.Error(), "policies[3]") {
			t.Error(err)
		}
	}
}

// Limits apply to a principal, over all its tokens and rules.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policies(t, Rule{Who: Who{Any: true}, Limits: Limits{Rate: 20, InFlight: 25, Sessions: 2}})
		one, again, other := id(identity.Token, "", "a", ""), id(identity.Token, "", "a", ""), id(identity.Token, "", "b", "")
		var uses []*Use
		for i := range 20 {
			use, refused := p.For([]*identity.Identity{one, again}[i%2]).Begin()
			if refused != nil {
				t.Fatal(i, refused)
			}
			uses = append(uses, use)
		}
		_, refused := p.For(again).Begin()
		if refused == nil || refused.Status != 429 || refused.RetryAfter != 50*time.Millisecond || !refused.Log {
			t.Fatalf("%+v", refused)
		}
		if _, refused := p.For(one).Begin(); refused == nil || refused.Log {
			t.Error("one line a minute")
		}
		if use, refused := p.For(other).Begin(); refused != nil {
			t.Error("another principal:", refused)
		} else {
			use.End()
		}
		time.Sleep(time.Second)
		for range 5 {
			use, refused := p.For(one).Begin()
			if refused != nil {
				t.Fatal(refused)
			}
			uses = append(uses, use)
		}
		if _, refused := p.For(again).Begin(); refused == nil || !strings.Contains(refused.Text, "in flight") {
			t.Error("in flight:", refused)
		}
		for _, use := range uses {
			use.End()
		}
		if use, refused := p.For(again).Begin(); refused != nil {
			t.Error(refused)
		} else {
			use.End()
		}
		leave, _ := p.Admit(one)
		p.Admit(again)
		if _, refusal := p.Admit(one); refusal == nil || refusal.Status != 429 {
			t.Error("a third session")
		}
		leave()
		if _, refusal := p.Admit(again); refusal != nil {
			t.Error(refusal)
		}
	})
}

// A low rate allows a burst at the beginning.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := policies(t, Rule{Who: Who{Any: true}, Limits: Limits{Rate: 0.5}}).For(identity.Nobody)
		for range leastBurst {
			if _, refused := g.Begin(); refused != nil {
				t.Fatal(refused)
			}
		}
		_, refused := g.Begin()
		if refused == nil || refused.RetryAfter != 2*time.Second || refused.Text != "too many requests: try again in 2 s" {
			t.Fatalf("%+v", refused)
		}
		time.Sleep(2 * time.Second)
		if _, refused := g.Begin(); refused != nil {
			t.Error(refused)
		}
	})
}

// Abandoned requests count apart, until they end or for 30 s, and are released once.
func TestAbandonedUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policies(t, Rule{Who: Who{Any: true}, Limits: Limits{InFlight: 2}})
		g := p.For(identity.Nobody)
		begin := func() *Use {
			t.Helper()
			use, refused := g.Begin()
			if refused != nil {
				t.Fatal(refused.Text)
			}
			return use
		}
		var uses []*Use
		for range 8 {
			use := begin()
			use.Abandon()
			use.Abandon()
			uses = append(uses, use)
			time.Sleep(time.Second)
		}
		if _, refused := g.Begin(); refused == nil || refused.RetryAfter != 22*time.Second {
			t.Fatalf("%+v", refused)
		}
		for range 3 {
			uses[7].End()
			uses[7].Abandon()
		}
		last := begin()
		last.End()
		last.End()
		last = begin()
		if _, refused := g.Begin(); refused == nil {
			t.Error("one was released twice")
		}
		time.Sleep(22 * time.Second)
		if !uses[0].Over() || uses[1].Over() || last.Over() {
			t.Error("what is over after 30 s")
		}
		begin() // instead of the first
		uses[0].End()
		if _, refused := g.Begin(); refused == nil || !strings.Contains(refused.Text, "in flight") {
			t.Errorf("there are two open ones: %+v", refused)
		}
		time.Sleep(time.Hour)
		last.Abandon()
		p.mu.Lock()
		u := p.usage[identity.Nobody.Principal]
		u.expireLocked(time.Now())
		if u.open != 1 || len(u.abandoned) != 1 {
			t.Error(u.open, "open,", len(u.abandoned), "abandoned")
		}
		p.mu.Unlock()
	})
}

// Usages of idle principals are dropped, and those of busy ones are kept.
func TestUsagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := policies(t, Rule{Who: Who{Any: true}, Limits: Limits{Rate: 10, InFlight: 1}})
		use, _ := p.For(identity.Nobody).Begin()
		for i := range 2000 {
			use, refused := p.For(id(identity.JWT, "https://i", fmt.Sprint(i), "")).Begin()
			if refused != nil {
				t.Fatal(refused)
			}
			use.End()
			time.Sleep(10 * time.Millisecond) // a bucket is full again after 100 ms
		}
		if n := len(p.usage); n > 128 {
			t.Error(n, "principals are remembered")
		}
		if _, refused := p.For(identity.Nobody).Begin(); refused == nil {
			t.Error("who is busy was forgotten")
		}
		use.End()
		if len(p.current().grants) > maxGrants {
			t.Error(len(p.current().grants), "grants")
		}
	})
}

// A client that matches no rule gets no session.
func TestAdmit(t *testing.T) {
	p := policies(t, Rule{Who: Who{Token: "ci"}})
	if _, refusal := p.Admit(identity.Nobody); refusal == nil || refusal.Status != 403 {
		t.Error(refusal)
	}
	for _, p := range []*Policies{p, nil} {
		leave, refusal := p.Admit(id(identity.Token, "", "ci", ""))
		if refusal != nil {
			t.Fatal(refusal)
		}
		leave()
	}
}

func BenchmarkDecide(b *testing.B) {
	who := id(identity.JWT, "https://i", "a", `{"groups":["dev","admin"]}`, "files.write")
	p := policies(b, Rule{Who: Who{Token: "ci"}}, Rule{Who: Who{Issuer: "https://i", Claims: map[string]string{"groups": "admin"}},
		Tools: Globs{Allow: []string{"docs__*", "files__*"}, Deny: []string{"*delete*"}}})
	scoped := policies(b, Rule{Who: Who{Any: true}, Scopes: map[string][]string{"files__write*": {"files.write"}}})
	denies := policies(b, Rule{Who: Who{Any: true}, Resources: Globs{Deny: denied}})
	for name, c := range map[string]struct {
		p    *Policies
		kind Kind
		of   string
	}{
		"none":   {nil, Tool, "files__write"},
		"tool":   {p, Tool, "files__write"},
		"scopes": {scoped, Tool, "files__write"},
		"uri":    {p, Resource, "file:///a/b/c"},
		"denied": {denies, Resource, "file:///a/b/c"},
		"long":   {denies, Resource, "file:///" + strings.Repeat("a%2f/;", 8<<10/6)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.p.For(who).Decide(c.kind, c.of)
			}
		})
	}
}
