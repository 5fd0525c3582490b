package metrics

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/common/expfmt"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A scraper gets the format that the library of Prometheus would choose.
func TestFormatsAreNegotiated(t *testing.T) {
	for _, accept := range []string{
		"",
		"*/*",
		"text/plain",
		"text/plain;version=0.0.4;q=0.5, */*;q=0.1",
		"text/plain;version=1.0.0",
		"application/openmetrics-text",
		"application/openmetrics-text; version=0.0.1",
		"application/openmetrics-text; version=1.0.0; charset=utf-8",
		"application/openmetrics-text; version=2.0.0",
		"application/json",
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
		"text/plain;version=0.0.4;q=0.9,application/openmetrics-text;version=1.0.0;q=0.5",
		"text/plain;version=1.0.0,application/openmetrics-text;version=1.0.0;q=0.5",
		"application/openmetrics-text;version=1.0.0;escaping=dots",
		"application/openmetrics-text;version=1.0.0;escaping=other",
		"half/a/type, ;;, application/openmetrics-text;version=1.0.0",
		// Prometheus 2, 3, and 3 with native histograms, for which there is another format.
		"application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
		"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,*/*;q=0.1",
	} {
		w := scraping(t, New("").Handler(func() observe.Snapshot { return observe.Snapshot{} }), "/metrics", http.Header{"Accept": {accept}})
		want := expfmt.NegotiateAccept(http.Header{"Accept": {accept}}, expfmt.FmtOpenMetrics_1_0_0, expfmt.FmtOpenMetrics_0_0_1, expfmt.FmtText)
		got := w.Header().Get("Content-Type")
		if got != string(want) {
			t.Errorf("%q: %s, want %s", accept, got, want)
		}
		if strings.HasSuffix(w.Body.String(), "\n# EOF\n") != strings.HasPrefix(got, "application/openmetrics-text;") {
			t.Errorf("%q: not %s", accept, got)
		}
	}
	const refused = "application/openmetrics-text;version=1.0.0;q=0"
	if _, got := formatOf(refused); !strings.HasPrefix(got, "text/plain;") {
		t.Errorf("%q: %s", refused, got)
	}
}

// A body is compressed for those who ask for that.
func TestScrapesAreCompressed(t *testing.T) {
	m, now := everything()
	handler := m.Handler(func() observe.Snapshot { return now })
	for accept, zipped := range map[string]bool{
		"": false, "gzip": true, "gzip, deflate, br, zstd": true, "identity;q=0.5, gzip": true, "gzip;q=0.5": true,
		"gzip;q=0": false, "*": false, "zstd": false, "identity, gzip": false, "gzip;q=often": false,
	} {
		for range 2 { // the second one gets what the first one used
			w := scraping(t, handler, "/metrics", http.Header{"Accept-Encoding": {accept}})
			var body io.Reader = w.Body
			if (w.Header().Get("Content-Encoding") == "gzip") != zipped || strings.Join(w.Header()["Vary"], ",") != "Accept,Accept-Encoding" {
				t.Errorf("%q: %v", accept, w.Header())
			} else if zipped {
				var err error
				if body, err = gzip.NewReader(w.Body); err != nil {
					t.Fatal(err)
				}
			}
			text, err := io.ReadAll(body)
			if err != nil || !strings.Contains(string(text), "mcp_proxy_calls_in_flight 1\n") || !strings.HasPrefix(string(text), "# HELP go_gc_duration_seconds ") {
				t.Errorf("%q: %v %.100s", accept, err, text)
			}
		}
	}
}

// name[] selects families.
func TestSelectedMetrics(t *testing.T) {
	m, now := everything()
	w := scraping(t, m.Handler(func() observe.Snapshot { return now }), "/metrics?name[]=mcp_proxy_listens&name[]=mcp_proxy_calls_total&name[]=none", nil)
	const want = `# HELP mcp_proxy_calls_total Finished client requests.
# TYPE mcp_proxy_calls_total counter
mcp_proxy_calls_total{outcome="ok",principal="token:ci"} 1
# HELP mcp_proxy_listens Open subscriptions of clients.
# TYPE mcp_proxy_listens gauge
mcp_proxy_listens 3
`
	if w.Body.String() != want {
		t.Error(w.Body)
	}
}

// So many scrapes may run at once, and one more is refused.
func TestScrapesAreBounded(t *testing.T) {
	began, goOn := make(chan struct{}), make(chan struct{})
	var snapshots atomic.Int32
	handler := New("").Handler(func() observe.Snapshot {
		if snapshots.Add(1) <= mostScrapes {
			began <- struct{}{}
			<-goOn
		}
		return observe.Snapshot{}
	})
	codes := make(chan int)
	scrape := func() { codes <- scraping(t, handler, "/metrics", nil).Code }
	for range mostScrapes {
		go scrape()
		<-began
	}
	go scrape()
	if code := <-codes; code != http.StatusServiceUnavailable {
		t.Error("one more", code)
	}
	close(goOn)
	for range mostScrapes {
		if code := <-codes; code != http.StatusOK {
			t.Error(code)
		}
	}
	go scrape()
	if code := <-codes; code != http.StatusOK {
		t.Error("after them", code)
	}
}

func scraping(t *testing.T, handler http.Handler, target string, h http.Header) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	r.Header = h
	handler.ServeHTTP(w, r)
	return w
}
