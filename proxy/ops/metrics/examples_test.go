package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A selector of PromQL, and the labels of a grouping.
var (
	selector = regexp.MustCompile(`\b((?:mcp|process|go)_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+) *[=!]`)
	groups   = regexp.MustCompile(`by \(([a-z_, ]+)\)`)
)

// The dashboard and the alerts ask for metrics and labels that there are.
func TestExamplesAskForWhatThereIs(t *testing.T) {
	m, now := everything()
	labels := make(map[string][]string) // of each metric
	for line := range strings.Lines(scrape(t, m, "text/plain", now)) {
		if of := selector.FindStringSubmatch(line); of != nil && !strings.HasPrefix(line, "#") {
			labels[of[1]] = []string{"instance"} // from Prometheus
			for _, l := range matcher.FindAllStringSubmatch(of[2], -1) {
				labels[of[1]] = append(labels[of[1]], l[1])
			}
		}
	}
	asked := 0
	for _, query := range slices.Concat(queriesOfDashboard(t), queriesOfAlerts(t)) {
		var known []string
		for _, of := range selector.FindAllStringSubmatch(query, -1) {
			has, ok := labels[of[1]]
			if !ok {
				if of[1] != "mcp_method_name" { // a label
					t.Errorf("nothing is called %s: %s", of[1], query)
				}
				continue
			}
			asked, known = asked+1, append(known, has...)
			for _, l := range matcher.FindAllStringSubmatch(of[2], -1) {
				if !slices.Contains(has, l[1]) {
					t.Errorf("%s has no label %s: %s", of[1], l[1], query)
				}
			}
		}
		for _, by := range groups.FindAllStringSubmatch(query, -1) {
			for l := range strings.SplitSeq(by[1], ", ") {
				if len(known) > 0 && !slices.Contains(known, l) {
					t.Errorf("no label %s: %s", l, query)
				}
			}
		}
	}
	if asked < 30 {
		t.Errorf("%d metrics asked for", asked)
	}
}

func queriesOfDashboard(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../../examples/grafana/mcp-proxy.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			all = append(all, q.Expr)
		}
	}
	return all
}

// queriesOfAlerts returns the lines that are no comments: the annotations name metrics, too.
func queriesOfAlerts(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("../../../examples/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			all = append(all, line)
		}
	}
	return all
}
