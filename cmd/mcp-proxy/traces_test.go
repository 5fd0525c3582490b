//go:build unix

package main

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A collector notes each span that it receives, by trace and name.
type collector struct {
	mu    sync.Mutex
	spans []string
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var all tracepb.TracesData
	_ = proto.Unmarshal(body, &all) // then there are no spans
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range all.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, hex.EncodeToString(s.TraceId)+" "+s.Kind.String()+" "+s.Name)
			}
		}
	}
}

// The trace of an HTTP client continues in a stdio server, which reads it from params._meta. At the
// end, the proxy sends the remaining spans to the collector.
func TestTracesReachStdioServers(t *testing.T) {
	const trace = "0af7651916cd43dd8448eb211c80319c"
	var c collector
	at := httptest.NewServer(&c)
	defer at.Close()
	record := filepath.Join(t.TempDir(), "record")
	p, s := serving(t, "FAKE_LOG="+record, "OTEL_EXPORTER_OTLP_ENDPOINT="+at.URL, "OTEL_BSP_SCHEDULE_DELAY=3600000")
	session := ""
	for _, body := range []string{initialize, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Session-Id": {session},
			"Traceparent": {"00-" + trace + "-b7ad6b7169203331-01"}}
		if session == "" {
			r.Header.Del("Mcp-Session-Id")
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if session = resp.Header.Get("Mcp-Session-Id") + session; resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status, string(text))
		}
	}
	if n := countPart(notedIn(record), `"traceparent":"00-`+trace+`-`); n != 1 {
		t.Errorf("the server was told of the trace %d times: %q", n, notedIn(record))
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Wait()
	for _, want := range []string{"SPAN_KIND_SERVER initialize", "SPAN_KIND_SERVER tools/call", "SPAN_KIND_CLIENT tools/call"} {
		if !slices.Contains(c.spans, trace+" "+want) {
			t.Errorf("no %s among %q\n%s", want, c.spans, p.log)
		}
	}
}
