package ops

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// A Check is one condition of readiness.
type Check struct {
	Name  string // "drain", "listeners", "upstream docs"
	Among string // replaces Name for requests that may not read the status: "upstreams"; "" if Name is public
	Why   string // it fails, in a few words; "" if it passes
}

// withoutNames replaces the names of checks by their Among, and merges those with the same.
func withoutNames(all []Check) (few []Check) {
	for _, c := range all {
		if c.Among != "" {
			c.Name = c.Among
			if c.Why != "" {
				c.Why = "not all are ready"
			}
		}
		if i := slices.IndexFunc(few, func(f Check) bool { return f.Name == c.Name }); i >= 0 {
			few[i].Why = cmp.Or(few[i].Why, c.Why)
			continue
		}
		few = append(few, c)
	}
	return few
}

// serveReady serves /readyz: 200 if all checks pass, else 503 with a line for each that fails. ?verbose lists all
// checks. Without a token the lines name no upstream and no link.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	var all, wrong []string
	checks := s.Ready()
	if !s.mayRead(r) {
		checks = withoutNames(checks)
	}
	for _, c := range checks {
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

// say writes lines of text.
func say(w http.ResponseWriter, status int, lines ...string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, strings.Join(lines, "\n"))
}
