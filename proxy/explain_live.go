package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
)

// Explain is [Explain] of a proxy that runs: it knows where a name leads now, what its
// upstream lists, and what the servers of that do. It starts and asks nothing.
func (p *Proxy) Explain(q Question) (*Explanation, error) {
	e := &Explanation{Name: q.Name, Running: true}
	cfg := p.config.Load()
	who, kind, err := e.asked(cfg, q)
	if err != nil {
		return nil, err
	}
	policies, err := policiesOf(cfg) // not the router's, which may be those of another configuration by now
	if err != nil {
		return nil, err
	}
	l := p.router.Lead(listOf(kind), q.Name)
	e.follow(l, kind)
	e.decide(cfg, policies, who, kind)
	e.behind(p.links.snapshot())
	switch {
	case l.Upstream == "" && !kind.IsResource():
		e.nowhere(l)
		e.upstreamOr(p.traffic(), l.Names)
	case l.Hidden && e.Link != "":
		e.hidden("tools of the upstream, in the configuration of its host, hides it from all clients")
	case l.Hidden:
		e.hidden(fmt.Sprintf("%s: upstreams.%s.tools hides it from all clients", fileOf(cfg.File), e.Upstream))
	case l.By == session.ByPrefix && l.Known && !l.Listed:
		e.unknown(e.Upstream + " lists no such " + e.Kind + ": a call of it is refused")
		e.suggest(config.Nearest(e.Name, l.Names))
	}
	e.serversIn(p.host)
	return e, nil
}

// upstreamOr says of a name that leads nowhere how the upstream of that name does, else which
// one, or which of the names that are listed, may have been meant.
func (e *Explanation) upstreamOr(all []observe.Traffic, names []string) {
	var upstreams []string
	for _, t := range all {
		upstreams = append(upstreams, t.Upstream)
		if t.Upstream != e.Name {
			continue
		}
		e.Kind, e.Upstream, e.Answer, e.Why, e.Notes = KindUpstream, t.Upstream, cmp.Or(t.State, AnswerElsewhere), "", nil
		e.Link = t.Link // serversIn has its last failure
		return
	}
	if near := config.Nearest(e.Name, names); near != "" {
		e.suggest(near)
		return
	}
	prefix, rest, found := strings.Cut(e.Name, "__")
	if near := config.Nearest(prefix, upstreams); near != "" && !(found && near == prefix) {
		if found {
			near += "__" + rest
		}
		e.suggest(near)
	}
}

// suggest says what may have been meant; "" is nothing.
func (e *Explanation) suggest(near string) {
	if near != "" {
		e.Why += "; did you mean " + near + "?"
	}
}

// behind says which link leads to the upstream, and whether that is up.
func (e *Explanation) behind(links []observe.Link) {
	for _, l := range links {
		if !slices.Contains(l.Upstreams, e.Upstream) {
			continue
		}
		if e.Link = l.Name; !l.Up {
			e.note("the link %s is lost: calls wait a moment for it, and then fail", l.Name)
		}
	}
}

// listOf is the list in which what a policy decides about stands.
func listOf(k policy.Kind) catalog.Kind {
	switch k {
	case policy.Tool:
		return catalog.Tools
	case policy.Prompt:
		return catalog.Prompts
	}
	return catalog.Resources
}

// follow takes over where the name leads.
func (e *Explanation) follow(l session.Lead, kind policy.Kind) {
	e.Upstream, e.Original, e.Exposed, e.Matched = l.Upstream, l.Original, l.Exposed, e.Name
	if !kind.IsResource() && l.Upstream != "" {
		e.Matched = policy.Name(l.Upstream, l.Original)
	}
	e.Leads = map[session.Rule]string{
		session.BySole:      "it is the only upstream, so names are its own",
		session.ByPrefix:    "the name begins with its prefix",
		session.ByBareName:  "no other upstream has a " + e.Kind + " of that name",
		session.ByPolicy:    "it is how policies call it; clients call it " + l.Exposed,
		session.ByURI:       "it lists the URI",
		session.ByTemplate:  "it lists a template that matches the URI",
		session.ByAskingAll: "no upstream is known to list the URI: those with resources are asked, one by one",
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
		e.note("nobody has asked %s yet what it has", l.Upstream)
	}
	if l.By == session.BySole && e.Listed == "no" {
		e.note("the upstream does not list it; as the only one it gets the call all the same")
	}
}

// nowhere says why a name leads to no upstream.
func (e *Explanation) nowhere(l session.Lead) {
	why := "no upstream is known to have it: a name is <prefix>__<name>"
	if l.By == session.BySeveral {
		why = "several upstreams have it: " + strings.Join(l.Others, ", ") + "; ask with the prefix of one"
	}
	if !l.Complete {
		e.note("not all links were up yet: an upstream of a host elsewhere may have it")
	}
	e.unknown(why)
}

func (e *Explanation) unknown(why string) {
	e.Answer, e.Why, e.Rules = AnswerUnknown, why, nil
}

// serversIn counts the servers of the upstream, by what they do, and says how one failed.
func (e *Explanation) serversIn(h *hosting) {
	e.Failed = conditionsOf(h.host.Status())[e.Upstream].failed
	for _, u := range h.snapshot() {
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

// Explain says of a host which upstream a name is for, and what its servers do. What names
// clients see, and what they may, is for the proxies to say that it is linked to.
func (h *Host) Explain(q Question) (*Explanation, error) {
	if q.As != "" || q.Claims != nil {
		return nil, errNoClients
	}
	e := &Explanation{Name: q.Name, Running: true}
	kind, err := e.kind(q)
	if err != nil {
		return nil, err
	}
	u, original := e.resolve(h.half.runs(), kind)
	e.Original = original
	e.Answer, e.Why = AnswerAllowed, "a host has no policies; the proxies that are linked to it may have some"
	switch {
	case u == nil && !kind.IsResource():
		e.unknown("no upstream of this host is called so: a name is <upstream>__<name>")
	case u != nil && kind == policy.Tool && !catalog.Allows(u.Tools.Allow, u.Tools.Deny, original):
		e.hidden(u.Key + ".tools hides it from all clients")
	}
	e.serversIn(h.half)
	return e, nil
}

var errNoClients = errors.New("a host knows no clients: ask the proxy that is linked to it")

// runs is a configuration with the upstreams that run here now.
func (h *hosting) runs() *config.Config {
	h.mu.Lock()
	defer h.mu.Unlock()
	cfg := &config.Config{}
	for _, name := range slices.Sorted(maps.Keys(h.configs)) {
		cfg.Upstreams = append(cfg.Upstreams, h.configs[name])
	}
	return cfg
}
