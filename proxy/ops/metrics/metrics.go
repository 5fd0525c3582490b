// Package metrics counts what hooks report, for Prometheus and for the last minute in the status. A hook updates atomic
// counters; a scrape reads them and takes a snapshot. The package starts no goroutines.
//
// From the top down: scrape.go answers scrapers; collector.go names the metrics, and process.go those of the process;
// metrics.go has the hooks; series.go, histogram.go, table.go and recent.go are what these update; text.go writes.
package metrics

import (
	"cmp"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Metrics count what hooks report, for Prometheus, and the answers of upstreams in the last minute. New makes them.
//
// A request costs two updates of histograms and two of counters, without locks or allocations. A listed tool even saves
// the lookup, see [series]. Requests in flight come from the snapshot. A label is never text from a client, see
// [Metrics.request].
type Metrics struct {
	version string // of the program

	requests table[requestKey, histogram] // of clients
	tools    table[toolKey, struct{}]     // allowed as labels of requests
	accounts table[string, outcomes]      // of requests, by account

	calls    table[callKey, answers]      // to upstreams
	recent   table[string, minute]        // calls of the last minute, by upstream
	sessions table[sessionKey, histogram] // of clients
	servers  table[string, serverCounts]  // by upstream that runs here
	lives    table[lifeKey, histogram]    // of their processes, and of sessions with them
	ends     table[endKey, atomic.Int64]  // of those

	forwards table[forwardKey, histogram] // requests that other replicas answer

	losses   table[string, atomic.Int64] // by link
	refusals table[string, atomic.Int64] // by reason
}

type (
	requestKey struct{ method, upstream, tool, errorType string }
	toolKey    struct{ upstream, tool string }
	callKey    struct{ method, upstream, errorType string }
	sessionKey struct{ transport, era, errorType string }
	lifeKey    struct{ upstream, errorType string }
	endKey     struct{ upstream, outcome, cause string }
	forwardKey struct{ method, outcome string }
)

// A serverCounts counts the starts of a local upstream.
type serverCounts struct{ starts, restarts atomic.Int64 }

const (
	mostTools   = 1000  // with series of their own
	longestTool = 128   // bytes of a tool's name, as MCP advises
	mostNames   = 1000  // of upstreams, accounts, links
	mostSeries  = 10000 // of any other kind
)

// other is the label value for everything beyond the limits, as in the semantic conventions.
const other = observe.Other

// codes are the labels of the error codes of MCP and JSON-RPC. Servers may use any others.
var codes = map[int]string{
	-32700: "-32700", -32600: "-32600", -32601: "-32601", -32602: "-32602", -32603: "-32603",
	-32800: "-32800", // cancelled
	-32000: "-32000", -32001: "-32001", -32002: "-32002", -32003: "-32003", -32004: "-32004",
	-32020: "-32020", -32021: "-32021", -32022: "-32022", -32042: "-32042",
}

func codeLabel(code int) string { return cmp.Or(codes[code], other) }

// New returns metrics of nothing yet, of a program of that version.
func New(version string) *Metrics {
	m := &Metrics{version: cmp.Or(version, "unknown")}
	m.requests.most, m.tools.most, m.accounts.most = mostSeries, mostTools, mostNames
	m.calls.most, m.sessions.most = mostSeries, mostNames
	m.servers.most, m.lives.most, m.ends.most = mostNames, mostSeries, mostSeries
	m.losses.most, m.refusals.most, m.recent.most = mostNames, mostNames, mostNames
	m.forwards.most = mostNames
	return m
}

// Hooks returns what fills the metrics.
func (m *Metrics) Hooks() observe.Hooks {
	return observe.Hooks{
		SessionEnded:    m.left,
		RequestEnded:    m.requested,
		CallEnded:       m.called,
		UpstreamStarted: m.started,
		UpstreamEnded:   m.ended,
		LinkLost:        func(l observe.Link, _ observe.End) { m.losses.get(l.Name, other).Add(1) },
		Forwarded:       m.forwarded,
		Refused:         func(reason string) { m.refusals.get(reason, other).Add(1) },
	}
}

func (m *Metrics) left(s observe.Session, end observe.End) {
	failed := end.SessionError()
	m.sessions.get(sessionKey{s.Transport, s.Era, failed}, sessionKey{other, other, failed}).observe(end.Took, "")
}

func (m *Metrics) requested(r observe.Request, end observe.End) {
	k := seriesIn(r.Listed, r.Method, end.Outcome)
	k.requests(func() *histogram { return m.request(&r, end.RequestError(codeLabel)) }).observe(end.Took, r.Trace)
	m.accounts.get(r.Account, other).add(end.Outcome)
}

// request returns the histogram of a client's request. The labels are methods of the protocol, and upstreams from the
// configuration or announced by hosts. Clients can make up names of tools, so only those that an upstream lists are
// labels.
func (m *Metrics) request(r *observe.Request, failed string) *histogram {
	k := requestKey{r.Method, r.Upstream, r.Tool, failed}
	if r.Tool != "" && r.Listed == nil || len(r.Tool) > longestTool {
		k.tool = other
	}
	if h := m.requests.find(k); h != nil {
		return h
	}
	if k.tool != "" && k.tool != other && m.tools.add(toolKey{k.upstream, k.tool}) == nil {
		k.tool = other
	}
	return m.requests.get(k, requestKey{method: k.method, upstream: other, errorType: failed})
}

func (m *Metrics) called(c observe.Call, end observe.End) {
	k := seriesIn(c.Listed, c.Method, end.Outcome)
	a := k.calls(func() *answers { return m.call(&c, end.CallError(codeLabel)) })
	a.observe(end.Took, c.Trace)
	if recent := a.recent.Load(); recent != nil {
		recent.add(&end)
	}
}

// call returns the answers that a call to an upstream is counted in.
func (m *Metrics) call(c *observe.Call, failed string) *answers {
	upstream := c.Upstream
	a := m.calls.add(callKey{c.Method, upstream, failed})
	if a == nil { // the table is full
		upstream = other
		a = m.calls.get(callKey{c.Method, upstream, failed}, callKey{c.Method, upstream, failed})
	}
	if c.Method != mcp.MethodListen && a.recent.Load() == nil { // a listen lasts until the client ends it
		a.recent.Store(m.recent.get(upstream, other))
	}
	return a
}

func (m *Metrics) started(u observe.Upstream) {
	s := m.servers.get(u.Name, other)
	s.starts.Add(1)
	if u.Failures > 0 {
		s.restarts.Add(1)
	}
}

func (m *Metrics) ended(u observe.Upstream, end observe.End) {
	m.ends.get(endKey{u.Name, string(end.Outcome), end.Cause}, endKey{other, string(end.Outcome), end.Cause}).Add(1)
	if end.Took > 0 { // there was a session
		failed := end.SessionError()
		m.lives.get(lifeKey{u.Name, failed}, lifeKey{other, failed}).observe(end.Took, "")
	}
}

func (m *Metrics) forwarded(f observe.Forwarded, end observe.End) {
	k := forwardKey{f.Method, string(end.Outcome)}
	m.forwards.get(k, k).observe(end.Took, "")
}
