package ops

import (
	"fmt"
	"net/http"
	"strconv"
)

// usualEvents is the default limit of a list.
const usualEvents = 100

// serveEvents is /events: a list, newest first. ?since=ID leaves out that event and those before it, ?limit=N
// those beyond the newest N.
func (s *Server) serveEvents(w http.ResponseWriter, r *http.Request) {
	limit := usualEvents
	if text := r.URL.Query().Get("limit"); text != "" {
		var err error
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > mostEvents {
			http.Error(w, fmt.Sprintf("limit must be a number from 1 to %d", mostEvents), http.StatusBadRequest)
			return
		}
	}
	sayJSON(w, s.History.List(r.URL.Query().Get("since"), limit))
}

// serveEvent is /events/ID: one event with all details.
func (s *Server) serveEvent(w http.ResponseWriter, id string) {
	e, ok := s.History.Find(id)
	if !ok {
		http.Error(w, fmt.Sprintf("no such event: a process keeps its last %d events until it stops", mostEvents), http.StatusNotFound)
		return
	}
	sayJSON(w, e)
}

// longestQuestion bounds the requested name, in bytes.
const longestQuestion = 4 << 10

// serveExplanation is /explain/NAME.
func (s *Server) serveExplanation(w http.ResponseWriter, r *http.Request, name string) {
	if name == "" || len(name) > longestQuestion {
		http.Error(w, fmt.Sprintf("a name must have 1 to %d bytes", longestQuestion), http.StatusBadRequest)
		return
	}
	answer, err := s.Explain(name, r.URL.Query().Get("as"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sayJSON(w, answer)
}
