package admin

import (
	"encoding/json"
	"net/http"
)

// serveStatus is /status: the Snapshot as JSON.
func (s *Server) serveStatus(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.Snapshot()) // that the operator went is his business
}
