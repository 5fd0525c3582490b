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

// A server may take one URI for another: it decodes %2e, follows "..", folds the case of a
// host, and parsers differ in what they strip. So a URI has readings. A rule that denies
// needs to match one of them, a rule that allows all of those that name a place; and a URI
// that leads to another place in another reading is refused before any rule is asked.

// decodings is how often a URI is read: as it is, and percent-decoded once and twice.
const decodings = 3

// A reading is a URI in all the ways in which a server may read it, or a glob in those in
// which its author may mean it.
type reading struct {
	text   string
	places [2 * decodings]string // up to ? or #, by decoding, with and without ;parameters
	any    []string              // also as a whole, by other parsers, in lower case
}

// readURI returns the readings of a URI. It is false for one that is refused: servers do not
// agree on where it leads.
func readURI(uri string) (r reading, ok bool) {
	if uri != strings.TrimSpace(uri) || strings.ContainsFunc(uri, func(c rune) bool { return c == '\\' || unicode.IsControl(c) }) {
		return r, false // parsers strip some of them, wherever they are
	}
	r.text = uri
	place, rest := cutQuery(uri)
	for i := range decodings {
		if isUnclear(place) {
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

// readTemplate is readURI for a URI template. What its expressions expand to begins with
// their operators: x{/y} is below x, and x{?y} is x with a query.
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

// denies reports whether a glob matches a URI in any reading.
func (g *reading) denies(uri *reading) bool {
	return slices.ContainsFunc(uri.any, func(as string) bool {
		_, ok := glob.First(g.any, as)
		return ok
	})
}

// allows reports whether a glob matches a URI in each reading of it, as its author may have
// written that.
func (g *reading) allows(uri *reading) bool {
	for i, as := range uri.places {
		if i > 0 && as == uri.places[0] && g.places[i] == g.places[0] {
			continue
		}
		if _, ok := glob.First(g.places[i:i+1], as); !ok {
			return false
		}
	}
	return true
}

// add adds a reading, and the same for servers to which case is nothing.
func (r *reading) add(as string) {
	folded := strings.ReplaceAll(strings.ToLower(strings.ToUpper(as)), "|", ":") // file:///c|/ is file:///c:/
	for _, as := range []string{as, folded} {
		if !slices.Contains(r.any, as) {
			r.any = append(r.any, as)
		}
	}
}

// addAll adds what parsers make of a URI in its canonical form, without and with its query.
func (r *reading) addAll(named, query string) {
	r.addParsed(named)
	if bare := withoutParameters(named); bare != named {
		r.addParsed(bare)
	}
	if query != "" {
		r.addParsed(named + strings.ReplaceAll(query, " ", "%20"))
	}
}

// addParsed adds the first element of a URI as a host, also without its user and port, and
// as the beginning of a path; and the path without the host, which many servers ignore.
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
	for _, h := range []string{host, bareHost(host), bareHost(host) + port, ""} {
		r.add(scheme + "//" + h + path)
		r.add(scheme + "//" + h + strings.TrimRight(path, "/"))
	}
}

// ports are those that parsers leave out. Of these schemes they read a host whatever the
// number of slashes is (WHATWG URL, "special").
var ports = map[string]string{"http:": ":80", "ws:": ":80", "https:": ":443", "wss:": ":443", "ftp:": ":21"}

// authority splits what follows a scheme into host and path, and returns the port that the
// scheme has. A URI without a host has neither.
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

// bareHost returns a host without user, port and the dot that ends it.
func bareHost(host string) string {
	host = host[strings.LastIndexByte(host, '@')+1:]
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.Trim(host[i+1:], "0123456789") == "" {
		host = host[:i]
	}
	return strings.TrimSuffix(host, ".")
}

// isUnclear reports whether servers take a URI, up to ? or #, for different ones: there are
// characters that parsers strip or take for a slash, elements that lead upwards, or a host
// that they write in another way. Where elements begin a server decides: behind the scheme,
// or behind the host.
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
	return port != "" && isOddHost(bareHost(host))
}

// isWrapped reports whether a text begins as a URI that is quoted, <file:///x> or URL:file:///x,
// which urllib and java.net.URL unwrap.
func isWrapped(place string) bool {
	const word = "url:"
	return strings.HasPrefix(place, "<") || len(place) >= len(word) && strings.EqualFold(place[:len(word)], word)
}

// isDots reports whether a text begins with an element that is "." or "..", perhaps with
// parameters.
func isDots(s string) bool {
	n := 0
	for n < min(len(s), 3) && s[n] == '.' {
		n++
	}
	return (n == 1 || n == 2) && (n == len(s) || strings.IndexByte("/;?#:", s[n]) >= 0)
}

// isOddHost reports whether parsers of URLs write a host in another way: letters beyond ASCII
// can stand for others, and numbers for addresses.
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

// canonical returns a URI or a glob with its scheme and host in lower case (RFC 3986 6.2.2.1),
// a space as %20, and one way to write a file (RFC 8089). In a glob without a slash a * may
// stand for the path.
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

// cutScheme returns the scheme of a URI with its colon, "" if it has none, and what follows.
func cutScheme(s string) (scheme, rest string) {
	if i := strings.IndexAny(s, ":/"); i >= 0 && s[i] == ':' {
		return s[:i+1], s[i+1:]
	}
	return "", s
}

// cutQuery returns what is before ? and #, and what is behind.
func cutQuery(uri string) (before, rest string) {
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		return uri[:i], uri[i:]
	}
	return uri, ""
}

// decoded decodes each %XX once. What is no %XX stays, as with servers that forgive. What is
// special in a glob is escaped there.
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

// withoutParameters drops what is behind a ; in each element: urllib and others do.
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

// squeeze makes one slash of several.
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
