package ops

import (
	"encoding/json"
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// connectData is the path of the data of the page at /.
const connectData = "/connect.json"

// A ConnectPage is the page at / of serve: how clients connect, and to what. A client that may not connect
// gets a page that asks for the token. A nil ConnectPage has no path.
type ConnectPage struct {
	Guard interface {
		OwnPage(http.ResponseWriter, *http.Request) (who *identity.Identity, why *identity.Refusal, ok bool)
		Refuse(http.ResponseWriter, *http.Request, *identity.Refusal)
	}
	Tell func(who *identity.Identity, r *http.Request) observe.ConnectInfo // what the client may know
}

// Has reports whether r is for the page.
func (h *ConnectPage) Has(r *http.Request) bool {
	if h == nil || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	return r.URL.Path == connectData || connectPage.has(r.URL.Path)
}

// ServeHTTP implements [http.Handler]. Scripts and styles are the same for everybody and need no token. The page
// itself and its data do.
func (h *ConnectPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who, why, ok := h.Guard.OwnPage(w, r)
	switch path := r.URL.Path; {
	case !ok:
	case path != "/" && path != connectData:
		connectPage.serve(w, r, http.StatusOK)
	case why != nil && path == "/" && why.Status == http.StatusUnauthorized && isForPeople(r):
		connectPage.serve(w, r, http.StatusUnauthorized)
	case why != nil:
		h.Guard.Refuse(w, r, why)
	case path == "/":
		connectPage.serve(w, r, http.StatusOK)
	default:
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_ = json.NewEncoder(w).Encode(h.Tell(who, r)) // that the browser went is its business
	}
}
