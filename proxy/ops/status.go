package ops

import (
	"encoding/json"
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// serveStatus is /status: the Snapshot as JSON, with empty arrays instead of null.
func (s *Server) serveStatus(w http.ResponseWriter) {
	now := s.Snapshot()
	now.Traffic = append([]observe.Traffic{}, now.Traffic...)
	now.Upstreams = append([]observe.Upstream{}, now.Upstreams...)
	now.Sessions = append([]observe.Session{}, now.Sessions...)
	now.Links = append([]observe.Link{}, now.Links...)
	sayJSON(w, now)
}

// serveCalls is /calls.
func (s *Server) serveCalls(w http.ResponseWriter) {
	now := s.Calls()
	now.Calls = append([]observe.OpenRequest{}, now.Calls...)
	sayJSON(w, now)
}

// sayJSON answers with a value as JSON.
func sayJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // that the operator went is his business
}
