package admin

import (
	"encoding/json"
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// serveStatus is /status: the Snapshot as JSON. What there is none of is an empty array.
func (s *Server) serveStatus(w http.ResponseWriter) {
	now := s.Snapshot()
	now.Upstreams = append([]observe.Upstream{}, now.Upstreams...)
	now.Sessions = append([]observe.Session{}, now.Sessions...)
	now.Links = append([]observe.Link{}, now.Links...)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(now) // that the operator went is his business
}
