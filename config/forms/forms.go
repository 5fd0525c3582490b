// Package forms brings files of other programs into our form: their servers become
// upstreams, which are then read as our own, except that unknown keys are warnings
// ([tree.Node.Foreign]).
//
// Each program has a file here, with its form. A form removes the keys that it reads from the
// file. The keys that are left at the top are ours, or are ignored with a warning.
//
// Lists of servers or tools that must not be used, or of the only ones that may, are obeyed. All
// other rules that restrict are mistakes at their keys: a server is never served more openly than
// its program would use it.
package forms

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// A File is a configuration file, perhaps of another program.
type File struct {
	Path string
	Dir  string // directory from which its relative paths count
	*tree.Node
}

// A form is the format in which one program writes its servers.
type form struct {
	name string

	// detect reports whether a file has this form. No two forms detect the same file.
	detect func(*File) bool

	// servers removes the servers from a file, and all keys that the form knows, and returns the
	// servers as upstreams. Some of the problems may be warnings.
	servers func(*File) (*tree.Node, tree.Problems)
}

var all = []form{claude, codex, docker, gemini, libreChat, opencode, tbxark, vscode, zed}

// sections are the keys for the servers. The first of them that a file has decides its form.
var sections = []string{"mcpServers", "servers", "context_servers", "mcp_servers", "mcp", "registry"}

// section returns the key for the servers of a file; "" for a file of our own.
func (f *File) section() string {
	i := slices.IndexFunc(sections, f.Has)
	if i < 0 {
		return ""
	}
	return sections[i]
}

// Convert replaces the servers of a file of another program by upstreams, with names that are valid for upstreams. It
// refuses keys that restrict in other forms than that of the file. It reports false for a file of our own.
func Convert(f *File) (problems tree.Problems, ok bool) {
	i := slices.IndexFunc(all, func(form form) bool { return form.detect(f) })
	if i < 0 {
		return nil, false
	}
	form := all[i]
	section := f.section()
	at := slices.IndexFunc(f.Members, func(m tree.Member) bool { return m.Key == section })
	f.Members = slices.Insert(f.Members, at, tree.Member{Key: converted})
	servers, problems := form.servers(f)
	c := conversion{problems: problems}
	for _, m := range f.Members {
		if slices.Contains(Guarding, m.Key) {
			c.wrong(m.Value, "is not read in a file of %s", form.name)
		}
	}
	for _, key := range Guarding {
		f.Take(key)
	}
	c.name(f.Get("upstreams"), servers)
	at = slices.IndexFunc(f.Members, func(m tree.Member) bool { return m.Key == converted })
	f.Members[at] = tree.Member{Key: "upstreams", Value: servers}
	return c.problems, true
}

// converted keeps the place of the servers among the keys of a file until they are converted.
const converted = "\x00"

// Restricting are keys of an entry that restrict its server: a misspelt one must be a mistake.
var Restricting = []string{
	"disabled", "enabled", "disabledTools", "disabled_tools", "enabledTools", "enabled_tools", "includeTools", "excludeTools",
	"sandbox", "sandboxEnabled", "allowHosts",
}

// Guarding are keys of a file that restrict its servers.
var Guarding = []string{
	"excludeTools", "permissions", "permission", "allowMCPServers", "excludeMCPServers", "enabledMcpjsonServers",
	"disabledMcpjsonServers", "disabledMcpServers", "allowedMcpServers", "deniedMcpServers", "mcpProxy", "mcpSettings",
	"chat.mcp.access", "chat.mcp.enabled",
}

// Own are keys of other programs that resemble ours and mean something else.
var Own = []string{"cache", "startup"}

// Folder returns the folder that an editor has open if its files are in dir: dir, or the folder above
// if dir belongs to the editor.
func Folder(dir string) string {
	up := dir
	if filepath.Base(up) == "settings" { // as in .kiro
		up = filepath.Dir(up)
	}
	switch filepath.Base(up) {
	case ".vscode", ".cursor", ".windsurf", ".gemini", ".codex", ".zed", ".opencode", ".roo", ".claude", ".kiro":
		return filepath.Dir(up)
	}
	return dir
}

// A conversion is the state of converting one file.
type conversion struct {
	*File
	problems     tree.Problems
	only         [][]string                      // lists of servers that may be used: a server must be in all of them
	never        []string                        // servers that must not be used
	denied       []denial                        // tools that must not be used
	placeholder  lazyregexp.Regexp               // placeholders that the program fills in, and that are mistakes here
	cwd          *tree.Node                      // working directory of servers without their own; nil for ours
	beforeServer func(name string, n *tree.Node) // called for each entry before its conversion; nil for nothing
}

func convert(f *File) *conversion { return &conversion{File: f, placeholder: capitals} }

func (c *conversion) wrong(at *tree.Node, format string, args ...any) {
	c.problems = append(c.problems, tree.Problem{Key: at.At, Text: fmt.Sprintf(format, args...)})
}

func (c *conversion) warn(at *tree.Node, format string, args ...any) {
	c.problems = append(c.problems, tree.Problem{Key: at.At, Text: fmt.Sprintf(format, args...), Warning: true})
}

// refuse refuses a key if it is there.
func (c *conversion) refuse(at *tree.Node, format string, args ...any) {
	if at != nil {
		c.wrong(at, format, args...)
	}
}

const (
	notRead   = "is not read here: disable servers in the file itself"
	noRule    = "is a permission rule, which is not read here: name the tool in disabledTools of its server"
	noSandbox = "is not supported here, and without it the server could access more: remove the key if that is intended"
)

// onlyThese reads a list of the only servers that may be used.
func (c *conversion) onlyThese(at *tree.Node) {
	if names := c.names(at); at.IsA(tree.List) {
		c.only = append(c.only, names)
	}
}

// neverThese reads a list of servers that must not be used.
func (c *conversion) neverThese(at *tree.Node) {
	c.never = append(c.never, c.names(at)...)
}

// names reads a list of names. It refuses variables: they would have to be expanded, and might contain
// patterns.
func (c *conversion) names(at *tree.Node) (names []string) {
	for _, n := range c.items(at) {
		if c.isName(n) {
			names = append(names, n.Text)
		}
	}
	return names
}

func (c *conversion) isName(n *tree.Node) bool {
	switch {
	case n.Kind != tree.Text || n.Text == "":
		c.wrong(n, "must be a non-empty string, not %s", n.Describe())
	case strings.Contains(n.Text, "${"):
		c.wrong(n, "must be a name: variables are not expanded here")
	default:
		return true
	}
	return false
}

// members returns the members of a map, or refuses what is none.
func (c *conversion) members(at *tree.Node) []tree.Member {
	if at != nil {
		c.isMap(at)
	}
	return at.Each()
}

// items returns the items of a list, or refuses what is none.
func (c *conversion) items(at *tree.Node) []*tree.Node {
	if at != nil && !at.IsA(tree.Null|tree.List) {
		c.wrong(at, "must be a list, not %s", at.Kind)
	}
	return at.All()
}

func (c *conversion) isMap(at *tree.Node) bool {
	if !at.IsA(tree.Null | tree.Object) {
		c.wrong(at, "must be a map, not %s", at.Kind)
		return false
	}
	return true
}

// access refuses a switch that forbids all servers, or some.
func (c *conversion) access(at *tree.Node) {
	if at != nil && !at.Is("all") && !at.Is("true") {
		c.wrong(at, notRead)
	}
}

// A denial is a tool that must not be used, as a program names it.
type denial struct {
	at       *tree.Node
	pattern  string                       // * matches anything
	prefixes func(server string) []string // the prefixes of the names of a server's tools
}

// restsOf returns the rests of a pattern after it has matched prefix, one for each way to match
// it.
func restsOf(pattern, prefix string) (rests []string) {
	flat := strings.NewReplacer("/", "\x00") // * must match slashes, too
	begins, prefix := flat.Replace(pattern), flat.Replace(prefix)
	for i := range len(pattern) + 1 {
		if ok, err := filepath.Match(begins[:i], prefix); !ok || err != nil {
			continue
		}
		rest := pattern[i:]
		if i > 0 && pattern[i-1] == '*' {
			rest = "*" + rest
		}
		if rest != "" && !slices.Contains(rests, rest) {
			rests = append(rests, rest)
		}
	}
	return rests
}

// concerns reports whether a pattern may match a tool of one of the servers, the names of which have one of prefixes.
func (c *conversion) concerns(pattern string, servers *tree.Node, prefixes func(server string) []string) bool {
	return slices.ContainsFunc(servers.Each(), func(m tree.Member) bool {
		return slices.ContainsFunc(prefixes(m.Key), func(prefix string) bool { return len(restsOf(pattern, prefix)) > 0 })
	})
}

var dashless = lazyregexp.New(`[^A-Za-z0-9_-]`)

// plain returns the name of a server as most programs write it before the names of its tools.
func plain(server string) string { return dashless.ReplaceAllString(server, "_") }

// text returns a new string with the path of a node, for error lines.
func text(s string, from *tree.Node) *tree.Node {
	return &tree.Node{Kind: tree.Text, Text: s, At: from.At}
}

// name gives every server a valid and unique name. Names that are valid already have precedence, in the
// order of the file.
func (c *conversion) name(own, servers *tree.Node) {
	taken := map[string]bool{tree.Reserved: true}
	for _, m := range own.Each() {
		taken[m.Key] = true
	}
	unfit := make(map[int]bool)
	for i, m := range servers.Each() {
		unfit[i] = taken[m.Key] || !tree.IsName(m.Key)
		taken[m.Key] = taken[m.Key] || !unfit[i]
	}
	for i, m := range servers.Each() {
		if unfit[i] {
			name := free(fit(m.Key), taken)
			taken[name] = true
			servers.Members[i].Key = name
			c.warn(m.Value, "is named %s here", name)
		}
	}
}

var (
	strange     = lazyregexp.New(`[^A-Za-z0-9_-]+`)
	underscores = lazyregexp.New(`__+`)
)

// fit makes a valid name of any text: dashes replace what is not allowed.
func fit(s string) string {
	s = underscores.ReplaceAllString(strange.ReplaceAllString(s, "-"), "_")
	s = strings.Trim(cut(strings.Trim(s, "-_"), tree.MaxName), "-_")
	if s == "" {
		return "server"
	}
	return s
}

// free adds a number to a name that is taken.
func free(name string, taken map[string]bool) string {
	unique := name
	for n := 2; taken[unique]; n++ {
		suffix := fmt.Sprintf("-%d", n)
		unique = cut(name, tree.MaxName-len(suffix)) + suffix
	}
	return unique
}

func cut(s string, n int) string { return s[:min(n, len(s))] }
