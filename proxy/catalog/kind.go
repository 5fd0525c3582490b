package catalog

import "github.com/mcp-proxy/mcp-proxy/internal/mcp"

// A Kind is one of the lists that upstreams offer.
type Kind int

// The kinds, and how many there are.
const (
	Tools Kind = iota
	Prompts
	Resources
	Templates
	Kinds
)

// onWire has the names of a kind on the wire.
var onWire = [Kinds]struct{ capability, method, member, key, changed string }{
	Tools:     {"tools", mcp.MethodToolsList, "tools", "name", mcp.MethodToolsChanged},
	Prompts:   {"prompts", mcp.MethodPromptsList, "prompts", "name", mcp.MethodPromptsChanged},
	Resources: {"resources", mcp.MethodResourcesList, "resources", "uri", mcp.MethodResourcesChanged},
	Templates: {"resources", mcp.MethodTemplatesList, "resourceTemplates", "uriTemplate", mcp.MethodResourcesChanged},
}

// Capability returns the capability that an upstream with such a list declares.
func (k Kind) Capability() string { return onWire[k].capability }

// Method returns the method that lists the kind.
func (k Kind) Method() string { return onWire[k].method }

// Member returns the member of a result that holds the list.
func (k Kind) Member() string { return onWire[k].member }

// Key returns the member of an element that names it.
func (k Kind) Key() string { return onWire[k].key }

// Changed returns the notification of a change. Resources and templates share one.
func (k Kind) Changed() string { return onWire[k].changed }

// IsNamed reports whether the elements have names, which may get a prefix. URIs never do.
func (k Kind) IsNamed() bool { return k == Tools || k == Prompts }
