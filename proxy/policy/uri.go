package policy

import (
	"encoding/hex"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/mcp-proxy/mcp-proxy/internal/glob"
)

// Servers may read a URI in different ways: they decode %2e, follow "..", fold the case of a host, and their parsers
// strip different characters. So a URI has several readings. A glob denies if it matches one of them. It allows if it
// matches all readings that name a place. A URI whose readings lead to different places is refused before any rule is
// looked at.

// decodings is the number of ways to decode a URI: as it is, and percent-decoded once and twice.
const decodings = 3

// A reading is a URI in all ways in which a server may read it, or a glob in all ways in which its author may mean it.
type reading struct {
	text   string
	places [2 * decodings]string // up to ? or #: by decoding, with and without ;parameters
	any    []string              // also whole, as other parsers read it, and in lower case
}

// readURI returns the readings of a URI. ok is false if servers may disagree on where the URI leads.
func readURI(uri string) (r reading, ok bool) {
	odd := func(c rune) bool { return c == '\\' || unicode.IsControl(c) }
	if uri != strings.TrimSpace(uri) || strings.ContainsFunc(uri, odd) {
		return r, false // parsers strip some of these characters
	}
	r.text = uri
	place, rest := cutQuery(uri)
	for i := range decodings {
		if isUnclear(place) || leadsUp(rest) {
			return r, false
		}
		named := canonical(place)
		r.places[2*i], r.places[2*i+1] = named, withoutParameters(named)
		r.addAll(named, rest)
		if before, _ := cutQuery(named); before != named { // a server may decode first
			r.addAll(before, "")
		}
		next, nextRest := decoded(place, ""), decoded(rest, "")
		if next == place && nextRest == rest {
			for j := 2*i + 2; j < len(r.places); j++ {
				r.places[j] = r.places[j-2]
			}
			break
		}
		place, rest = next, nextRest
	}
	return r, true
}

// readTemplate is readURI for a URI template. The expansion of an expression begins with its operator: x{/y} is below
// x, and x{?y} is x with a query.
func readTemplate(template string) (r reading, ok bool) {
	if r, ok = readURI(operators.Replace(template)); !ok {
		return r, false
	}
	plain, ok := readURI(template)
	r.any = append(r.any, plain.any...)
	return r, ok
}

var operators = strings.NewReplacer("{?", "?{", "{&", "?{", "{#", "#{", "{/", "/{", "{;", ";{", "{.", ".{")

// readGlob returns the readings of a glob of URIs.
func readGlob(text string) *reading {
	r := &reading{text: text}
	for i := range decodings {
		g := canonical(text)
		r.places[2*i], r.places[2*i+1] = g, withoutParameters(g)
		scheme, rest := cutScheme(g)
		squeezed := squeeze(rest)
		r.add(g)
		r.add(strings.TrimRight(g, "/"))
		r.add(scheme + strings.TrimLeft(squeezed, "/"))
		if authority, found := strings.CutPrefix(rest, "//"); found {
			r.add(scheme + "//" + squeeze(authority))
		}
		text = decoded(text, `*?[\`)
	}
	return r
}

// denies reports whether a glob matches any reading of a URI.
func (g *reading) denies(uri *reading) bool {
	return slices.ContainsFunc(uri.any, func(as string) bool {
		_, ok := glob.First(g.any, as)
		return ok
	})
}

// matches reports whether the glob, of a rule's scopes, matches something; uri is that of a resource.
func (g *reading) matches(k Kind, name string, uri *reading) bool {
	if k.IsResource() {
		return g.denies(uri)
	}
	return fits(g.text, name)
}

// allows reports whether a glob matches every reading of a URI.
func (g *reading) allows(uri *reading) bool {
	for i, as := range uri.places {
		if i > 0 && as == uri.places[0] && g.places[i] == g.places[0] {
			continue
		}
		if !matchesPlace(g.places[i], as) {
			return false
		}
	}
	return true
}

// matchesPlace reports whether a glob matches a place. The host in a glob for a web server matches only hosts, so that
// https://*.example.com/* does not match https://evil.example/.example.com/x.
func matchesPlace(pattern, as string) bool {
	scheme, rest := cutScheme(as)
	if _, web := ports[scheme]; web {
		wantScheme, wantRest := cutScheme(pattern)
		wantHost, wantPath, ok := cutHost(wantRest)
		if ok && strings.ContainsAny(wantScheme+wantHost, `*?[`) {
			host, path, ok := cutHost(rest)
			host = host[strings.LastIndexByte(host, '@')+1:]
			return ok && fits(wantScheme, scheme) && fits(wantHost, host) && fits(wantPath, path)
		}
	}
	return fits(pattern, as)
}

func fits(pattern, text string) bool {
	_, ok := glob.First([]string{pattern}, text)
	return ok
}

// cutHost splits the text after a scheme before the path; false if it has no host or no path.
func cutHost(rest string) (host, path string, ok bool) {
	after, ok := strings.CutPrefix(rest, "//")
	i := strings.IndexByte(after, '/')
	if !ok || i < 0 {
		return "", "", false
	}
	return after[:i], after[i:], true
}

// add adds a reading, also for servers that ignore case.
func (r *reading) add(as string) {
	folded := strings.ReplaceAll(strings.ToLower(strings.ToUpper(as)), "|", ":") // file:///c|/ is file:///c:/
	for _, as := range []string{as, folded} {
		if !slices.Contains(r.any, as) {
			r.any = append(r.any, as)
		}
	}
}

// addAll adds what parsers make of a canonical URI, without and with its query.
func (r *reading) addAll(named, query string) {
	r.addParsed(named)
	if bare := withoutParameters(named); bare != named {
		r.addParsed(bare)
	}
	if query != "" {
		r.addParsed(named + strings.ReplaceAll(query, " ", "%20"))
	}
}

// addParsed adds readings with the first element of a URI as a host, also without user and port, and as the beginning
// of a path, and the path without the host, which many servers ignore.
func (r *reading) addParsed(named string) {
	r.add(named)
	r.add(strings.TrimRight(named, "/"))
	scheme, rest := cutScheme(named)
	r.add(scheme + strings.TrimLeft(squeeze(rest), "/"))
	if scheme == "" {
		r.add("file:///" + strings.TrimLeft(squeeze(rest), "/"))
		return
	}
	host, path, port := authority(scheme, rest)
	if host == "" && path == "" {
		return
	}
	bare := bareHost(host)
	dotless := strings.TrimSuffix(bare, ".")
	for _, h := range []string{host, bare, dotless, dotless + port, ""} {
		r.add(scheme + "//" + h + path)
		r.add(scheme + "//" + h + strings.TrimRight(path, "/"))
	}
}

// ports are the default ports, which parsers leave out. With these schemes, parsers read a host after any number of
// slashes (WHATWG URL, "special").
var ports = map[string]string{"http:": ":80", "ws:": ":80", "https:": ":443", "wss:": ":443", "ftp:": ":21"}

// authority splits the text after a scheme into host and path, and returns the default port of the scheme. Without a
// host both are empty.
func authority(scheme, rest string) (host, path, port string) {
	port, special := ports[scheme]
	after, found := strings.CutPrefix(rest, "//")
	switch {
	case special:
		after = strings.TrimLeft(rest, "/")
	case !found:
		return "", "", ""
	}
	host, path, _ = strings.Cut(after, "/")
	return host, squeeze("/" + path), port
}

// bareHost returns a host without user and port.
func bareHost(host string) string {
	host = host[strings.LastIndexByte(host, '@')+1:]
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.Trim(host[i+1:], "0123456789") == "" {
		host = host[:i]
	}
	return host
}

// isUnclear reports whether servers may read a URI, up to ? or #, as different ones: it has characters that parsers
// strip or take for a slash, elements that lead upwards, or a host that they write in another way. Elements may begin
// after the scheme or after the host, as the server decides.
func isUnclear(place string) bool {
	if place != strings.TrimSpace(place) || isDots(place) || isWrapped(place) {
		return true
	}
	colon := strings.IndexByte(place, ':')
	for i, c := range place {
		if c == '\\' || unicode.IsControl(c) || (c == '/' || i == colon) && isDots(place[i+1:]) {
			return true
		}
	}
	scheme, rest := cutScheme(place)
	scheme = strings.ToLower(scheme)
	host, _, port := authority(scheme, rest)
	bare := bareHost(host)
	return isDots(bare) || port != "" && isOddHost(strings.TrimSuffix(bare, "."))
}

// leadsUp reports whether the text from ? or # on has elements "." or "..". Servers that take it for a part of a path
// resolve them: file:///public/x?/../../etc/passwd.
func leadsUp(rest string) bool {
	rest = strings.ReplaceAll(rest, `\`, "/")
	for i, c := range rest {
		if c == '/' && isDots(rest[i+1:]) {
			return true
		}
	}
	return false
}

// isWrapped reports whether a URI is quoted, <file:///x> or URL:file:///x, which urllib and java.net.URL unwrap.
func isWrapped(place string) bool {
	const word = "url:"
	return strings.HasPrefix(place, "<") || len(place) >= len(word) && strings.EqualFold(place[:len(word)], word)
}

// isDots reports whether a text begins with the element "." or "..", perhaps with parameters.
func isDots(s string) bool {
	n := 0
	for n < min(len(s), 3) && s[n] == '.' {
		n++
	}
	return (n == 1 || n == 2) && (n == len(s) || strings.IndexByte("/;?#:", s[n]) >= 0)
}

// isOddHost reports whether URL parsers may rewrite a host: letters beyond ASCII can stand for others, and numbers for
// addresses.
func isOddHost(host string) bool {
	if strings.ContainsFunc(host, func(c rune) bool { return c > unicode.MaxASCII }) {
		return true
	}
	address, bracketed := strings.CutPrefix(host, "[")
	if !bracketed && !number.MatchString(host[strings.LastIndexByte(host, '.')+1:]) {
		return false
	}
	address = strings.TrimSuffix(address, "]")
	parsed, err := netip.ParseAddr(address)
	return err != nil || parsed.String() != strings.ToLower(address) || parsed.Is4In6()
}

var number = regexp.MustCompile(`^(0[xX][0-9a-fA-F]*|[0-9]+)$`)

// canonical returns a URI or a glob with scheme and host in lower case (RFC 3986, 6.2.2.1), spaces as %20, and one
// form of file URIs (RFC 8089). In a glob without a slash, * may stand for the path.
func canonical(s string) string {
	s = strings.ReplaceAll(s, " ", "%20")
	scheme, rest := cutScheme(s)
	scheme = strings.ToLower(scheme)
	after, found := strings.CutPrefix(rest, "//")
	switch {
	case found:
		end := strings.IndexByte(after, '/')
		if end < 0 {
			end = strings.IndexByte(after, '*')
		}
		if end < 0 {
			end = len(after)
		}
		host := strings.ToLower(after[:end])
		if scheme == "file:" && host == "localhost" && end < len(after) && after[end] == '/' {
			host = ""
		}
		rest = "//" + host + after[end:]
	case scheme == "file:" && !strings.ContainsAny(rest[:min(len(rest), 1)], `*?[\`):
		rest = "///" + strings.TrimPrefix(rest, "/")
	}
	return scheme + rest
}

// cutScheme splits a URI after the colon of its scheme, which may be "".
func cutScheme(s string) (scheme, rest string) {
	if i := strings.IndexAny(s, ":/"); i >= 0 && s[i] == ':' {
		return s[:i+1], s[i+1:]
	}
	return "", s
}

// cutQuery splits a URI before ? or #.
func cutQuery(uri string) (before, rest string) {
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		return uri[:i], uri[i:]
	}
	return uri, ""
}

// decoded decodes each %XX once. It keeps an invalid %, as lenient servers do, and escapes the special characters of a
// glob.
func decoded(s, special string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		var b [1]byte
		if s[i] != '%' || i+2 >= len(s) {
			out = append(out, s[i])
			continue
		}
		if _, err := hex.Decode(b[:], []byte(s[i+1:i+3])); err != nil {
			out = append(out, s[i])
			continue
		}
		if strings.IndexByte(special, b[0]) >= 0 {
			out = append(out, '\\')
		}
		out = append(out, b[0])
		i += 2
	}
	return string(out)
}

// withoutParameters drops the text after ; in each element, as urllib and others do.
func withoutParameters(s string) string {
	if !strings.Contains(s, ";") {
		return s
	}
	out, kept := make([]byte, 0, len(s)), true
	for i := range len(s) {
		if kept = s[i] == '/' || kept && s[i] != ';'; kept {
			out = append(out, s[i])
		}
	}
	return string(out)
}

// squeeze replaces runs of slashes by one.
func squeeze(path string) string {
	if !strings.Contains(path, "//") {
		return path
	}
	out := make([]byte, 0, len(path))
	for i := range len(path) {
		if path[i] != '/' || i == 0 || path[i-1] != '/' {
			out = append(out, path[i])
		}
	}
	return string(out)
}
