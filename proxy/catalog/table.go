package catalog

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/yosida95/uritemplate/v3"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Table is one list of one upstream, as last listed. It is immutable. A nil Table is a list that
// was never requested; it has no entries.
type Table struct {
	Entries []Entry // that clients may see
	Digest  Digest  // of the entries

	names     map[string]*atomic.Value // by the upstream's own names, or URIs; see Kept
	templates []*regexp.Regexp

	mirrors     map[string][]mcp.Mirror // by tool, of the few that have any
	mirrorBytes int                     // in mirrors, about
}

// A Digest identifies the contents of a list.
type Digest [sha256.Size]byte

// EmptyDigest is the digest of a list without entries.
var EmptyDigest = Digest(sha256.Sum256(nil))

// Index makes a table of the elements of an upstream's list whose names keep accepts. It skips
// unusable elements, and returns their errors.
func Index(k Kind, elements []json.RawMessage, keep func(name string) bool) (t *Table, unusable []error) {
	t = &Table{names: make(map[string]*atomic.Value, len(elements))}
	hash := sha256.New()
	for _, raw := range elements {
		e, err := readEntry(k, raw)
		if err != nil {
			unusable = append(unusable, err)
			continue
		}
		if t.Has(e.Name) || !keep(e.Name) {
			continue
		}
		t.names[e.Name] = new(atomic.Value)
		hash.Write(e.raw)
		t.Entries = append(t.Entries, e)
		switch k {
		case Templates:
			if re := matcher(e.Name); re != nil {
				t.templates = append(t.templates, re)
			}
		case Tools:
			t.addMirrors(e.Name, raw)
		}
	}
	hash.Sum(t.Digest[:0])
	return t, unusable
}

// Has reports whether the upstream lists a name or a URI.
func (t *Table) Has(name string) bool { return t.Kept(name) != nil }

// Kept returns a value that belongs to an entry and lasts as long as it is listed; nil if the
// upstream does not list it.
func (t *Table) Kept(name string) *atomic.Value {
	if t == nil {
		return nil
	}
	return t.names[name]
}

// Mirrors returns the parameters that headers of a tool's calls repeat.
func (t *Table) Mirrors(tool string) []mcp.Mirror {
	if t == nil {
		return nil
	}
	return t.mirrors[tool]
}

// resolve returns the upstream's own name for an exposed name.
func (t *Table) resolve(prefix, exposed string) (string, bool) {
	if t == nil {
		return "", false
	}
	if original, ok := strings.CutPrefix(exposed, prefix); ok && t.Has(original) {
		return original, Exposed(prefix, original) == exposed
	}
	if len(exposed) != maxName {
		return "", false
	}
	for original := range t.names { // names that were shortened
		if strings.HasPrefix(prefix+original, exposed[:keptOfName]) && Exposed(prefix, original) == exposed {
			return original, true
		}
	}
	return "", false
}

// covers reports whether a template of the list matches a URI.
func (t *Table) covers(uri string) bool {
	return t != nil && len(uri) <= maxMatched &&
		slices.ContainsFunc(t.templates, func(re *regexp.Regexp) bool { return re.MatchString(uri) })
}

// maxTemplate and maxMatched bound the bytes of templates and of the URIs that are matched against
// them. Longer ones have an owner only if they are listed.
const (
	maxTemplate = 1000
	maxMatched  = 2048
)

// matcher returns an expression for the URIs of a template, nil if the template is unusable. A
// regular expression takes linear time; [uritemplate.Template.Match] can take minutes. Regexp
// panics for templates with more than a thousand variables, which exceed maxTemplate.
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

// An Entry is one element of a list, as its upstream sent it.
type Entry struct {
	Name string // the upstream's own, or a URI
	at   jsonrpc.Span
	raw  json.RawMessage
}

// readEntry finds the name of an element.
func readEntry(k Kind, raw json.RawMessage) (Entry, error) {
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(raw, jsonrpc.Span{}, at[:], k.Key()); err != nil {
		return Entry{}, err
	}
	if mcp.IsTooLong(at[0].Of(raw)) { // no client could use it
		return Entry{}, fmt.Errorf("%q %w", k.Key(), mcp.ErrTooLong)
	}
	name, ok := jsonrpc.Unquote(at[0].Of(raw))
	if !ok {
		return Entry{}, mcp.Missing(k.Key())
	}
	return Entry{name, at[0], raw}, nil
}

// exposed returns the name that clients see, and the element with that name.
func (e *Entry) exposed(prefix string) (string, json.RawMessage) {
	if prefix == "" {
		return e.Name, e.raw
	}
	name := Exposed(prefix, e.Name)
	return name, jsonrpc.Replace(e.raw, jsonrpc.Edit{Span: e.at, With: jsonrpc.Quote(name)})
}

// Headers of a call repeat some parameters of its tool, for intermediaries that do not read bodies
// (2026-07-28 server/tools, "x-mcp-header"). "Any server that processes the message body MUST
// validate" that both agree.

// maxMirrors bounds the bytes that a table uses for these parameters. Beyond it, tools are not
// checked.
const maxMirrors = 1 << 20

// addMirrors adds the mirrored parameters of a listed tool. It ignores a tool with wrong annotations,
// which would not be listed over HTTP.
func (t *Table) addMirrors(name string, tool json.RawMessage) {
	schema, err := jsonrpc.Member(tool, "inputSchema")
	if err != nil {
		return
	}
	found, err := mcp.Mirrors(schema)
	size := sizeOf(name, found)
	if err != nil || size == 0 || t.mirrorBytes+size > maxMirrors {
		return
	}
	if t.mirrors == nil {
		t.mirrors = make(map[string][]mcp.Mirror)
	}
	t.mirrors[name] = found
	t.mirrorBytes += size
}

// sizeOf returns the approximate size of a tool's mirrors.
func sizeOf(name string, found []mcp.Mirror) (size int) {
	for _, m := range found {
		size += 128 + len(name) + len(m.Header)
		for _, key := range m.Path {
			size += 16 + len(key)
		}
	}
	return size
}

// Disagrees compares the headers of a call with its arguments. It returns the error for the
// response, nil if they agree. It ignores headers that the tool does not define.
func Disagrees(wanted []mcp.Mirror, headers map[string][]string, n *mcp.Notes) *jsonrpc.Error {
	if len(wanted) == 0 {
		return nil
	}
	if err := n.Err(mcp.Arguments); err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	for _, m := range wanted {
		if !m.Agrees(headers[strings.ToLower(m.Header)], n.Raw(mcp.Arguments)) {
			return mcp.HeaderMismatch(m.Header)
		}
	}
	return nil
}
