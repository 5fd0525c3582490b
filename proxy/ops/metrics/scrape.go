package metrics

import (
	"cmp"
	"compress/gzip"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// mostScrapes bounds those at the same time: each takes a snapshot and may need no token.
const mostScrapes = 4

// Handler serves the metrics as text or as OpenMetrics, with those of the process and of a snapshot for each scrape.
func (m *Metrics) Handler(snapshot func() observe.Snapshot) http.Handler {
	running := make(chan struct{}, mostScrapes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case running <- struct{}{}:
			defer func() { <-running }()
			m.collect(snapshot).serve(w, r)
		default:
			http.Error(w, "Limit of concurrent requests reached ("+strconv.Itoa(mostScrapes)+"), try again later.", http.StatusServiceUnavailable)
		}
	})
}

// serve answers a scraper.
func (o out) serve(w http.ResponseWriter, r *http.Request) {
	if wanted := r.URL.Query()["name[]"]; len(wanted) > 0 { // as with Prometheus's client for Go
		for name := range o {
			if !slices.Contains(wanted, name) {
				delete(o, name)
			}
		}
	}
	f, contentType := formatOf(r.Header.Get("Accept"))
	w.Header().Set("Content-Type", contentType)
	w.Header().Add("Vary", "Accept")
	w.Header().Add("Vary", "Accept-Encoding")
	if !zips(r.Header.Get("Accept-Encoding")) {
		o.writeTo(w, f)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := zippers.Get().(*gzip.Writer)
	defer zippers.Put(z)
	z.Reset(w)
	o.writeTo(z, f)
	z.Close()
}

// zippers keep the tables of gzip, most of a megabyte, for the next scrape.
var zippers = sync.Pool{New: func() any { return gzip.NewWriter(io.Discard) }}

// A choice is what a client accepts, with its parameters.
type choice struct {
	name   string
	params map[string]string
	weight float64
}

// choices returns those of an Accept or Accept-Encoding header, the preferred ones first (RFC 9110, 12.4.2 and 12.5).
func choices(header string) (all []choice) {
	for text := range strings.SplitSeq(header, ",") {
		name, params, err := mime.ParseMediaType(text)
		if err != nil {
			continue
		}
		weight, err := strconv.ParseFloat(cmp.Or(params["q"], "1"), 64)
		if err == nil && weight > 0 {
			all = append(all, choice{name, params, weight})
		}
	}
	slices.SortStableFunc(all, func(a, b choice) int { return cmp.Compare(b.weight, a.weight) })
	return all
}

// escapings are for names with other characters than letters, digits and underscores. There are none here.
var escapings = []string{"allow-utf-8", "underscores", "dots", "values"}

// formatOf returns the format that a scraper prefers, text if we have none of its formats, and the Content-Type of that
// (Prometheus, "Scrape protocol content negotiation").
func formatOf(accept string) (f format, contentType string) {
	kind, version, escaping := "text/plain", "0.0.4", escapings[1]
	for _, c := range choices(accept) {
		v := c.params["version"]
		if c.name == "text/plain" && (v == "" || v == version) || c.name == "application/openmetrics-text" && (v == "" || v == "0.0.1" || v == "1.0.0") {
			if kind = c.name; kind != "text/plain" {
				f, version = openMetrics, cmp.Or(v, "0.0.1")
			}
			if slices.Contains(escapings, c.params["escaping"]) {
				escaping = c.params["escaping"]
			}
			break
		}
	}
	return f, kind + "; version=" + version + "; charset=utf-8; escaping=" + escaping
}

// zips reports whether a client prefers gzip to an unchanged body.
func zips(acceptEncoding string) bool {
	for _, c := range choices(acceptEncoding) {
		switch c.name {
		case "gzip":
			return true
		case "identity", "*":
			return false
		}
	}
	return false
}
