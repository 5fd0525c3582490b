package frontend

import (
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// An Identifier says who clients are. It is called for each request, by many goroutines
// at once.
type Identifier interface {
	// Identify says who the client of r is, or why r is refused: exactly one is nil. It
	// does not answer r.
	Identify(r *http.Request) (*identity.Identity, *identity.Refusal)

	// Challenge returns the WWW-Authenticate header (RFC 6750, section 3) of a response
	// that refuses r; "" for none. A policy may have refused it instead of Identify.
	Challenge(r *http.Request, why *identity.Refusal) string

	// Metadata returns the JSON of a document at /.well-known/oauth-protected-resource or
	// below it (RFC 9728), and false if there is none.
	Metadata(r *http.Request) ([]byte, bool)
}

// unasked is the Identifier that asks for nothing.
type unasked struct{}

func (unasked) Identify(r *http.Request) (*identity.Identity, *identity.Refusal) {
	who, why := identity.UserOf(r.Context())
	if who == nil && why == nil {
		who = identity.Nobody
	}
	return who, why
}

func (unasked) Challenge(*http.Request, *identity.Refusal) string { return "" }

func (unasked) Metadata(*http.Request) ([]byte, bool) { return nil, false }
