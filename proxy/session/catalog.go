package session

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/yosida95/uritemplate/v3"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A kind is one of the lists that upstreams offer.
type kind int

const (
	tools kind = iota
	prompts
	resources
	templates
	kinds
)

// kindInfo is how a kind is called on the wire.
var kindInfo = [kinds]struct{ capability, method, member, key, changed string }{
	tools:     {"tools", mcp.MethodToolsList, "tools", "name", mcp.MethodToolsChanged},
	prompts:   {"prompts", mcp.MethodPromptsList, "prompts", "name", mcp.MethodPromptsChanged},
	resources: {"resources", mcp.MethodResourcesList, "resources", "uri", mcp.MethodResourcesChanged},
	templates: {"resources", mcp.MethodTemplatesList, "resourceTemplates", "uriTemplate", mcp.MethodResourcesChanged},
}

func (k kind) named() bool { return k == tools || k == prompts }

// A table is one list of one upstream, as last seen. It is immutable.
type table struct {
	entries   []entry         // as the client may see them
	names     map[string]bool // the upstream's own names, or URIs
	templates []*regexp.Regexp
	mirrors   mirrors // of tools
	digest    digest
}

// A digest tells whether two lists differ.
type digest [sha256.Size]byte

// emptyDigest is that of a list without entries.
var emptyDigest = digest(sha256.Sum256(nil))

// resolve returns the upstream's own name for one that is exposed with a prefix.
func (t *table) resolve(prefix, exposed string) (string, bool) {
	if t == nil {
		return "", false
	}
	if original, ok := strings.CutPrefix(exposed, prefix); ok && t.names[original] {
		return original, exposedName(prefix, original) == exposed
	}
	if len(exposed) != maxName {
		return "", false
	}
	for original := range t.names { // one that was overlong
		if strings.HasPrefix(prefix+original, exposed[:keptOfName]) && exposedName(prefix, original) == exposed {
			return original, true
		}
	}
	return "", false
}

// covers reports whether a template of the list matches a URI.
func (t *table) covers(uri string) bool {
	return t != nil && len(uri) <= maxMatched &&
		slices.ContainsFunc(t.templates, func(re *regexp.Regexp) bool { return re.MatchString(uri) })
}

// maxTemplate and maxMatched bound, in bytes, the templates that are matched and
// the URIs that they are matched against. What is longer has an owner only if it
// is listed.
const (
	maxTemplate = 1000
	maxMatched  = 2048
)

// matcher returns what matches the URIs of a template, nil if it cannot be used.
// A regular expression takes linear time; [uritemplate.Template.Match] can take
// minutes. Regexp panics for more than a thousand variables in an expression, for
// which maxTemplate has no room.
func matcher(template string) *regexp.Regexp {
	if len(template) > maxTemplate {
		return nil
	}
	t, err := uritemplate.New(template)
	if err != nil {
		return nil
	}
	return t.Regexp()
}

// An entry is one element of a list, as its upstream wrote it.
type entry struct {
	name string // its own, or a URI
	at   jsonrpc.Span
	raw  json.RawMessage
}

// index builds the table of what the client may see of one upstream's list. An
// element that cannot be used costs itself alone.
func (u *upstreamConn) index(k kind, elements []json.RawMessage) *table {
	t := &table{names: make(map[string]bool, len(elements))}
	hash := sha256.New()
	for _, raw := range elements {
		e, err := readEntry(k, raw)
		if err != nil {
			if u.s.p.warnOnce(fmt.Sprint(u.up.Name, k, err)) {
				u.log.Warn("list entry left out", "method", kindInfo[k].method, "err", err)
			}
			continue
		}
		if t.names[e.name] || k == tools && !u.up.allows(e.name) {
			continue
		}
		t.names[e.name] = true
		hash.Write(e.raw)
		t.entries = append(t.entries, e)
		switch k {
		case templates:
			if re := matcher(e.name); re != nil {
				t.templates = append(t.templates, re)
			}
		case tools:
			t.mirrors.add(e.name, raw)
		}
	}
	hash.Sum(t.digest[:0])
	return t
}

// readEntry reads what one element of a list is called.
func readEntry(k kind, raw json.RawMessage) (entry, error) {
	key := kindInfo[k].key
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(raw, jsonrpc.Span{}, at[:], key); err != nil {
		return entry{}, err
	}
	name, ok := jsonrpc.Unquote(at[0].Of(raw))
	if !ok {
		return entry{}, errMissing(key)
	}
	return entry{name, at[0], raw}, nil
}

// exposed returns the name that the client sees, and the element with it.
func (e *entry) exposed(prefix string) (string, json.RawMessage) {
	if prefix == "" {
		return e.name, e.raw
	}
	name := exposedName(prefix, e.name)
	return name, jsonrpc.Replace(e.raw, jsonrpc.Edit{Span: e.at, With: jsonrpc.Quote(name)})
}

const (
	// maxName is how long a name may be for the language models that read it.
	maxName = 64

	// keptOfName is what stays of one that is longer, before "_" and a hash.
	keptOfName = maxName - 1 - 2*hashOfName
	hashOfName = 4 // bytes
)

var fitName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// exposedName puts the prefix before a name. If that makes a fit name overlong,
// its end becomes a hash of the whole, always the same one.
func exposedName(prefix, original string) string {
	name := prefix + original
	if len(name) <= maxName || !fitName.MatchString(original) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:keptOfName] + "_" + hex.EncodeToString(sum[:hashOfName])
}

// prefix returns what the exposed names of an upstream begin with, by itself or
// among several. That counts the upstreams that there are, never those that live: a
// name must not change because another server died.
func (p *Router) prefix(u *Upstream, several bool) string {
	switch {
	case u.Prefix != nil && *u.Prefix == "":
		return ""
	case u.Prefix != nil:
		return *u.Prefix + "__"
	case p.Naming == NamePrefixAlways, p.Naming == NamePrefixAuto && several:
		return u.Name + "__"
	}
	return ""
}

// allows reports whether the client may see and call a tool.
func (u *Upstream) allows(tool string) bool {
	return (len(u.Allow) == 0 || matchesAny(u.Allow, tool)) && !matchesAny(u.Deny, tool)
}

func matchesAny(globs []string, name string) bool {
	for _, g := range globs {
		if ok, _ := path.Match(flat(g), flat(name)); ok {
			return true
		}
	}
	return false
}

// flat hides slashes from path.Match: names of tools are not paths, and a * in a
// rule that denies must match all of them.
func flat(s string) string { return strings.ReplaceAll(s, "/", "\x00") }
