package catalog

// A Resolution is the target of a name, as far as sessions have listed upstreams. It does not
// consider policies.
type Resolution struct {
	Upstream string // "" for none
	Original string // the upstream's own name
	Exposed  string // the name that clients see
	By       Rule
	Listed   bool // the upstream lists it
	Known    bool // the upstream's list is known; otherwise nobody has requested it yet
	Hidden   bool // the upstream's tools.allow and tools.deny hide it

	// Others are upstreams with the same bare name, which makes the name ambiguous.
	Others []string

	// Names are the exposed names, if no upstream lists this one.
	Names []string

	Complete bool // all upstreams are known
}

// A Rule says why a name has its target.
type Rule string

// The rules.
const (
	BySole      Rule = "sole"     // there is only one upstream, whose names are bare
	ByPrefix    Rule = "prefix"   // the name begins with the upstream's prefix
	ByBareName  Rule = "bare"     // only one upstream has the name
	ByPolicy    Rule = "policy"   // policies use this name; clients see another one
	ByURI       Rule = "uri"      // the upstream lists the URI
	ByTemplate  Rule = "template" // the upstream lists a matching template
	ByNobody    Rule = "nobody"   // no upstream is known to have it
	BySeveral   Rule = "several"  // several upstreams have it
	ByAskingAll Rule = "asked"    // a resource that nobody lists: upstreams are asked in turn
)
