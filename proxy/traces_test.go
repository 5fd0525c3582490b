package proxy_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

const (
	theirs      = "0af7651916cd43dd8448eb211c80319c"
	traceparent = "00-" + theirs + "-b7ad6b7169203331-01"
	around      = "4bf92f3577b34da6a3ce929d0e0e4736"
	httpParent  = "00-" + around + "-00f067aa0ba902b7-01"
	untraced    = "00-" + theirs + "-b7ad6b7169203331-00"
)

// traced has a configuration record all traces at a collector.
func traced(c *collector, edits ...func(*config.Config)) func(*config.Config) {
	return func(cfg *config.Config) {
		cfg.Traces.Endpoint = c.URL
		for _, edit := range edits {
			edit(cfg)
		}
	}
}

// told is the trace context that the server got with a call; "" for none.
func (s *naive) told(t *testing.T, call string) (parent string) {
	t.Helper()
	s.awaits(1, call)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seen := range s.seen {
		if !strings.Contains(seen, call) {
			continue
		}
		if _, rest, ok := strings.Cut(seen, `"traceparent":"`); ok {
			return rest[:strings.IndexByte(rest, '"')]
		}
	}
	return ""
}

func idOf(b []byte) string { return hex.EncodeToString(b) }

// check compares attributes of a span.
func check(t *testing.T, s *tracepb.Span, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got := text(s.Attributes, key); got != value {
			t.Errorf("%s of %s is %q, want %q: %v", key, s.Name, got, value, s.Attributes)
		}
	}
}

// A request of a client is a span. Its call to an upstream is a span below it, whose context the
// upstream gets. The parent is that of the params, else that of the HTTP request.
func TestTraces(t *testing.T) {
	for name, test := range map[string]struct {
		meta, header     string
		trace, link, has string
	}{
		"a call that says its trace":      {meta: `"traceparent":"` + traceparent + `","tracestate":"v=1","baggage":"k=v",`, trace: theirs, has: `"tracestate":"v=1","baggage":"k=v"`},
		"an HTTP request that says it":    {header: httpParent, trace: around, has: `"baggage":"user=7"`},
		"both":                            {meta: `"traceparent":"` + traceparent + `",`, header: httpParent, trace: theirs, link: around},
		"neither":                         {},
		"something else under that key":   {meta: `"traceparent":["no"],`},
		"a parent that cannot be read":    {meta: `"traceparent":"00-zz-zz-01",`, header: httpParent, trace: around},
		"a case that other readers fold":  {meta: `"traceParent":"` + traceparent + `",`, has: "traceParent"},
		"two parents in one HTTP request": {header: httpParent + "\n" + traceparent},
	} {
		t.Run(name, func(t *testing.T) {
			c, server := newCollector(t), newNaive(t)
			h := newHouseWith(t, proxy.Hooks{}, server, traced(c))
			h.a.ask("tools/list", "", "")
			body, headers := modern("1", "tools/call", "echo", `,"name":"echo"`)
			body = strings.Replace(body, `"_meta":{`, `"_meta":{`+test.meta, 1)
			for parent := range strings.Lines(test.header) {
				headers = append(headers, "Traceparent", strings.TrimSpace(parent))
			}
			if test.header != "" {
				headers = append(headers, "Baggage", "user=7")
			}
			if status, answer := h.a.do(http.MethodPost, "/mcp", body, headers...); status != http.StatusOK {
				t.Fatal(status, answer)
			}
			h.proxy.Close()

			call, request := c.only("s", "tools/call echo"), c.only("c", "tools/call echo")
			if test.trace != "" && (idOf(call.TraceId) != test.trace || len(call.ParentSpanId) == 0) {
				t.Errorf("the trace is %x below %x", call.TraceId, call.ParentSpanId)
			}
			if idOf(request.ParentSpanId) != idOf(call.SpanId) {
				t.Errorf("the request is below %x, not %x", request.ParentSpanId, call.SpanId)
			}
			if test.link == "" && len(call.Links) != 0 || test.link != "" && (len(call.Links) != 1 || idOf(call.Links[0].TraceId) != test.link) {
				t.Errorf("links %v", call.Links)
			}
			want := fmt.Sprintf("00-%x-%x-01", request.TraceId, request.SpanId)
			if strings.Contains(test.meta, "traceParent") {
				want = "" // whatever we wrote, somebody would read something else
			}
			if got := server.told(t, `"name":"echo"`); got != want {
				t.Errorf("the upstream was told %q, want %q", got, want)
			}
			server.awaits(1, `"name":"echo"`, test.has)
			check(t, call, map[string]string{
				"mcp.method.name": "tools/call", "gen_ai.tool.name": "echo", "gen_ai.operation.name": "execute_tool", "jsonrpc.request.id": "",
				"network.protocol.name": "http", "mcp.protocol.version": "2026-07-28", "mcp_proxy.upstream": "u", "mcp_proxy.era": "modern", "mcp_proxy.principal": "token:a",
				"error.type": "",
			})
			check(t, request, map[string]string{"mcp.method.name": "tools/call", "gen_ai.tool.name": "echo", "mcp_proxy.upstream": "u"})
		})
	}
}

// The context passes through a translation between eras.
func TestTracesAcrossEras(t *testing.T) {
	for era, name := range map[string]string{"legacy": "tools/call echo", "modern": "tools/call"} { // modern clients need the lists
		c, server := newCollector(t), newNaive(t)
		h := newHouseWith(t, proxy.Hooks{}, server, traced(c, func(cfg *config.Config) { cfg.Upstreams[0].Era = era }))
		if era == "legacy" {
			h.a.ask("tools/call", "echo", `,"name":"echo"`)
		} else {
			h.a.initialize().say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`)
		}
		h.proxy.Close()
		request := c.only("c", name)
		if got, want := server.told(t, `"name":"echo"`), fmt.Sprintf("00-%x-%x-01", request.TraceId, request.SpanId); got != want {
			t.Errorf("a server of the %s era was told %q, want %q", era, got, want)
		}
	}
}

// A trace that was not sampled, or not to be, changes no byte, and makes no span.
func TestUnsampledTracesChangeNothing(t *testing.T) {
	none := 0.0
	plain := func(*config.Config) {}
	never := func(cfg *config.Config) { cfg.Traces.Sample = &none }
	off := func(cfg *config.Config) { cfg.Traces = config.Traces{} }
	for name, test := range map[string]struct {
		meta, header string
		with         func(*config.Config)
		sampler      string // in the environment
	}{
		"no parent is asked, and the call says one":  {meta: `"traceparent":"` + traceparent + `"`, with: plain, sampler: "traceidratio"},
		"no parent is asked, the HTTP request has":   {header: traceparent, with: plain, sampler: "traceidratio"},
		"a parent that is not sampled":               {meta: `"traceparent":"` + untraced + `","baggage":"k=v"`, with: plain},
		"an HTTP request that is not sampled":        {header: untraced, with: plain},
		"none is sampled":                            {with: never},
		"traces are off, and the call says one":      {meta: `"traceparent":"` + traceparent + `"`, with: off},
		"traces are off, and the HTTP request does":  {header: traceparent, with: off},
		"none is sampled, and a parent is not, both": {meta: `"traceparent":"` + untraced + `"`, header: untraced, with: never},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_TRACES_SAMPLER", test.sampler)
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0")
			c, server := newCollector(t), newNaive(t)
			seen := func(call proxy.Request, _ proxy.End) {
				if call.Method != "initialize" && call.Trace != "" {
					t.Error("hooks hear of the trace", call.Trace)
				}
			}
			h := newHouseWith(t, proxy.Hooks{RequestEnded: seen}, server, traced(c, test.with))
			h.a.initialize()
			headers := h.a.headers()
			if test.header != "" {
				headers = append(headers, "Traceparent", test.header)
			}
			params := `{"name" : "echo", "arguments":{"x":1.0},"_meta":{ ` + test.meta + ` }}`
			h.a.do(http.MethodPost, "/mcp", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":`+params+`}`, headers...)
			h.proxy.Close()
			server.awaits(1, `"method":"tools/call","params":`+params)
			for _, s := range c.all() {
				if s.Name != "initialize" || test.meta+test.header == "" { // which had no parent
					t.Error("there is a span", s)
				}
			}
		})
	}
}

// What a session asks upstreams for a call is below it: initialize, and lists. What a client
// never waited for is not.
func TestTracesOfFanOut(t *testing.T) {
	c, one, two := newCollector(t), newNaive(t), newNaive(t)
	h := newHouseWith(t, proxy.Hooks{}, one, traced(c, func(cfg *config.Config) {
		cfg.Upstreams[0].Start = "eager" // else the catalog answers
		cfg.Upstreams = append(cfg.Upstreams, config.Upstream{Name: "v", Start: "eager", Remote: config.Remote{URL: two.URL}})
	}))
	h.a.initialize().say(`{"jsonrpc":"2.0","id":"one","method":"tools/list"}`)
	h.proxy.Close()
	list, below := c.only("s", "tools/list"), map[string]bool{}
	for _, s := range c.all() {
		if s.Kind == tracepb.Span_SPAN_KIND_CLIENT && s.Name == "tools/list" && idOf(s.ParentSpanId) == idOf(list.SpanId) {
			below[text(s.Attributes, "mcp_proxy.upstream")] = true
		}
	}
	if !below["u"] || !below["v"] {
		t.Error("below the list is", below, "of", c.all())
	}
	for _, s := range []*naive{one, two} {
		if parent := s.told(t, `"method":"tools/list"`); !strings.HasPrefix(parent, fmt.Sprintf("00-%x-", list.TraceId)) {
			t.Errorf("an upstream was told %q", parent)
		}
	}
	check(t, list, map[string]string{"jsonrpc.request.id": "one", "mcp.protocol.version": "2025-11-25", "mcp_proxy.upstream": "", "network.protocol.name": "http"})
}

// Spans say how a request ends: with the code of an error, a tool's own failure, a cancellation, or
// the event of a lost connection, which they have once. Hooks and the log have the trace id.
func TestTracesOfEnds(t *testing.T) {
	t.Parallel()
	c, server := newCollector(t), sdkServer()
	t.Cleanup(server.Close)
	var hooks recorder
	ids := make(chan string, 100)
	watch := hooks.hooks()
	watch.RequestEnded = func(call proxy.Request, end proxy.End) {
		hooks.ended("call", end, call.Method, call.Tool)
		if call.Method == "tools/call" {
			ids <- call.Trace
		}
	}
	log := new(journal)
	p, _ := serveWith(t, config.Config{Traces: config.Traces{Endpoint: c.URL}, Logs: config.Logs{Calls: true}, Upstreams: []config.Upstream{
		{Name: "a", Remote: config.Remote{URL: server.URL}, Era: "legacy"}, {Name: "b", Process: config.Process{Command: "no-such-command"}},
	}}, proxy.Options{Hooks: watch, Log: logTo(log)})
	client := dialStdio(t, p)
	client.call(1, "a__none")
	client.hears(`"id":1`)
	client.say(`{"jsonrpc":"2.0","id":2,"method":"thought/of"}`)
	client.hears(`"id":2`)
	client.call(4, "a__hang")
	<-server.hanging
	client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}`)
	hooks.await(t, "call tools/call hang cancelled")
	client.call(5, "a__hang")
	<-server.hanging
	server.CloseClientConnections()
	client.hears(`"id":5`)
	client.leave()
	p.Close()

	check(t, c.only("s", "_OTHER"), map[string]string{"error.type": "-32603", "rpc.response.status_code": "-32603", "network.transport": "pipe", "mcp.method.name": "_OTHER"})
	var ends []string
	for _, s := range c.all() {
		if s.Name != "tools/call" && s.Name != "tools/call hang" {
			continue
		}
		if s.Kind == tracepb.Span_SPAN_KIND_SERVER {
			if id := <-ids; id != idOf(s.TraceId) {
				t.Errorf("the hook was told trace %s, and it was %x", id, s.TraceId)
			}
			if n := strings.Count(log.String(), "trace="+idOf(s.TraceId)); n != 1 {
				t.Errorf("the trace is in %d lines of the log\n%s", n, log)
			}
		}
		events := 0
		for _, e := range s.Events {
			if e.Name == "mcp_proxy.event" && len(text(e.Attributes, "mcp_proxy.event.id")) == 8 {
				events++
			}
		}
		ends = append(ends, fmt.Sprintln(s.Kind, text(s.Attributes, "mcp_proxy.outcome"), text(s.Attributes, "error.type"), s.Status.GetCode(), events))
	}
	const want = `SPAN_KIND_SERVER error -32602 STATUS_CODE_ERROR 0
SPAN_KIND_CLIENT cancelled  STATUS_CODE_UNSET 0
SPAN_KIND_SERVER cancelled  STATUS_CODE_UNSET 0
SPAN_KIND_CLIENT closed closed STATUS_CODE_ERROR 1
SPAN_KIND_SERVER closed -32603 STATUS_CODE_ERROR 0
`
	if got := strings.Join(ends, ""); got != want {
		t.Errorf("ends are\n%s, want\n%s", got, want)
	}
}

// A collector that is not there, or refuses, is one line in the log. No call waits for it,
// nor does the end for long.
func TestCollectorFails(t *testing.T) {
	t.Parallel()
	refusing := newCollector(t)
	refusing.status = http.StatusUnauthorized
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else nobody sees that the client has gone
		<-r.Context().Done()
	}))
	t.Cleanup(hanging.Close)
	for name, url := range map[string]string{"is not there": "http://user:MARK-password@127.0.0.1:1/?key=MARK-key", "refuses": refusing.URL, "hangs": hanging.URL} {
		t.Run(name, func(t *testing.T) {
			server := newNaive(t)
			h := newHouseWith(t, proxy.Hooks{}, server, func(cfg *config.Config) { cfg.Traces.Endpoint = url })
			h.a.initialize()
			if status, answer := h.a.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`); status != http.StatusOK {
				t.Error(status, answer)
			}
			began := time.Now()
			h.proxy.Close()
			if took := time.Since(began); took > 5*time.Second {
				t.Error("the end took", took)
			}
			log := h.log.String()
			if n := strings.Count(log, "traces cannot be exported"); n != 1 || strings.Contains(log, mark) {
				t.Errorf("%d lines:\n%s", n, log)
			}
		})
	}
}

// Traces have nothing of what messages say, nor of what requests prove themselves with.
func TestTracesHaveNoPayload(t *testing.T) {
	c, server := newCollector(t), newNaive(t)
	h := newHouseWith(t, proxy.Hooks{}, server, traced(c))
	h.a.initialize().say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	for i, request := range []string{
		`"method":"tools/call","params":{"name":"echo","arguments":{"k":"MARK-argument"},"_meta":{"x":"MARK-meta","traceparent":"MARK-parent","tracestate":"MARK-state"}}`,
		`"method":"tools/call","params":{"name":"MARK-tool"}`, `"method":"prompts/get","params":{"name":"MARK-prompt","arguments":{"k":"MARK-argument"}}`,
		`"method":"resources/read","params":{"uri":"file:///MARK-uri"}`, `"method":"MARK/method","params":{"MARK-key":"MARK-value"}`,
		`"method":"completion/complete","params":{"ref":{"type":"ref/resource","uri":"file:///MARK-uri"},"argument":{"name":"a","value":"MARK-value"}}`,
	} {
		headers := append(h.a.headers(), "Cookie", "MARK-cookie", "X-Key", "MARK-header", "Tracestate", "k=MARK-state", "Baggage", "k=MARK-baggage")
		h.a.do(http.MethodPost, "/mcp?key=MARK-query", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,%s}`, i+2, request), headers...)
	}
	h.proxy.Close()
	c.only("s", "tools/call echo")
	if raw := c.raw.String(); strings.Contains(raw, "MARK") || strings.Contains(raw, "token-of-a") {
		t.Errorf("the collector got %q", raw)
	}
}

// What the environment says, and cannot be used, is a line in the log: it may be meant for
// others. What the configuration says is a mistake.
func TestTracesOff(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"the protocol":    {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
		"the URL":         {"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4317"},
		"the certificate": {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1", "OTEL_EXPORTER_OTLP_CERTIFICATE": "/there/is/none"},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range env {
				t.Setenv(key, value)
			}
			log := new(journal)
			cfg := config.Config{File: "f", Upstreams: []config.Upstream{{Name: "a", Process: config.Process{Command: "x"}}}}
			p, err := proxy.New(&cfg, proxy.Options{Log: logTo(log)})
			if err != nil || strings.Count(log.String(), "traces are off") != 1 {
				t.Fatal(err, log)
			}
			p.Close()
			quiet := new(journal)
			if p, err = proxy.New(proxy.Quiet(&cfg), proxy.Options{Log: logTo(quiet)}); err != nil || strings.Contains(quiet.String(), "trace") {
				t.Error(err, quiet)
			}
			p.Close()
			cfg.Traces = config.Traces{Endpoint: "https://127.0.0.1", TLS: config.TLS{CA: "/there/is/none"}}
			if _, err := proxy.New(&cfg, proxy.Options{}); err == nil || !strings.HasPrefix(err.Error(), "f: traces.tls: ") {
				t.Error(err)
			}
		})
	}
}
