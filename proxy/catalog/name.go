package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/glob"
)

// A Naming says when exposed names begin with the upstream's name.
type Naming string

// PrefixAuto adds prefixes if there are several upstreams, alive or not, or some are not known yet.
// A program that expects more upstreams uses PrefixAlways, so that names do not change later.
const (
	PrefixAuto   Naming = ""
	PrefixAlways Naming = "always"
	PrefixNever  Naming = "never"
)

// separator is between an upstream's name and the name of a tool, prompt or task.
const separator = "__"

// Prefix returns the prefix of the exposed names of an upstream. own, the configured prefix, wins.
// several counts configured upstreams and not living ones, because the death of one must not change
// the names of another.
func (naming Naming) Prefix(upstream string, own *string, several bool) string {
	switch {
	case own != nil && *own == "":
		return ""
	case own != nil:
		return *own + separator
	case naming == PrefixAlways, naming == PrefixAuto && several:
		return upstream + separator
	}
	return ""
}

// Longest returns the longest of the prefixes with which a name begins.
func Longest(prefixes []string, name string) string {
	longest := ""
	for _, prefix := range prefixes {
		if len(prefix) > len(longest) && strings.HasPrefix(name, prefix) {
			longest = prefix
		}
	}
	return longest
}

const (
	// maxName is the maximal length of names for language models.
	maxName = 64

	// keptOfName is the part of a longer name before "_" and a hash.
	keptOfName = maxName - 1 - 2*hashOfName
	hashOfName = 4 // bytes
)

var fitName = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// Exposed returns the name with its prefix. If that is too long, a hash of the whole replaces its
// end.
func Exposed(prefix, original string) string {
	name := prefix + original
	if len(name) <= maxName || len(original) > maxName || !fitName.MatchString(original) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:keptOfName] + "_" + hex.EncodeToString(sum[:hashOfName])
}

// Allows reports whether clients may see and call a tool. allow and deny are globs. Deny wins; an
// empty allow allows all.
func Allows(allow, deny []string, tool string) bool {
	_, allowed := glob.First(allow, tool)
	_, denied := glob.First(deny, tool)
	return (len(allow) == 0 || allowed) && !denied
}

// MayHavePrefix reports whether a name that an upstream with this prefix lists could also be one with the prefix of
// another upstream. An upstream without a prefix is alone.
func MayHavePrefix(name, prefix string) bool {
	return prefix != "" && strings.Contains(name, separator)
}
