package oauth

import (
	"net/http"
	"strings"
)

// A challenge is what a server asks for with a 401 or 403 (RFC 6750, 3; RFC 9728, 5.1). The zero value asks for
// nothing in particular.
type challenge struct {
	Metadata string   // URL of the metadata of the protected resource; "" if the server did not say
	Scopes   []string // that the request needs; nil if the server did not say
	Code     string   // "invalid_token", "insufficient_scope"; "" for a request without a token
}

// challengeOf reads the Bearer challenges in a response's header. It reads each value up to what it cannot parse.
// Of parameters that come twice the first counts.
func challengeOf(header http.Header) (c challenge) {
	for _, value := range header.Values("Www-Authenticate") {
		authParams(value, func(scheme, name, value string) {
			if !strings.EqualFold(scheme, "Bearer") {
				return
			}
			switch strings.ToLower(name) {
			case "resource_metadata":
				setOnce(&c.Metadata, value)
			case "error":
				setOnce(&c.Code, value)
			case "scope":
				c.Scopes = union(c.Scopes, strings.Fields(value))
			}
		})
	}
	return c
}

func setOnce(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

// authParams calls fn with the parameters of all challenges in a value of WWW-Authenticate, and the scheme of their
// challenge (RFC 9110, 11.6.1). Commas separate challenges as well as parameters: a word without "=" is a scheme, or
// a token68 if it follows a scheme without a comma.
func authParams(s string, fn func(scheme, name, value string)) {
	scheme, comma := "", true
	for {
		rest := strings.TrimLeft(s, " \t,")
		comma = comma || strings.Contains(s[:len(s)-len(rest)], ",")
		after := strings.TrimLeft(rest, wordChars)
		word := rest[:len(rest)-len(after)]
		if word == "" {
			return
		}
		s = strings.TrimLeft(after, " \t")
		switch value, isParam := strings.CutPrefix(s, "="); {
		case !isParam && comma:
			scheme = word
		case !isParam || strings.Trim(value, "= \t") == "" || strings.ContainsAny(value[:1], "=,"):
			s = strings.TrimLeft(s, "=") // word is a token68
		default:
			text, rest, ok := authValue(strings.TrimLeft(value, " \t"))
			if !ok {
				return
			}
			fn(scheme, word, text)
			s = rest
		}
		comma = false
	}
}

// wordChars are the characters of a token and of a token68 (RFC 9110, 5.6.2 and 11.2), except "=".
const wordChars = "!#$%&'*+-.^_`|~/0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// authValue returns the value at the start of s, and what follows it. A value without quotes ends at a comma: some
// servers send URLs so, which are not tokens.
func authValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		value, _, _ = strings.Cut(s, ",")
		return strings.TrimSpace(value), s[len(value):], true
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c == '\\' && i+1 < len(s):
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}
