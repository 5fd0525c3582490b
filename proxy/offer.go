package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// An Offer is what a client sees of a proxy: lists as they are sent, and who is missing in
// them.
type Offer struct {
	Tools     []json.RawMessage `json:"tools"`
	Prompts   []json.RawMessage `json:"prompts,omitzero"`
	Resources []json.RawMessage `json:"resources,omitzero"`
	Templates []json.RawMessage `json:"resourceTemplates,omitzero"`
	Missing   []Missing         `json:"missing,omitzero"`
}

// Missing is an upstream or link that is not there.
type Missing struct {
	Name string `json:"name"`
	Why  string `json:"why"` // in words that follow the name
}

// Offer asks for all tools, and for everything else if all is true. Who is missing is told as
// far as it is run from here, and no other client is.
func (p *Proxy) Offer(ctx context.Context, c *Client, all bool) (*Offer, error) {
	o := &Offer{Tools: []json.RawMessage{}}
	lists := []struct {
		method, member string
		into           *[]json.RawMessage
	}{
		{mcp.MethodToolsList, "tools", &o.Tools},
		{mcp.MethodPromptsList, "prompts", &o.Prompts},
		{mcp.MethodResourcesList, "resources", &o.Resources},
		{mcp.MethodTemplatesList, "resourceTemplates", &o.Templates},
	}
	for _, l := range lists {
		capability := cmp.Or(map[string]string{"resourceTemplates": "resources"}[l.member], l.member)
		if !c.Offers(capability) || !all && l.member != "tools" {
			continue
		}
		found, err := c.List(ctx, l.method, l.member)
		o.Missing = p.missing()
		if _, answered := errors.AsType[*AnswerError](err); err != nil && !(answered && len(o.Missing) > 0) { // else those would have listed
			return nil, fmt.Errorf("%s: %w", l.method, err)
		}
		*l.into = append(*l.into, found...)
	}
	o.Missing = p.missing()
	return o, nil
}

// missing says who is not there for the only client.
func (p *Proxy) missing() (all []Missing) {
	byName := representative(p.host.host.Status())
	for _, u := range p.host.configured() {
		s, seen := byName[u]
		switch {
		case seen && s.State == upstream.StateRunning:
		case s.Says != "":
			all = append(all, Missing{u, s.Says})
		case seen && s.State == upstream.StateStarting:
			all = append(all, Missing{u, "is still starting"})
		}
	}
	for _, l := range p.links.snapshot() {
		if !l.Up {
			all = append(all, Missing{l.Name, l.Why})
		}
	}
	return all
}

// representative returns the status of each upstream that says most of whether it is there: one that
// runs, else one with a failure. What was only asked for its era has one that says nothing.
func representative(all []upstream.Status) map[string]upstream.Status {
	byName := make(map[string]upstream.Status)
	for _, s := range all {
		runs := s.State == upstream.StateRunning
		if old, seen := byName[s.Upstream]; !seen || runs || s.Says != "" && old.State != upstream.StateRunning {
			byName[s.Upstream] = s
		}
	}
	return byName
}

// Narrow returns a configuration with the one upstream alone that the name of a tool says, if
// it says one: nothing else has to be started then. Names stay what they were.
func Narrow(cfg *config.Config, tool string) *config.Config {
	narrow := Quiet(cfg)
	u, _ := named(cfg, tool)
	if u == nil || len(cfg.Upstreams)+len(cfg.Links) < 2 {
		return narrow
	}
	narrow.Upstreams, narrow.Links = []config.Upstream{*u}, nil
	return narrow
}

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

// named returns the upstream of a configuration that the name of a tool begins with, by its prefix or
// as policies call it, and the rest of the name; nil for none. A sole upstream has all names.
func named(cfg *config.Config, tool string) (found *config.Upstream, rest string) {
	naming := catalog.Naming(strings.TrimPrefix(cfg.Prefix, "auto"))
	sole := len(cfg.Upstreams) == 1 && len(cfg.Links) == 0
	longest := ""
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		for _, prefix := range []string{naming.Prefix(u.Name, u.Prefix, !sole), policy.Name(u.Name, "")} {
			if len(prefix) > len(longest) && strings.HasPrefix(tool, prefix) {
				found, longest = u, prefix
			}
		}
	}
	if found == nil && sole {
		found = &cfg.Upstreams[0]
	}
	return found, strings.TrimPrefix(tool, longest)
}
