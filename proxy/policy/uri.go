package policy

import (
	"encoding/hex"
	"strings"
)

// A server may take one URI for another: it decodes %2e, follows "..", folds the case of a
// host. So a rule that denies is held against all the ways in which a URI can be written,
// and one of them is enough. A rule that allows has to allow each way that a server could
// take it: file:///public/../secret is not below file:///public.

// readings returns how a server may read a URI: decoded, and without "." and "..". For a URL
// there is something between two slashes, and for a file system there is not: /a//../b is
// /a/b or /b. There are none if there is nothing to do.
func readings(uri string) []string {
	if !strings.ContainsAny(uri, `%\`) && !strings.Contains(uri, "/.") {
		return nil
	}
	scheme, rest, query := parts(uri)
	rest, query = strings.ReplaceAll(decoded(rest), `\`, "/"), decoded(query)
	all := []string{scheme + withoutDots(rest) + query}
	if less := squeezed(rest); less != rest {
		all = append(all, scheme+withoutDots(less)+query)
	}
	return all
}

// folded returns a URI with its scheme and host in lower case (RFC 3986 6.2.2.1) and without
// slashes that do nothing.
func folded(uri string) string {
	scheme, rest, query := parts(uri)
	host, path, below := strings.Cut(squeezed(rest), "/")
	scheme, host = strings.ToLower(scheme), strings.ToLower(host)
	if scheme == "file://" && host == "localhost" { // RFC 8089 2
		host = ""
	}
	if below {
		path = "/" + path
	}
	return scheme + host + path + query
}

// foldedGlob returns a glob with what it surely matches folded: who writes rules may write a
// host as they like, too.
func foldedGlob(glob string) string {
	begin := literal(glob)
	if !strings.Contains(begin, "://") {
		return glob
	}
	return folded(begin) + glob[len(begin):]
}

// parts returns what is before the host of a URI, what follows, and its query.
func parts(uri string) (scheme, rest, query string) {
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		uri, query = uri[:i], uri[i:]
	}
	if before, after, ok := strings.Cut(uri, "://"); ok {
		return before + "://", after, query
	}
	if before, after, ok := strings.Cut(uri, ":"); ok {
		return before + ":", after, query
	}
	return "", uri, query
}

// decoded decodes %XX until there is none left, a few times at most: each hop may do it.
// What is no %XX stays, as with servers that forgive.
func decoded(s string) string {
	for range 4 {
		next := decodedOnce(s)
		if next == s {
			break
		}
		s = next
	}
	return s
}

func decodedOnce(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if b, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				out = append(out, b[0])
				i += 2
				continue
			}
		}
		out = append(out, s[i])
	}
	return string(out)
}

// withoutDots follows "." and "..". The first element is the host, which stays.
func withoutDots(path string) string {
	if !strings.Contains(path, "/.") {
		return path
	}
	var kept []string
	for i, e := range strings.Split(path, "/") {
		switch {
		case i == 0:
			kept = append(kept, e)
		case e == ".":
		case e == "..":
			kept = kept[:max(len(kept)-1, 1)]
		default:
			kept = append(kept, e)
		}
	}
	if strings.HasSuffix(path, "/.") || strings.HasSuffix(path, "/..") {
		kept = append(kept, "")
	}
	return strings.Join(kept, "/")
}

// squeezed makes one slash of several.
func squeezed(path string) string {
	if !strings.Contains(path, "//") {
		return path
	}
	var out []byte
	for i := range len(path) {
		if path[i] != '/' || i == 0 || path[i-1] != '/' {
			out = append(out, path[i])
		}
	}
	return string(out)
}
