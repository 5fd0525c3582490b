package admin

import (
	"fmt"
	"net/http"
	"strings"
)

// A Check is one thing that has to be well before clients should come.
type Check struct {
	Name string // "drain", "listeners", "upstream docs"
	Why  string // what is wrong, in few words fit for anybody; "" if nothing is
}

// serveReady is /readyz: 200 if all is well, else 503 with a line for each thing that is
// not. With ?verbose there is a line for everything.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	var all, wrong []string
	for _, c := range s.Ready() {
		if c.Why == "" {
			all = append(all, fmt.Sprintf("%s: ok", c.Name))
			continue
		}
		line := fmt.Sprintf("%s: %s", c.Name, c.Why)
		all, wrong = append(all, line), append(wrong, line)
	}
	status, lines, last := http.StatusOK, wrong, "ok"
	if len(wrong) > 0 {
		status, last = http.StatusServiceUnavailable, "not ready"
	}
	if r.URL.Query().Has("verbose") {
		lines = all
	}
	say(w, status, append(lines, last)...)
}

// say answers with lines of text.
func say(w http.ResponseWriter, status int, lines ...string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, strings.Join(lines, "\n"))
}
