package proxy

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

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
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
	tools:     {"tools", "tools/list", "tools", "name", "notifications/tools/list_changed"},
	prompts:   {"prompts", "prompts/list", "prompts", "name", "notifications/prompts/list_changed"},
	resources: {"resources", "resources/list", "resources", "uri", "notifications/resources/list_changed"},
	templates: {"resources", "resources/templates/list", "resourceTemplates", "uriTemplate", "notifications/resources/list_changed"},
}

func (k kind) named() bool { return k == tools || k == prompts }

// A table is one list of one upstream, as last seen. It is immutable.
type table struct {
	// originals maps what the client sees, an exposed name or a URI, to what
	// the upstream calls it.
	originals map[string]string
	bare      map[string]bool // the upstream's own names
	templates []*regexp.Regexp
	mirrors   mirrors // of tools
	digest    digest
}

// A digest tells whether two lists, as the client sees them, differ.
type digest [sha256.Size]byte

// emptyDigest is that of a list without entries.
var emptyDigest = digest(sha256.Sum256(nil))

// resolve returns the upstream's own name for an exposed one.
func (t *table) resolve(exposed string) (string, bool) {
	if t == nil {
		return "", false
	}
	original, ok := t.originals[exposed]
	return original, ok
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

// An entry is one element of a list, as it goes to the client.
type entry struct {
	key string // exposed name or URI
	raw json.RawMessage
}

// index builds the entries that the client sees and the table behind them from
// one upstream's list. An element that cannot be used costs itself alone.
func (l *leg) index(k kind, elements []json.RawMessage) ([]entry, *table) {
	t := &table{originals: make(map[string]string, len(elements)), bare: make(map[string]bool)}
	hash := sha256.New()
	var entries []entry
	for _, raw := range elements {
		e, original, err := l.expose(k, raw)
		if err != nil {
			if l.s.p.warnOnce(fmt.Sprint(l.up.Name, k, err)) {
				l.log.Warn("list entry left out", "method", kindInfo[k].method, "err", err)
			}
			continue
		}
		if k == tools && !l.up.allows(original) {
			continue
		}
		if _, twice := t.originals[e.key]; twice {
			continue
		}
		t.originals[e.key], t.bare[original] = original, true
		hash.Write(e.raw)
		entries = append(entries, e)
		switch k {
		case templates:
			if re := matcher(original); re != nil {
				t.templates = append(t.templates, re)
			}
		case tools:
			t.mirrors.add(original, raw)
		}
	}
	hash.Sum(t.digest[:0])
	return entries, t
}

// expose returns one element under the name that the client sees, and the
// upstream's own name for it.
func (l *leg) expose(k kind, raw json.RawMessage) (entry, string, error) {
	key := kindInfo[k].key
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(raw, jsonrpc.Span{}, at[:], key); err != nil {
		return entry{}, "", err
	}
	original, ok := jsonrpc.Unquote(at[0].Of(raw))
	if !ok {
		return entry{}, "", errMissing(key)
	}
	if !k.named() || l.prefix == "" {
		return entry{original, raw}, original, nil
	}
	exposed := exposedName(l.prefix, original)
	return entry{exposed, jsonrpc.Replace(raw, jsonrpc.Edit{Span: at[0], With: jsonrpc.Quote(exposed)})}, original, nil
}

// maxName is how long a name may be for the language models that read it.
const maxName = 64

var fitName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// exposedName puts the prefix before a name. If that makes a fit name overlong,
// its end becomes a hash of the whole, always the same one.
func exposedName(prefix, original string) string {
	name := prefix + original
	if len(name) <= maxName || !fitName.MatchString(original) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	tail := "_" + hex.EncodeToString(sum[:4])
	return name[:maxName-len(tail)] + tail
}

// prefix returns what the exposed names of an upstream in a set begin with. It
// counts the upstreams that there are, never those that live: a name must not
// change because another server died. Nor must it because one becomes known.
func (p *Proxy) prefix(in *set, i int) string {
	u := &in.upstreams[i]
	several := len(in.upstreams) > 1 || !in.complete
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
