package traces

import (
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A stub answers POSTs with these statuses in turn, then with 200.
type stub struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	statuses []int
	spans    []string // names
	headers  []http.Header
}

func newStub(t *testing.T, statuses ...int) *stub {
	s := &stub{t: t, statuses: statuses}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body)
	}
	data, err := io.ReadAll(body)
	var all tracepb.TracesData
	if err != nil || proto.Unmarshal(data, &all) != nil {
		s.t.Error("unreadable:", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.headers = append(s.headers, r.Header)
	if len(s.statuses) > 0 {
		status := s.statuses[0]
		s.statuses = s.statuses[1:]
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		return
	}
	for _, of := range all.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			for _, span := range scope.Spans {
				s.spans = append(s.spans, span.Name)
			}
		}
	}
}

// record makes one span.
func record(t *Traces, method string) {
	t.FollowCall(observe.Call{Method: method}, observe.TraceContext{}).End(observe.Call{}, observe.End{Outcome: observe.OK})
}

// Traces reach a collector with the headers that were asked for, those of files as they are
// then; what may go well the next time is posted again, and what was refused is not.
func TestUploads(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		statuses    []int
		posts, line int
	}{
		"well":          {nil, 1, 0},
		"later":         {[]int{503}, 2, 0},
		"too often":     {[]int{502, 502, 502}, 3, 1},
		"never":         {[]int{401}, 1, 1},
		"to another":    {[]int{307}, 1, 1},
		"not a success": {[]int{404}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStub(t, test.statuses...)
			var log strings.Builder
			traces := New(Settings{Endpoint: s.URL + "/v1/traces", Headers: map[string]string{"X-Plain": "1", "X-Both": "0"}, HeadersFrom: map[string]string{"X-Both": key}, Gzip: true,
				Log: slog.New(slog.NewTextHandler(&log, nil))})
			traces.Start()
			record(traces, "tools/list")
			traces.Shutdown(t.Context())
			if len(s.headers) != test.posts || strings.Count(log.String(), "level=WARN") != test.line {
				t.Errorf("%d posts, and the log says\n%s", len(s.headers), log.String())
			}
			if h := s.headers[0]; h.Get("X-Plain") != "1" || h.Get("X-Both") != "from a file" {
				t.Error(h)
			}
			if (test.line == 0) != slices.Equal(s.spans, []string{"tools/list"}) {
				t.Error("spans", s.spans)
			}
		})
	}
}

// A collector that is well again is a line, too.
func TestExportedAgain(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
	s := newStub(t, 400, 400)
	log := make(lines, 10)
	traces := New(Settings{Endpoint: s.URL, Log: slog.New(slog.NewTextHandler(log, nil))})
	traces.Start()
	record(traces, "tools/list")
	if first := <-log; !strings.Contains(first, "level=WARN") {
		t.Error(first)
	}
	for again := ""; again == ""; {
		record(traces, "tools/list") // some more are lost, of which nobody hears
		select {
		case again = <-log:
			if !strings.Contains(again, "level=INFO msg=\"traces are exported again\"") {
				t.Error(again)
			}
		case <-time.After(time.Millisecond): // for the batch
		}
	}
	traces.Shutdown(t.Context())
}

type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

// Shutdown gives up when its ctx is done, whatever a collector does: the request that is on its
// way is cancelled, and nothing is left behind.
func TestShutdownGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began, cancelled := make(chan struct{}, tries), make(chan bool, tries)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // without this the server does not see that the client is gone
		began <- struct{}{}
		cancel()
		select {
		case <-r.Context().Done():
			cancelled <- true
		case <-time.After(10 * time.Second): // so that the test ends if nothing cancels
			cancelled <- false
		}
	}))
	t.Cleanup(s.Close)
	traces := New(Settings{Endpoint: s.URL, Timeout: time.Hour})
	traces.Start()
	record(traces, "tools/list")
	traces.Shutdown(ctx)
	switch {
	case len(began) != 1:
		t.Errorf("the collector got %d requests", len(began))
	case !<-cancelled:
		t.Error("Shutdown did not cancel the request")
	}
	New(Settings{Endpoint: s.URL}).Shutdown(t.Context()) // never started
}
