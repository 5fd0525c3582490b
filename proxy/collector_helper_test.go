package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A collector takes traces as OTLP over HTTP.
type collector struct {
	*httptest.Server
	t *testing.T

	mu     sync.Mutex
	spans  []*tracepb.Span
	raw    strings.Builder // all that came: headers and bodies
	status int             // of its answers; 0 for 200
	posts  int
}

func newCollector(t *testing.T) *collector {
	c := &collector{t: t}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posts++
	for name, values := range r.Header {
		c.raw.WriteString(name + ": " + strings.Join(values, ",") + "\n")
	}
	c.raw.Write(body)
	if c.status != 0 {
		w.WriteHeader(c.status)
		return
	}
	var all tracepb.TracesData // as bytes an ExportTraceServiceRequest
	if err := proto.Unmarshal(body, &all); err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Error(r.URL, r.Header, err)
	}
	for _, of := range all.ResourceSpans {
		if service := text(of.Resource.Attributes, "service.name"); service != "mcp-proxy" {
			c.t.Error("service", service)
		}
		for _, scope := range of.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
}

// all returns the spans that have come.
func (c *collector) all() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// only returns the one span of a name and kind, s for server and c for client.
func (c *collector) only(kind, name string) *tracepb.Span {
	c.t.Helper()
	want := map[string]tracepb.Span_SpanKind{"s": tracepb.Span_SPAN_KIND_SERVER, "c": tracepb.Span_SPAN_KIND_CLIENT}[kind]
	var found []*tracepb.Span
	for _, s := range c.all() {
		if s.Name == name && s.Kind == want {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		c.t.Fatalf("%d spans %s %q of %v", len(found), kind, name, c.all())
	}
	return found[0]
}

// text is the value of an attribute, "" for none.
func text(of []*commonpb.KeyValue, key string) string {
	for _, a := range of {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}
