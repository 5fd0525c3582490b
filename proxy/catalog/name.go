package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/glob"
)

// A Naming says when exposed names have the upstream's name before them.
type Naming string

// PrefixAuto prefixes if there are several upstreams, alive or not, and as long as some
// are not known yet. A program whose configuration says that there will be several says
// PrefixAlways, so that names do not change later.
const (
	PrefixAuto   Naming = ""
	PrefixAlways Naming = "always"
	PrefixNever  Naming = "never"
)

// separator stands between an upstream's name and the name of what it offers.
const separator = "__"

// Prefix returns what the exposed names of an upstream begin with. A prefix of its own
// wins. Several is about the upstreams that are configured, not about those that are
// alive: a name must not change because another server died.
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

// Longest returns the longest of the prefixes that a name begins with.
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
	// maxName is how long a name may be for the language models that read it.
	maxName = 64

	// keptOfName is what stays of one that is longer, before "_" and a hash.
	keptOfName = maxName - 1 - 2*hashOfName
	hashOfName = 4 // bytes
)

var fitName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// Exposed puts the prefix before a name. If that makes it too long, its end becomes a
// hash of the whole, always the same one.
func Exposed(prefix, original string) string {
	name := prefix + original
	if len(name) <= maxName || !fitName.MatchString(original) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return name[:keptOfName] + "_" + hex.EncodeToString(sum[:hashOfName])
}

// Allows reports whether a client may see and call a tool. Both are globs. Deny wins; an
// empty allow allows all.
func Allows(allow, deny []string, tool string) bool {
	_, allowed := glob.First(allow, tool)
	_, denied := glob.First(deny, tool)
	return (len(allow) == 0 || allowed) && !denied
}
