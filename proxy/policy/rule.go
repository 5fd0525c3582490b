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

// A Rule says what some clients may. Globs are about <upstream>__<name>, where the name is
// the upstream's own, and about the URIs of resources.
type Rule struct {
	Key string // where it is configured: policies[0]
	Who Who

	// If any of the three allows something, nothing else is allowed, of all three. Else all
	// is that is not denied. Deny wins.
	Tools, Prompts, Resources Globs

	// Scopes are those that what a glob matches needs, of any kind. All globs that match
	// count.
	Scopes map[string][]string

	Limits Limits
}

// Globs are what is allowed and what is not.
type Globs struct{ Allow, Deny []string }

// Limits are for each principal, over all that it does at the same time. Zero means none.
type Limits struct {
	Rate     float64 // requests a second; a burst may have those of one second, and at least 10
	InFlight int     // requests at once
	Sessions int
}

// Who says whom a rule is about: those to whom all applies that is set. The zero Who is
// nobody.
type Who struct {
	Any         bool
	Anonymous   bool
	Operator    bool
	Token       string            // name of a static token
	User        string            // name of a Unix user, or number of one that has no name
	Certificate string            // name in a certificate
	Issuer      string            // of a JWT, or authority of a certificate
	Principal   string            // name of a JWT's principal
	Claims      map[string]string // of a JWT, see hasClaim
}

// matches reports whether the rule is about a client. The claims are those of a JWT, by
// their names.
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

// hasClaim reports whether a claim is a text, or holds it as an element of an array or as a
// word between spaces, as scope does (RFC 8693 4.2). Numbers, true and false are as they
// are written.
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

// isText reports whether a value is a text, or a number, true or false that is written so.
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

// A compiled rule is a [Rule] and what follows from it.
type rule struct {
	Rule
	listed bool // it allows something, and nothing else
	scopes []scope

	// Of resources. byURI tells that there are globs of URIs, also among the scopes: else
	// nobody looks at how a URI is written.
	byURI       bool
	allow, deny []*reading
}

// A scope is what one glob of a rule's scopes needs.
type scope struct {
	glob  *reading // also of names, as it is written
	needs []string
}

// matches reports whether the scopes are needed for something; uri is that of a resource.
func (s *scope) matches(k Kind, name string, uri *reading) bool {
	if k.IsResource() {
		return s.glob.denies(uri)
	}
	_, ok := glob.First([]string{s.glob.text}, name)
	return ok
}

func compile(r Rule) (*rule, error) {
	c := &rule{Rule: r}
	for _, of := range []struct {
		name  string
		globs Globs
	}{{"tools", r.Tools}, {"prompts", r.Prompts}, {"resources", r.Resources}} {
		c.listed = c.listed || len(of.globs.Allow) > 0
		for _, g := range slices.Concat(of.globs.Allow, of.globs.Deny) {
			if err := glob.Check(g); err != nil { // else a rule that denies would deny nothing
				return nil, fmt.Errorf("%s.%s: %q is not a glob: %w", r.Key, of.name, g, err)
			}
		}
	}
	for _, g := range slices.Sorted(maps.Keys(r.Scopes)) {
		if err := glob.Check(g); err != nil {
			return nil, fmt.Errorf("%s.scopes: %q is not a glob: %w", r.Key, g, err)
		}
		c.scopes = append(c.scopes, scope{readGlob(g), r.Scopes[g]})
		c.byURI = c.byURI || beginsURI.MatchString(literal(g))
	}
	c.allow, c.deny = readGlobs(r.Resources.Allow), readGlobs(r.Resources.Deny)
	c.byURI = c.byURI || c.allow != nil || c.deny != nil
	return c, nil
}

// beginsURI tells globs that can match a URI from those of names, which have __ before any
// colon.
var beginsURI = regexp.MustCompile(`^[A-Za-z0-9+.%/-]*(:|$)`)

func readGlobs(globs []string) (all []*reading) {
	for _, g := range globs {
		all = append(all, readGlob(g))
	}
	return all
}

// nothing is the rule of those whom no rule is about.
var nothing = &rule{listed: true}
