package catalog

// A Resolution is where a name leads, as far as any session has seen what upstreams list. What a
// client may is another question.
type Resolution struct {
	Upstream string // "" for nowhere
	Original string // its own name there
	Exposed  string // the name that clients see
	By       Rule
	Listed   bool // by the upstream
	Known    bool // what the upstream lists is: else nobody has asked it yet
	Hidden   bool // by the upstream's tools.allow and tools.deny

	// Others are upstreams that have the same bare name, so that it leads nowhere.
	Others []string

	// Names are those that clients see of what upstreams list, if none lists this one.
	Names []string

	Complete bool // there are no upstreams that are not known yet
}

// A Rule is why a name leads somewhere.
type Rule string

// Rules.
const (
	BySole      Rule = "sole"     // there is no other upstream, and its names are bare
	ByPrefix    Rule = "prefix"   // the name begins with that of the upstream
	ByBareName  Rule = "bare"     // no other upstream has the name
	ByPolicy    Rule = "policy"   // it is how policies call it; clients see another name
	ByURI       Rule = "uri"      // the upstream lists the URI
	ByTemplate  Rule = "template" // the upstream lists a template that matches
	ByNobody    Rule = "nobody"   // no upstream is known to have it
	BySeveral   Rule = "several"  // more than one has it
	ByAskingAll Rule = "asked"    // a resource that nobody lists: upstreams are asked in turn
)
