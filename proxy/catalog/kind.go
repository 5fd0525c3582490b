package catalog

import "github.com/mcp-proxy/mcp-proxy/internal/mcp"

// A Kind is a kind of list that upstreams offer.
type Kind int

// The kinds, and their number.
const (
	Tools Kind = iota
	Prompts
	Resources
	Templates
	Kinds
)

// onWire has the names of each kind in messages.
var onWire = [Kinds]struct{ capability, method, member, key, changed string }{
	Tools:     {"tools", mcp.MethodToolsList, "tools", "name", mcp.MethodToolsChanged},
	Prompts:   {"prompts", mcp.MethodPromptsList, "prompts", "name", mcp.MethodPromptsChanged},
	Resources: {"resources", mcp.MethodResourcesList, "resources", "uri", mcp.MethodResourcesChanged},
	Templates: {"resources", mcp.MethodTemplatesList, "resourceTemplates", "uriTemplate", mcp.MethodResourcesChanged},
}

// Capability returns the capability that upstreams with such a list declare.
func (k Kind) Capability() string { return onWire[k].capability }

// Method returns the method that lists the kind.
func (k Kind) Method() string { return onWire[k].method }

// Member returns the member of a result that is the list.
func (k Kind) Member() string { return onWire[k].member }

// Key returns the member of an element that is its name.
func (k Kind) Key() string { return onWire[k].key }

// Changed returns the notification of changes. Resources and templates have the same.
func (k Kind) Changed() string { return onWire[k].changed }

// ChangedKind returns the kind of list that a list_changed is about; ok is false for other methods. The one for
// resources and templates is about [Resources].
func ChangedKind(method string) (k Kind, ok bool) {
	for k := range Kinds {
		if k.Changed() == method {
			return k, true
		}
	}
	return 0, false
}

// IsNamed reports whether the elements have names, which may get a prefix. URIs never get one.
func (k Kind) IsNamed() bool { return k == Tools || k == Prompts }
