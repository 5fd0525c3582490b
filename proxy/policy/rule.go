package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/glob"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// A Rule says what some clients may do. Globs match <upstream>__<name>, where the name is the upstream's own, and the
// URIs of resources.
type Rule struct {
	Key string // in the configuration: policies[0]
	Who Who

	// If any of the three has an Allow, nothing else is allowed, in all three. Otherwise everything is allowed that is
	// not denied. Deny wins.
	Tools, Prompts, Resources Globs

	// Methods are globs on methods of extensions. A rule with any Allow or Deny denies all others that the proxy does
	// not know.
	Methods []string

	// Deliver are globs on the URLs to which servers may send events for the client. Others are denied.
	Deliver []string

	// Scopes are the needed scopes by glob, for every kind. The scopes of all matching globs add up.
	Scopes map[string][]string

	Limits Limits
}

// Globs match what is allowed and denied.
type Globs struct{ Allow, Deny []string }

// Limits apply to each principal, over all its connections. Zero means no limit.
type Limits struct {
	Rate     float64 // requests a second; bursts have as many, and at least 10
	InFlight int     // requests at once
	Sessions int
}

// Who selects the clients of a rule: all set fields must match. The zero Who matches nobody.
type Who struct {
	Any         bool
	Anonymous   bool
	Operator    bool
	Token       string            // name of a static token
	User        string            // name of a Unix user, or the number of a user without a name
	Certificate string            // name in a certificate
	Issuer      string            // of a JWT, or authority of a certificate
	Principal   string            // name of a JWT's principal
	Claims      map[string]string // of a JWT, see hasClaim
}

// matches reports whether the rule matches a client. claims returns the claims of a JWT.
func (w *Who) matches(id *identity.Identity, claims func() map[string]json.RawMessage) bool {
	if w.Any {
		return true
	}
	is := func(kind identity.Kind, name string) bool { return id.Kind == kind && (name == "" || id.Name == name) }
	set := 0
	all := func(wanted, holds bool) bool {
		if wanted {
			set++
		}
		return !wanted || holds
	}
	return all(w.Anonymous, is(identity.Anonymous, "")) &&
		all(w.Operator, is(identity.Operator, "")) &&
		all(w.Token != "", is(identity.Token, w.Token)) &&
		all(w.User != "", is(identity.User, w.User)) &&
		all(w.Certificate != "", is(identity.Certificate, w.Certificate)) &&
		all(w.Issuer != "", id.Issuer == w.Issuer && (id.Kind == identity.JWT || id.Kind == identity.Certificate)) &&
		all(w.Principal != "", is(identity.JWT, w.Principal)) &&
		all(len(w.Claims) > 0, id.Kind == identity.JWT && hasClaims(w.Claims, claims)) &&
		set > 0
}

func hasClaims(wanted map[string]string, claims func() map[string]json.RawMessage) bool {
	has := claims()
	for name, text := range wanted {
		if !hasClaim(has[name], text) {
			return false
		}
	}
	return true
}

// hasClaim reports whether a claim is a text, or has it as an element of an array or as a word between spaces, as in
// scope (RFC 8693, 4.2). Numbers, true and false are compared as they are written.
func hasClaim(claim json.RawMessage, text string) bool {
	if len(claim) == 0 {
		return false
	}
	var value string
	var array []json.RawMessage
	switch claim[0] {
	case '"':
		return json.Unmarshal(claim, &value) == nil && (value == text || slices.Contains(strings.Fields(value), text))
	case '[':
		return json.Unmarshal(claim, &array) == nil && slices.ContainsFunc(array, func(e json.RawMessage) bool {
			return isText(e, text)
		})
	}
	return isText(claim, text)
}

// isText reports whether a JSON value is a text, or a number, true or false that is written like it.
func isText(value json.RawMessage, text string) bool {
	var s string
	if json.Unmarshal(value, &s) == nil && string(value) != "null" {
		return s == text
	}
	switch value[0] {
	case '{', '[', 'n':
		return false
	}
	return string(value) == text
}

// A rule is a compiled [Rule].
type rule struct {
	Rule
	listed bool                  // it allows only what it lists
	denies bool                  // it denies something
	scopes map[*reading][]string // needed scopes, by glob

	// For resources. byURI is set if any glob, also among the scopes, matches URIs: otherwise URIs are not parsed.
	byURI       bool
	allow, deny []*reading

	deliver []*reading
}

func compile(r Rule) (*rule, error) {
	c := &rule{Rule: r, scopes: make(map[*reading][]string)}
	for _, of := range []struct {
		name  string
		globs []string
	}{
		{"tools", slices.Concat(r.Tools.Allow, r.Tools.Deny)}, {"prompts", slices.Concat(r.Prompts.Allow, r.Prompts.Deny)},
		{"resources", slices.Concat(r.Resources.Allow, r.Resources.Deny)}, {"methods", r.Methods}, {"events.deliver", r.Deliver},
		{"scopes", slices.Sorted(maps.Keys(r.Scopes))},
	} {
		for _, g := range of.globs {
			if err := glob.Check(g); err != nil { // an invalid glob would deny nothing
				return nil, fmt.Errorf("%s.%s: %q is not a glob: %w", r.Key, of.name, g, err)
			}
		}
	}
	for _, of := range []Globs{r.Tools, r.Prompts, r.Resources} {
		c.listed, c.denies = c.listed || len(of.Allow) > 0, c.denies || len(of.Deny) > 0
	}
	for g, needs := range r.Scopes {
		c.scopes[readGlob(g)] = needs
		c.byURI = c.byURI || beginsURI.MatchString(literal(g))
	}
	c.allow, c.deny, c.deliver = readGlobs(r.Resources.Allow), readGlobs(r.Resources.Deny), readGlobs(r.Deliver)
	c.byURI = c.byURI || c.allow != nil || c.deny != nil
	return c, nil
}

// beginsURI matches the beginning of globs that can match a URI. Globs of names have __ before any colon.
var beginsURI = regexp.MustCompile(`^[A-Za-z0-9+.%/-]*(:|$)`)

func readGlobs(globs []string) (all []*reading) {
	for _, g := range globs {
		all = append(all, readGlob(g))
	}
	return all
}

// nothing is the rule of clients that no rule matches.
var nothing = &rule{listed: true}
