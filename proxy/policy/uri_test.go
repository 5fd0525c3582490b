package policy

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/url"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	whatwg "github.com/nlnwa/whatwg-url/url"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

var update = flag.Bool("update", false, "write what parsers make of the URIs in interop/uris.json: needs node and python3")

// The rules of the table: one allows what is public, the other denies what is not. Public
// and secret are the beginnings of the places that they are about.
var (
	allowed = []string{
		"docs://public/*", "NOTES:public/*", "file:/pub/*", "https://H/x/*", "https://3scale/*", "https://xn--bcher-kva.example/*", "https://192.0.2.1/*",
		`https://\[2001:db8::1]/*`, "https://h:8443/x/*", "ui://*", "urn:*", "data:*", "git://*", "db://t*", "mem:*",
	}
	public = []string{
		"docs://public/", "notes:public/", "file:///pub/", "https://h/x/", "https://3scale/", "https://xn--bcher-kva.example/", "https://192.0.2.1/",
		"https://[2001:db8::1]/", "https://h:8443/x/", "ui://", "urn:", "data:", "git://", "db://t", "mem:",
	}
	denied = []string{"docs://private/*", "notes:private/*", "file:///secret/*", "file:///c:/secret/*", "https://h/secret/*", "http://127.0.0.1/*", `http://\[::1]/*`}
	secret = []string{"docs://private/", "notes:private/", "file:///secret/", "file:///c:/secret/", "https://h/secret/", "http://127.0.0.1/", "http://[::1]/"}
)

func grants(t testing.TB) (allows, denies *Grant) {
	allows = policies(t, Rule{Who: Who{Any: true}, Resources: Globs{Allow: allowed}}).For(identity.Nobody)
	denies = policies(t, Rule{Who: Who{Any: true}, Resources: Globs{Deny: denied}}).For(identity.Nobody)
	return allows, denies
}

// isIn reports whether a place is below one of others, also if it is decoded once more. Servers and file systems may
// ignore case.
func isIn(place string, roots []string) bool {
	for range 2 {
		scheme, rest := cutScheme(strings.ToLower(place))
		if scheme == "file:" {
			rest = strings.Replace(rest, "//localhost/", "///", 1)
		}
		host, below, slashed := strings.Cut(strings.TrimPrefix(rest, "//"), "/")
		switch {
		case scheme == "file:" && !strings.HasPrefix(rest, "/"): // where a server begins is its own matter
			rest = "///" + rest + "/"
		case strings.HasPrefix(rest, "//") && slashed:
			rest = "//" + host + path.Clean("/"+below) + "/"
		case !strings.HasPrefix(rest, "//"):
			rest = path.Clean(rest) + "/"
		default:
			rest += "/"
		}
		if !beginsWith(scheme+rest, roots) {
			return false
		}
		place = decoded(place, "")
	}
	return true
}

func beginsWith(s string, roots []string) bool {
	for _, root := range roots {
		if strings.HasPrefix(s, root) {
			return true
		}
	}
	return false
}

// goPlace is what interop/uris.mjs does, by Go's parser.
func goPlace(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		return "error"
	}
	if u.Opaque != "" {
		return u.Scheme + ":" + cleaned(decoded(u.Opaque, ""))
	}
	at := u.Host
	at += cleaned(u.Path)
	switch {
	case u.Host != "" || strings.HasPrefix(u.Path, "/"):
		at = "//" + at
	case u.Scheme == "":
		return at
	}
	return u.Scheme + ":" + at
}

// cleaned follows the dots of a path, as posix.normalize does.
func cleaned(p string) string {
	if p == "" {
		return ""
	}
	c := path.Clean(p)
	if strings.HasSuffix(p, "/") && c != "/" {
		c += "/"
	}
	return c
}

// whatwgPlace likewise by the parser of browsers, as Node has it.
func whatwgPlace(uri string) string {
	u, err := whatwg.Parse(uri)
	if err != nil {
		return "error"
	}
	p := cleaned(decoded(u.Pathname(), ""))
	slashes := ""
	if strings.HasPrefix(u.Href(false), u.Protocol()+"//") || strings.HasPrefix(p, "/") {
		slashes = "//"
	}
	return u.Protocol() + slashes + u.Host() + p
}

// A row of interop/uris.json.
type row struct {
	URI    string `json:"uri"`
	Is     string `json:"is"`
	Go     string `json:"go"`
	Node   string `json:"node"`
	Python string `json:"python"`
}

const tableOfURIs = "../../interop/uris.json"

// Of a few hundred URIs each hostile one is refused by a rule that allows and by one that
// denies, and each legitimate one passes both, and is where the rule says for three parsers.
func TestTableOfURIs(t *testing.T) {
	rows := readTable(t)
	allows, denies := grants(t)
	counts := make(map[string]int)
	for _, r := range rows {
		if goPlace(r.URI) != r.Go {
			t.Errorf("%q: %q, and the table says %q", r.URI, goPlace(r.URI), r.Go)
		}
		counts[r.Is]++
		legitimate := r.Is == "legitimate"
		if allows.May(Resource, r.URI) != legitimate {
			t.Errorf("%q is %s: allowed %v", r.URI, r.Is, !legitimate)
		}
		if denies.May(Resource, r.URI) != legitimate {
			t.Errorf("%q is %s: denied %v", r.URI, r.Is, legitimate)
		}
		for parser, place := range map[string]string{"go": r.Go, "node": r.Node, "python": r.Python} {
			if legitimate && place != "error" && (!isIn(place, public) || isIn(place, secret)) {
				t.Errorf("%q is legitimate: %s makes %q of it", r.URI, parser, place)
			}
		}
	}
	if counts["legitimate"] < 100 || counts["hostile"] < 100 {
		t.Error(counts)
	}
}

func readTable(t *testing.T) (rows []row) {
	t.Helper()
	text, err := os.ReadFile(tableOfURIs)
	if err == nil {
		err = json.Unmarshal(text, &rows)
	}
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		writeTable(t, rows)
	}
	return rows
}

// writeTable writes the table with the results of the parsers.
func writeTable(t *testing.T, rows []row) {
	t.Helper()
	var uris []string
	for _, r := range rows {
		uris = append(uris, r.URI)
	}
	node, python := ask(t, uris, "node", "../../interop/uris.mjs"), ask(t, uris, "python3", "../../interop/python/uris.py")
	var out bytes.Buffer
	for i := range rows {
		r := &rows[i]
		r.Go, r.Node, r.Python = goPlace(r.URI), node[i], python[i]
		line, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0] + string(line))
	}
	out.WriteString("\n]\n")
	if err := os.WriteFile(tableOfURIs, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, uris []string, command ...string) (places []string) {
	t.Helper()
	in, _ := json.Marshal(uris)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin = bytes.NewReader(in)
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &places)
	}
	if err != nil || len(places) != len(uris) {
		t.Fatal(command, err)
	}
	return places
}

// The notation of rules does not matter.
func TestGlobsOfURIs(t *testing.T) {
	for _, c := range []struct {
		globs Globs
		may   map[string]bool
	}{
		{Globs{Deny: []string{"file:///secret*", "https://h/x/*", "db://h/t?q=a b"}}, map[string]bool{
			"file:///secret": false, "file:///%zz/../%73ecret": false, "https://h//x/y": false, "https://h/y?to=/x/y": true, "https://h/xy": true, "db://h/t?q=a%20b": false, "db://h/t?q=c": true,
			"file:///Secret": false, "file:///a/secret": true, "urn:secret": true, "": true, "%": true, "://": true,
		}},
		{Globs{Deny: []string{"HTTPS://H/X*", "file://localhost//secret/.*", "https://*A*", "FILE:/other/*", "docs://a b/*", "docs://%70/*", "https://g:443/*", "docs:///root/*", "docs://dir/"}}, map[string]bool{
			"https://h/Xy": false, "https://h//X": false, "file:///secret/.a": false, "file:///secret/a": true, "https://g/A": false, "file:other/a": false, "docs://a%20b/c": false, "docs://p/c": false,
			"https://g/x": false, "docs://root/x": false, "docs:/root/x": false, "docs://any/root/x": false, "docs://dir": false, "docs://dir/x": true,
		}},
		{Globs{Allow: []string{"file:/pub/*", "x://a%20b/*", "ui://*", "HTTP://*.Example.com/A*", "m://*README.md", "x://h/[^s]*", "x://exact?q", "x://%41", "x://star%2a/*"}}, map[string]bool{
			"file:///pub/a": true, "file:pub/a": true, "file:///pub/{path}": true, "x://a b/c": true, "x://a%20b/c": true, "UI://App": true, "http://a.example.COM/A": true, "http://a.example.com/a": false,
			"m://h/README.md": true, "x://h/t": true, "x://h/s": false, "x://h/%73": false, "x://h/%2573": false, "x://exact?q": false, "x://exact": false, "x://%41": true, "x://A": false,
			"x://star%2a/c": true, "x://stars/c": false, "file:///pub/..": false, "file://host/pub/a": false,
		}},
		{Globs{Allow: []string{"https://h/*.txt"}}, map[string]bool{
			"https://h/a.txt": true, "https://h/a;v.txt": false, "https://h/a.txt;v": false, "https://h/a.txt?v": true, "https://h/a?.txt": false, "https://h/a#.txt": false, "https://h/a%23.txt": true,
		}},
	} {
		g := policies(t, Rule{Who: Who{Any: true}, Resources: c.globs}).For(identity.Nobody)
		for uri, want := range c.may {
			if g.May(Resource, uri) != want {
				t.Errorf("%+v: %q is %v", c.globs, uri, !want)
			}
		}
	}
}

// A rule without globs of URIs does not parse them. Globs of scopes count too.
func TestOtherRulesLetURIsPass(t *testing.T) {
	const hostile = "docs://public/../private/x"
	for _, c := range []struct {
		rule Rule
		may  bool
	}{
		{Rule{}, true},
		{Rule{Tools: Globs{Deny: []string{"*"}}}, true},
		{Rule{Scopes: map[string][]string{"files__*": {"s"}}}, true},
		{Rule{Tools: Globs{Allow: []string{"*"}}}, false}, // allows nothing else
		{Rule{Scopes: map[string][]string{"docs://private/*": {"s"}}}, false},
		{Rule{Scopes: map[string][]string{"*": {"s"}}}, false},
		{Rule{Resources: Globs{Deny: []string{"x:*"}}}, false},
		{Rule{Resources: Globs{Allow: []string{"*"}}}, false},
	} {
		c.rule.Who.Any = true
		if g := policies(t, c.rule).For(identity.Nobody); g.May(Resource, hostile) != c.may || g.Decide(Template, hostile).Allowed != c.may {
			t.Errorf("%+v: not %v", c.rule, c.may)
		}
	}
}

// A glob of web addresses allows no other hosts, and no path that leads out of its own.
func TestHostsOfGlobs(t *testing.T) {
	g := policies(t, Rule{
		Who: Who{Any: true}, Resources: Globs{Allow: []string{"https://*.example.com/*", "https://h/x/*", "docs://*/a"}},
		Deliver: []string{"https://hooks.example.com/t1/*", "https://*.example.org/*", "http*://hook?/*"},
	}).For(identity.Nobody)
	for uri, want := range map[string]bool{
		"https://a.example.com/x": true, "https://A.EXAMPLE.com/x/y": true, "https://u@a.example.com/x": true, "https://h/x/y": true, "docs://x/y/a": true,
		"https://evil.com/.example.com/x": false, "https://evil.com/a.example.com/": false, "https://u@evil.com/a.example.com/": false, "https://evil.com?.example.com/x": false,
		"https://a.example.com@evil.com/x": false, "https://a.example.com": false,
	} {
		if g.May(Resource, uri) != want {
			t.Errorf("%s: %v", uri, !want)
		}
	}
	for url, want := range map[string]bool{
		"https://hooks.example.com/t1/x": true, "https://HOOKS.example.com/t1/x?y=z": true, "https://a.example.org/": true, "http://hook1/x": true,
		"https://hooks.example.com/t1/../t2/x": false, "https://hooks.example.com/t1/%2e%2e/t2/x": false, "https://hooks.example.com/t1/..;/x": false,
		"https://evil.com/.example.org/x": false, "https://evil.com#.example.org/": false, "https://u@evil.com/a.example.org/": false, "https://hook1@evil.com/x": false, "": false,
	} {
		if g.MayDeliver(url) != want {
			t.Errorf("deliver to %s: %v", url, !want)
		}
	}
}

// A template is hidden if all its expansions are, as far as its text tells.
func TestTemplates(t *testing.T) {
	g := policies(t, Rule{Who: Who{Any: true}, Resources: Globs{Allow: []string{"docs://public/*", "db://t", "file:///*"}, Deny: []string{"file:///secret/*", "db://t/x"}}}).For(identity.Nobody)
	for template, want := range map[string]bool{
		"docs://public/{a}": true, "docs://public{/a*}": true, "docs://public/a{.ext}": true, "docs://public/{+a}": true, "docs://public/{a}{?q}": true, "docs://public/{a}{#f}": true,
		"db://t{?q}": true, "db://t{?q,r}{&s}": true, "db://t{#f}": true, "file:///{+path}": true, "file:{+path}": true,
		"docs://{a}": false, "docs://private/{a}": false, "docs://public{a}": false, "docs://public/../private/{a}": false, "docs://public/..{;a}": false, "docs://public/%2e%2e{/a}": false, "docs://public/a{/../b}": false,
		"db://t{a}": false, "db://t{/a}": false, "db://t/x{?q}": false, "file:///secret/{a}": false, "file:///secret{/a}": false, "file:secret/{a}": false, "FILE:///%73ecret/{a}": false, "file:///Secret{/a*}{?q}": false,
	} {
		if g.May(Template, template) != want {
			t.Errorf("%s: %v", template, !want)
		}
	}
}

// Every reading of an allowed URI is allowed.
func FuzzURI(f *testing.F) {
	for _, uri := range []string{"docs://public/a", "file:pub/%2e%2e/b?c#d", "https://u@H:443/x/../y;z", "http://0x7f.1", "https:\\h\\x\\%2e", "file:///C|/a", "file:pub/", `%`} {
		f.Add(uri)
	}
	allows, denies := grants(f)
	f.Fuzz(func(t *testing.T, uri string) {
		if len(uri) > 8<<10 {
			return // unknown, before anybody asks
		}
		for _, parse := range []func(string) string{goPlace, whatwgPlace} {
			place := parse(uri)
			if place == "error" {
				continue
			}
			if allows.May(Resource, uri) && (!isIn(place, public) || !allows.May(Resource, escaped(place))) {
				t.Errorf("%q is allowed, and leads to %q", uri, place)
			}
			if denies.May(Resource, uri) && (isIn(place, secret) || !denies.May(Resource, escaped(place))) {
				t.Errorf("%q is not denied, and leads to %q", uri, place)
			}
		}
		for _, g := range []*Grant{allows, denies} {
			if g.May(Template, uri) && !g.May(Resource, operators.Replace(uri)) {
				t.Errorf("%q is listed, and not readable", uri)
			}
		}
	})
}

// escaped makes a URI of a place.
func escaped(place string) string {
	return strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(place)
}

// Some libraries unwrap a URI before they read it.
func TestWrappedURIs(t *testing.T) {
	p := policies(t, Rule{Who: Who{Any: true}, Resources: Globs{Deny: []string{"file:///secret/*"}}})
	for _, uri := range []string{"<file:///secret/x>", "URL:file:///secret/x", "url:file:///secret/x", "%3Cfile:///secret/x", "<URL:file:///secret/x>"} {
		if p.For(identity.Nobody).May(Resource, uri) {
			t.Error(uri, "is allowed")
		}
	}
}
