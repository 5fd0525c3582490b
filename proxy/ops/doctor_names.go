package ops

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A listedTool is the relevant part of a tool in a list.
type listedTool struct {
	Name        string
	InputSchema json.RawMessage
	bytes       int
}

func readTools(elements []json.RawMessage) (all []listedTool) {
	for _, e := range elements {
		t := listedTool{bytes: len(e)}
		_ = json.Unmarshal(e, &t) // an invalid one has no name
		all = append(all, t)
	}
	return all
}

// Limits of current clients and models.
const (
	longName  = 64  // bytes of a name, for models
	specName  = 128 // bytes of a name, for the specification (2025-11-25 server/tools, "Tool Names")
	manyTools = 128 // in a list, for most clients
	hugeTools = 100 << 10
)

var (
	plainName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)
	legalName = regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`) // by the specification
)

// An exposedTool is a tool under the name that clients see.
type exposedTool struct{ upstream, own, name string }

// names finds problems with the names that clients see, and with their number.
func (d *Diagnosis) names(cfg *config.Config) {
	all, size := d.exposed(cfg)
	byName := make(map[string][]exposedTool)
	for _, t := range all {
		byName[strings.ToLower(t.name)] = append(byName[strings.ToLower(t.name)], t)
		d.name(t)
	}
	for _, key := range slices.Sorted(maps.Keys(byName)) {
		d.collision(byName[key])
	}
	if len(all) > manyTools {
		d.found(LevelWarning, "many-tools", "", "hide unneeded tools with tools.allow or tools.deny, or serve groups of upstreams separately",
			"clients see %d tools, and many clients support at most %d", len(all), manyTools)
	}
	if size > hugeTools {
		d.found(LevelWarning, "big-tools", "", "hide unneeded tools with tools.allow or tools.deny",
			"the tools are %d KiB, about %d thousand tokens in each request to a model", size>>10, size/4000)
	}
	d.uris()
}

// exposed returns the tools that clients see, and their size in bytes.
func (d *Diagnosis) exposed(cfg *config.Config) (all []exposedTool, size int) {
	naming := catalog.Naming(strings.TrimPrefix(cfg.Prefix, "auto"))
	several := len(cfg.Upstreams)+len(cfg.Links) > 1 || len(d.Upstreams) > 1
	for i := range d.Upstreams {
		t := &d.Upstreams[i]
		var u config.Upstream
		if j := slices.IndexFunc(cfg.Upstreams, func(u config.Upstream) bool { return t.Link == "" && u.Name == t.Upstream }); j >= 0 {
			u = cfg.Upstreams[j]
		}
		prefix := naming.Prefix(t.Upstream, u.Prefix, several)
		seen := make(map[string]bool)
		for _, tool := range readTools(t.Lists["tools"]) {
			if tool.Name == "" || seen[tool.Name] || !catalog.Allows(u.Tools.Allow, u.Tools.Deny, tool.Name) {
				continue
			}
			seen[tool.Name] = true
			size += tool.bytes
			all = append(all, exposedTool{t.Upstream, tool.Name, catalog.Exposed(prefix, tool.Name)})
		}
	}
	return all, size
}

// name finds problems with one name.
func (d *Diagnosis) name(t exposedTool) {
	const reported = "report it to its author, or hide it with tools.deny"
	switch {
	case len(t.own) > specName:
		d.found(LevelError, "long-name", t.upstream, reported, "the name of the tool %s has %d characters, and MCP allows %d", quoted(t.own), len(t.own), specName)
	case !legalName.MatchString(t.own):
		d.found(LevelError, "bad-name", t.upstream, reported, "the name of the tool %s has characters that MCP does not allow", quoted(t.own))
	case !plainName.MatchString(t.own):
		d.found(LevelWarning, "bad-name", t.upstream, reported, "the name of the tool %s has characters that some models refuse: they allow letters, digits, _ and -", quoted(t.own))
	case len(t.name) > longName:
		d.found(LevelWarning, "long-name", t.upstream, reported, "the name of the tool %s has %d characters, and models allow %d", quoted(t.name), len(t.name), longName)
	case !strings.HasSuffix(t.name, t.own):
		d.found(LevelNote, "long-name", t.upstream, "give the upstream a shorter name or prefix", "the tool %s is too long for models with its prefix, and clients see it as %s", quoted(t.own), t.name)
	}
}

// collision finds tools with the same name, or with names that differ in case only.
func (d *Diagnosis) collision(same []exposedTool) {
	if len(same) < 2 {
		return
	}
	var who []string
	for _, t := range same {
		who = append(who, fmt.Sprintf("%s of %s", quoted(t.name), t.upstream))
	}
	all := strings.Join(who, " and ")
	if same[0].name == same[1].name {
		d.found(LevelError, "collision", "", "give one of the upstreams a prefix, or hide one of the tools with tools.deny", "two tools have one name, and only the first can be called: %s", all)
		return
	}
	d.found(LevelNote, "collision", "", "give one of the upstreams a prefix if models mix them up", "the names of tools differ in case alone: %s", all)
}

// uris finds resources that two upstreams list. Clients can read only the first.
func (d *Diagnosis) uris() {
	first := make(map[string]string)
	clashes := make(map[string]int)
	for _, t := range d.Upstreams {
		for _, e := range t.Lists["resources"] {
			var r struct{ URI string }
			_ = json.Unmarshal(e, &r)
			by, taken := first[r.URI]
			switch {
			case r.URI == "":
			case !taken:
				first[r.URI] = t.Upstream
			case by != t.Upstream:
				clashes[by+" and "+t.Upstream]++
			}
		}
	}
	for _, who := range slices.Sorted(maps.Keys(clashes)) {
		d.found(LevelWarning, "same-uri", "", "reach the second one alone, at /mcp/NAME", "%s list %d %s with the same URI, and only those of the first can be read", who, clashes[who], plural(clashes[who], "resource", "resources"))
	}
}

// quoted quotes the name of a tool, cut to fit a line.
func quoted(name string) string {
	if len(name) > longName+16 {
		name = strings.ToValidUTF8(name[:longName], "") + "…"
	}
	return fmt.Sprintf("%q", name)
}
