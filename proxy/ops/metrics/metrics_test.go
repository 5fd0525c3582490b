package metrics

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// scrape returns what m shows to a scraper that accepts a format.
func scrape(t *testing.T, m *Metrics, accept string, now observe.Snapshot) string {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	m.Handler(func() observe.Snapshot { return now }).ServeHTTP(w, r)
	body, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != http.StatusOK {
		t.Fatal(w.Code, err, string(body))
	}
	return string(body)
}

// ours are the lines of a scrape about what hooks and snapshots tell.
func ours(text string) (lines []string) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "mcp_") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// everything returns metrics of all that can happen, and a snapshot with all that there can
// be.
func everything() (*Metrics, observe.Snapshot) {
	m := New("v1.2.3")
	h := m.Hooks()
	call := observe.Request{Account: "token:ci", Method: "tools/call", Upstream: "files", Tool: "read", Listed: new(atomic.Value)}
	h.RequestEnded(call, observe.End{Took: 30 * time.Millisecond, Outcome: observe.OK})
	request := observe.Call{Upstream: "files", Method: "tools/call", Listed: call.Listed}
	h.CallEnded(request, observe.End{Took: 10 * time.Minute, Outcome: observe.Closed, Cause: "exited"})
	h.SessionEnded(observe.Session{Transport: "http", Era: "modern"}, observe.End{Took: time.Second, Outcome: observe.OK})
	h.UpstreamStarted(observe.Upstream{Name: "files"})
	h.UpstreamStarted(observe.Upstream{Name: "files", Failures: 1})
	h.UpstreamEnded(observe.Upstream{Name: "files"}, observe.End{Took: 3 * time.Second, Outcome: observe.Failed, Cause: "exited"})
	h.LinkLost(observe.Link{Name: "far"}, observe.End{})
	h.Forwarded(observe.Forwarded{Method: "POST"}, observe.End{Took: 30 * time.Millisecond, Outcome: observe.OK})
	h.Forwarded(observe.Forwarded{Method: "GET"}, observe.End{Took: time.Minute, Outcome: observe.Closed})
	h.Refused("invalid_token")
	return m, observe.Snapshot{
		Process:   observe.Process{MaxSessions: 9},
		Upstreams: []observe.Upstream{{Name: "files", State: "running"}, {Name: "files", State: "stopping"}, {Name: "files", State: observe.Spare}},
		Sessions:  []observe.Session{{Transport: "stdio", Era: "legacy", Listens: 1, QueuedBytes: 7}, {Transport: "stdio", Era: "legacy", Listens: 2, QueuedBytes: 8, InFlight: 1}},
		Traffic:   []observe.Traffic{{Upstream: "files", Required: true, InFlight: 1, Suspended: 3, QueuedBytes: 5, Failed: observe.Failure{InARow: 2}}, {Upstream: "bad", Failed: observe.Failure{InARow: 5}}, {Upstream: "idle"}, {Upstream: "a", Link: "far", QueuedBytes: 6}},
		Replicas:  []observe.Replica{{Self: true, State: "ready"}, {State: "ready", Linked: true}, {State: "draining", Unreachable: true}},
		Links:     []observe.Link{{Name: "far", Required: true, Up: true, Upstreams: []string{"a", "b"}}},
	}
}

// Each hook and each part of a snapshot is seen, in series that Prometheus can read.
func TestMetrics(t *testing.T) {
	m, now := everything()
	text := scrape(t, m, "text/plain", now)
	if strings.Contains(text, `state="spare"`) {
		t.Error("a spare process counts as a server")
	}
	for _, want := range []string{
		`mcp_server_operation_duration_seconds_bucket{error_type="",gen_ai_tool_name="read",mcp_method_name="tools/call",upstream="files",le="0.02"} 0`,
		`mcp_server_operation_duration_seconds_bucket{error_type="",gen_ai_tool_name="read",mcp_method_name="tools/call",upstream="files",le="0.05"} 1`,
		`mcp_server_operation_duration_seconds_sum{error_type="",gen_ai_tool_name="read",mcp_method_name="tools/call",upstream="files"} 0.03`,
		`mcp_client_operation_duration_seconds_bucket{error_type="closed",mcp_method_name="tools/call",upstream="files",le="300"} 0`,
		`mcp_client_operation_duration_seconds_count{error_type="closed",mcp_method_name="tools/call",upstream="files"} 1`,
		`mcp_server_session_duration_seconds_count{era="modern",error_type="",transport="http"} 1`,
		`mcp_client_session_duration_seconds_sum{error_type="exited",upstream="files"} 3`,
		`mcp_proxy_calls_total{outcome="ok",principal="token:ci"} 1`,
		`mcp_proxy_calls_in_flight 1`,
		`mcp_proxy_requests_in_flight{upstream="files"} 1`,
		`mcp_proxy_upstream_starts_total{upstream="files"} 2`,
		`mcp_proxy_upstream_restarts_total{upstream="files"} 1`,
		`mcp_proxy_upstream_ends_total{cause="exited",outcome="error",upstream="files"} 1`,
		`mcp_proxy_upstream_up{required="true",upstream="files"} 1`,
		`mcp_proxy_upstream_up{required="false",upstream="bad"} 0`,
		`mcp_proxy_upstream_up{required="false",upstream="idle"} 1`,
		`mcp_proxy_upstream_starts_total{upstream="idle"} 0`,
		`mcp_proxy_listens 3`,
		`mcp_proxy_queue_bytes{side="client",upstream=""} 15`,
		`mcp_proxy_queue_bytes{side="upstream",upstream="files"} 5`,
		`mcp_proxy_queue_bytes{side="upstream",upstream="a"} 6`,
		`mcp_proxy_suspended_calls{upstream="files"} 3`,
		`mcp_proxy_upstream_servers{state="stopping",upstream="files"} 1`,
		`mcp_proxy_sessions{era="legacy",transport="stdio"} 2`,
		`mcp_proxy_link_up{link="far",required="true"} 1`,
		`mcp_proxy_sessions_limit 9`,
		`mcp_proxy_link_upstreams{link="far"} 2`,
		`mcp_proxy_link_losses_total{link="far"} 1`,
		`mcp_proxy_refusals_total{reason="invalid_token"} 1`,
		`mcp_proxy_replicas{state="ready"} 2`,
		`mcp_proxy_replicas{state="draining"} 1`,
		`mcp_proxy_replica_links{state="up"} 1`,
		`mcp_proxy_replica_links{state="down"} 1`,
		`mcp_proxy_replica_links{state="idle"} 0`,
		`mcp_proxy_replica_request_duration_seconds_bucket{http_request_method="POST",outcome="ok",le="0.05"} 1`,
		`mcp_proxy_replica_request_duration_seconds_count{http_request_method="GET",outcome="closed"} 1`,
		`,version="v1.2.3"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("no %s in\n%s", want, strings.Join(ours(text), "\n"))
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if families, err := parser.TextToMetricFamilies(strings.NewReader(text)); err != nil || families["go_goroutines"] == nil {
		t.Error(err, len(families))
	}
	open := scrape(t, m, "application/openmetrics-text; version=1.0.0", now)
	if !strings.HasSuffix(open, "# EOF\n") || !strings.Contains(open, "# TYPE mcp_proxy_calls counter\n") {
		t.Errorf("no OpenMetrics: %.200s", open)
	}
}

// What stays with a tool or prompt that is listed counts nothing else: neither what ends in
// another way, nor what another method has to do with it.
func TestSeriesOfListed(t *testing.T) {
	m := New("")
	h := m.Hooks()
	prompt := new(atomic.Value)
	for range 2 {
		for _, method := range []string{"prompts/get", "completion/complete"} {
			for _, outcome := range []observe.Outcome{observe.OK, observe.Cancelled, observe.OK} {
				end := observe.End{At: time.Now(), Took: time.Second, Outcome: outcome}
				h.CallEnded(observe.Call{Upstream: "files", Method: method, Listed: prompt}, end)
				h.RequestEnded(observe.Request{Account: "anonymous", Method: method, Upstream: "files", Prompt: "hello", Listed: prompt}, end)
			}
		}
	}
	text := scrape(t, m, "text/plain", observe.Snapshot{})
	for _, method := range []string{"prompts/get", "completion/complete"} {
		for failed, n := range map[string]int{"": 4, "cancelled": 2} {
			for _, want := range []string{
				fmt.Sprintf(`mcp_server_operation_duration_seconds_count{error_type=%q,gen_ai_tool_name="",mcp_method_name=%q,upstream="files"} %d`, failed, method, n),
				fmt.Sprintf(`mcp_client_operation_duration_seconds_count{error_type=%q,mcp_method_name=%q,upstream="files"} %d`, failed, method, n),
			} {
				if !strings.Contains(text, want+"\n") {
					t.Errorf("no %s in\n%s", want, strings.Join(ours(text), "\n"))
				}
			}
		}
	}
}

// A hundred thousand names that clients have made up are one series. Listed tools have at most a
// thousand.
func TestSeriesAreBounded(t *testing.T) {
	m := New("")
	h := m.Hooks()
	for i := range 100_000 {
		made := observe.Request{Account: "anonymous", Method: "tools/call", Upstream: "sole", Tool: fmt.Sprint("made up ", i)}
		h.RequestEnded(made, observe.End{Outcome: observe.Failed, Code: -i})
		listed := observe.Request{Account: fmt.Sprint("user:", i), Method: "tools/call", Upstream: "many", Tool: fmt.Sprint("tool", i), Listed: new(atomic.Value)}
		h.RequestEnded(listed, observe.End{Outcome: observe.OK})
	}
	text := scrape(t, m, "text/plain", observe.Snapshot{})
	if got := strings.Count(text, "mcp_server_operation_duration_seconds_count{"); got != mostTools+2+len(codes) {
		t.Errorf("%d series of calls, want %d", got, mostTools+2+len(codes))
	}
	if got := strings.Count(text, "mcp_proxy_calls_total{"); got > mostNames+1 {
		t.Errorf("%d series of principals", got)
	}
	for _, rest := range []string{
		`mcp_server_operation_duration_seconds_count{error_type="_OTHER",gen_ai_tool_name="_OTHER",mcp_method_name="tools/call",upstream="sole"} 99985`,
		`mcp_server_operation_duration_seconds_count{error_type="",gen_ai_tool_name="_OTHER",mcp_method_name="tools/call",upstream="many"} 99000`,
	} {
		if !strings.Contains(text, rest+"\n") {
			t.Errorf("no %s", rest)
		}
	}
}

// What went wrong has the words of the semantic conventions.
func TestErrorTypes(t *testing.T) {
	closed := observe.End{Outcome: observe.Closed, Code: -32603, Cause: "exited"}
	for _, test := range []struct {
		end                    observe.End
		call, request, session string
	}{
		{observe.End{Outcome: observe.OK}, "", "", ""},
		{observe.End{Outcome: observe.OK, Cause: "client_gone"}, "", "", ""},
		{observe.End{Outcome: observe.Failed, Code: -32602}, "-32602", "-32602", "_OTHER"},
		{observe.End{Outcome: observe.Failed, Code: 4711}, "_OTHER", "_OTHER", "_OTHER"},
		{observe.End{Outcome: observe.Failed}, "_OTHER", "_OTHER", "_OTHER"},
		{observe.End{Outcome: observe.ToolFailed}, "tool_error", "tool_error", "tool_error"},
		{observe.End{Outcome: observe.Cancelled}, "cancelled", "cancelled", "cancelled"},
		{closed, "-32603", "closed", "exited"},
		{observe.End{Outcome: observe.Timeout, Code: -32603}, "-32603", "timeout", "timeout"},
	} {
		if call, request, session := test.end.RequestError(codeLabel), test.end.CallError(codeLabel), test.end.SessionError(); call != test.call || request != test.request || session != test.session {
			t.Errorf("%+v: %q %q %q", test.end, call, request, session)
		}
	}
}

// The newest trace in each bucket is an example, for scrapers that understand them.
func TestExemplars(t *testing.T) {
	m := New("")
	tell := m.Hooks().RequestEnded
	for _, traced := range []struct {
		took  time.Duration
		trace string
	}{
		{30 * time.Millisecond, "0af7651916cd43dd8448eb211c80319c"},
		{40 * time.Millisecond, "4bf92f3577b34da6a3ce929d0e0e4736"},
		{45 * time.Millisecond, ""},
		{time.Hour, "ffffffffffffffffffffffffffffffff"},
	} {
		tell(observe.Request{Method: "tools/call", Upstream: "files", Trace: traced.trace}, observe.End{Outcome: observe.OK, Took: traced.took})
	}
	open := scrape(t, m, "application/openmetrics-text; version=1.0.0", observe.Snapshot{})
	for _, want := range []string{
		`upstream="files",le="0.05"} 3 # {trace_id="4bf92f3577b34da6a3ce929d0e0e4736"} 0.04 `,
		`upstream="files",le="+Inf"} 4 # {trace_id="ffffffffffffffffffffffffffffffff"} 3600.0 `,
	} {
		if !strings.Contains(open, want) {
			t.Errorf("no %s in\n%s", want, strings.Join(ours(open), "\n"))
		}
	}
	if text := scrape(t, m, "text/plain", observe.Snapshot{}); strings.Contains(open, "0af76519") || strings.Contains(text, "trace_id") {
		t.Error("an old trace, or one in a format without them")
	}
}

// A call takes no memory.
func TestCallsAllocateNothing(t *testing.T) {
	end := aCall(New("").Hooks())
	if n := testing.AllocsPerRun(100, end); n > 0 {
		t.Errorf("a call allocates %v times", n)
	}
}

func BenchmarkCall(b *testing.B) {
	call := aCall(New("").Hooks())
	b.ReportAllocs()
	for b.Loop() {
		call()
	}
}

func BenchmarkCallParallel(b *testing.B) {
	h := New("").Hooks()
	b.RunParallel(func(pb *testing.PB) {
		call := aCall(h)
		for pb.Next() {
			call()
		}
	})
}

// aCall returns what tells hooks of one call and its request.
func aCall(h observe.Hooks) func() {
	call := observe.Request{Account: "anonymous", Method: "tools/call", Upstream: "files", Tool: "read", Listed: new(atomic.Value)}
	request := observe.Call{Upstream: "files", Method: "tools/call", Listed: call.Listed}
	end := observe.End{Took: 3 * time.Millisecond, Outcome: observe.OK}
	return func() {
		h.CallEnded(request, end)
		h.RequestEnded(call, end)
	}
}
