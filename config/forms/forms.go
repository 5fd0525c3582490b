// Package forms brings files of other programs into our form: their servers become
// upstreams, which are then read as our own, except that unknown keys are warnings
// ([tree.Node.Foreign]).
//
// Each program has a file here, with its [Form]. A form takes what it reads out of the file.
// What is left at the top of the file may be ours, or is ignored with a warning.
//
// What keeps servers or tools from being used is obeyed where it is a list of servers or
// tools. All other rules that restrict are refused, with the key that has them: a server is
// never served more openly than its program would use it.
package forms

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// A File is a configuration file of another program.
type File struct {
	Path string
	Dir  string // what its relative paths count from
	*tree.Node
}

// A Form is how one program writes its servers.
type Form struct {
	Name string

	// Detect reports whether a file has this form. No two forms detect the same file.
	Detect func(*File) bool

	// Servers takes the servers out of a file, and all keys that the form knows, and returns
	// them as upstreams. Of the problems some may be warnings.
	Servers func(*File) (*tree.Node, tree.Problems)
}

var all []Form

func register(f Form) bool {
	all = append(all, f)
	return true
}

// sections are the keys that have the servers. The first one that a file has decides.
var sections = []string{"mcpServers", "servers", "context_servers", "mcp_servers", "mcp", "registry"}

// section is the key that has the servers of a file; "" for a file of our own.
func (f *File) section() string {
	i := slices.IndexFunc(sections, f.Has)
	if i < 0 {
		return ""
	}
	return sections[i]
}

// Detect returns the form of a file; nil for one of our own.
func Detect(path string, root *tree.Node) *Form {
	f := &File{Path: path, Node: root}
	if i := slices.IndexFunc(all, func(form Form) bool { return form.Detect(f) }); i >= 0 {
		return &all[i]
	}
	return nil
}

// Convert puts the servers of a file into upstreams, with names that upstreams can have. Keys
// that restrict in other forms are refused.
func Convert(form *Form, f *File) tree.Problems {
	section := f.section()
	at := slices.IndexFunc(f.Members, func(m tree.Member) bool { return m.Key == section })
	f.Members = slices.Insert(f.Members, at, tree.Member{Key: converted})
	servers, problems := form.Servers(f)
	c := conversion{problems: problems}
	for _, m := range f.Members {
		if slices.Contains(Guarding, m.Key) {
			c.wrong(m.Value, "is not read in a file of %s", form.Name)
		}
	}
	for _, key := range Guarding {
		f.Take(key)
	}
	c.name(f.Get("upstreams"), servers)
	at = slices.IndexFunc(f.Members, func(m tree.Member) bool { return m.Key == converted })
	f.Members[at] = tree.Member{Key: "upstreams", Value: servers}
	return c.problems
}

// converted keeps the place of the servers among the keys of a file until they are converted.
const converted = "\x00"

// Restricting are keys of an entry of which a slip must not go unnoticed.
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

// Folder is the folder that an editor has open if its files are in dir: dir, or the one above
// if dir is a folder of the editor's own.
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

// A conversion is the state of bringing one file into our form.
type conversion struct {
	*File
	problems     tree.Problems
	only         [][]string     // names of servers that may be used: those that are in all lists
	never        []string       // names of servers that must not be
	denied       []denial       // tools that must not be used
	placeholder  *regexp.Regexp // what the program fills in, and nobody does here
	cwd          *tree.Node     // where servers run that do not say it; nil: where we do
	beforeServer func(name string, n *tree.Node)
}

func convert(f *File) *conversion { return &conversion{File: f, placeholder: capitals} }

func (c *conversion) wrong(at *tree.Node, format string, args ...any) {
	c.problems = append(c.problems, tree.Problem{Key: at.At, Text: fmt.Sprintf(format, args...)})
}

func (c *conversion) warn(at *tree.Node, format string, args ...any) {
	c.problems = append(c.problems, tree.Problem{Key: at.At, Text: fmt.Sprintf(format, args...), Warning: true})
}

// refuse refuses a key that is there.
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

// onlyThese takes a list of the only servers that may be used.
func (c *conversion) onlyThese(at *tree.Node) {
	if names := c.names(at); at.IsA(tree.List) {
		c.only = append(c.only, names)
	}
}

// neverThese takes a list of servers that must not be used.
func (c *conversion) neverThese(at *tree.Node) {
	c.never = append(c.never, c.names(at)...)
}

// names reads a list of names. A variable in one would have to be looked up, and might be a
// pattern.
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

// members returns the members of what must be a map.
func (c *conversion) members(at *tree.Node) []tree.Member {
	if at != nil {
		c.isMap(at)
	}
	return at.Each()
}

// items returns the items of what must be a list.
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

// access refuses a switch that keeps all servers from being used.
func (c *conversion) access(at *tree.Node) {
	if at != nil && !at.Is("all") && !at.Is("true") {
		c.wrong(at, notRead)
	}
}

// A denial is a tool that must not be used, as a program names it.
type denial struct {
	at       *tree.Node
	pattern  string                       // in which * matches anything
	prefixes func(server string) []string // what comes before the tool's own name
}

// restsOf returns what is left of a pattern when it has matched prefix, in every way in
// which it can.
func restsOf(pattern, prefix string) (rests []string) {
	flat := strings.NewReplacer("/", "\x00") // names are no paths
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

// concerns reports whether a pattern may match a tool of one of the servers.
func (c *conversion) concerns(pattern string, servers *tree.Node, prefix func(server string) string) bool {
	return slices.ContainsFunc(servers.Each(), func(m tree.Member) bool {
		return len(restsOf(pattern, prefix(m.Key))) > 0
	})
}

var dashless = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// plain is the name of a server as most programs put it before its tools.
func plain(server string) string { return dashless.ReplaceAllString(server, "_") }

// text is a new string that comes from a place in the file.
func text(s string, from *tree.Node) *tree.Node {
	return &tree.Node{Kind: tree.Text, Text: s, At: from.At}
}

// name gives every server a valid name of its own. Names that need no change come first, in the
// order of the file.
func (c *conversion) name(own, servers *tree.Node) {
	taken := make(map[string]bool)
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
	strange     = regexp.MustCompile(`[^A-Za-z0-9_-]+`)
	underscores = regexp.MustCompile(`__+`)
)

const maxName = 32

// fit makes a name of any text: what is not allowed becomes a dash.
func fit(s string) string {
	s = underscores.ReplaceAllString(strange.ReplaceAllString(s, "-"), "_")
	s = strings.Trim(cut(strings.Trim(s, "-_"), maxName), "-_")
	if s == "" {
		return "server"
	}
	return s
}

// free numbers a name until it is not taken.
func free(name string, taken map[string]bool) string {
	unique := name
	for n := 2; taken[unique]; n++ {
		suffix := fmt.Sprintf("-%d", n)
		unique = cut(name, maxName-len(suffix)) + suffix
	}
	return unique
}

func cut(s string, n int) string { return s[:min(n, len(s))] }
