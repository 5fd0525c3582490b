package metrics

import (
	"runtime"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A collector exposes metrics and a snapshot to Prometheus.
type collector struct {
	*Metrics
	snapshot func() observe.Snapshot
	version  string
}

// The names of the semantic conventions for MCP, which are in development and may change.
// Labels that do not apply are empty.
var (
	serverOperation = describe("mcp_server_operation_duration_seconds", "Duration of client requests.", "mcp_method_name", "upstream", "gen_ai_tool_name", "error_type")
	clientOperation = describe("mcp_client_operation_duration_seconds", "Duration of requests to upstreams.", "mcp_method_name", "upstream", "error_type")
	serverSession   = describe("mcp_server_session_duration_seconds", "Duration of client sessions.", "transport", "era", "error_type")
	clientSession   = describe("mcp_client_session_duration_seconds", "Lifetime of servers that run here, and of sessions with remote servers.", "upstream", "error_type")
)

// Our own metrics.
var (
	build          = describe("mcp_proxy_build_info", "Build of the program.", "version", "goversion")
	calls          = describe("mcp_proxy_calls_total", "Finished client requests.", "principal", "outcome")
	callsOpen      = describe("mcp_proxy_calls_in_flight", "Client requests in flight.")
	requestsOpen   = describe("mcp_proxy_requests_in_flight", "Requests to upstreams in flight.", "upstream")
	suspended      = describe("mcp_proxy_suspended_calls", "Calls suspended until the client answers a server's question.", "upstream")
	listens        = describe("mcp_proxy_listens", "Open subscriptions of clients.")
	queueBytes     = describe("mcp_proxy_queue_bytes", "Bytes queued for clients and upstreams.", "side", "upstream")
	sessionsOpen   = describe("mcp_proxy_sessions", "Client sessions.", "transport", "era")
	sessionsMost   = describe("mcp_proxy_sessions_limit", "Maximum number of client sessions (limits.sessions), not counting stdio.")
	up             = describe("mcp_proxy_upstream_up", "0 while an upstream that runs here is failing and none of its servers runs, otherwise 1.", "upstream", "required")
	serversNow     = describe("mcp_proxy_upstream_servers", "Servers and remote sessions that are starting, running or stopping.", "upstream", "state")
	serverStarts   = describe("mcp_proxy_upstream_starts_total", "Starts of servers and remote sessions.", "upstream")
	serverAgain    = describe("mcp_proxy_upstream_restarts_total", "Upstream restarts after a failure.", "upstream")
	serverEnds     = describe("mcp_proxy_upstream_ends_total", "Ends of servers and remote sessions.", "upstream", "outcome", "cause")
	linkUp         = describe("mcp_proxy_link_up", "1 while the link to a host is up, otherwise 0.", "link", "required")
	replicas       = describe("mcp_proxy_replicas", "Proxies behind the same address, with this one.", "state")
	replicaLinks   = describe("mcp_proxy_replica_links", "Links to other replicas: up, down, or idle while no request needed one.", "state")
	replicaWaiting = describe("mcp_proxy_replica_sessions_waiting", "Sessions that other replicas have moved here, and that their clients have not used since.")
	replicaKept    = describe("mcp_proxy_replica_sessions_kept", "Sessions of other replicas that go on here if these die.")
	replicaMoves   = describe("mcp_proxy_replica_sessions_total", "Sessions that other replicas have moved here (taken), or had when they died (adopted), those of them that clients have used since (resumed), and those of this one that others have continued (yielded).", "outcome")
	replicaLookups = describe("mcp_proxy_replica_lookups_total", "Searches for the session of a replica that is gone.", "outcome")
	forwards       = describe("mcp_proxy_replica_request_duration_seconds", "Duration of HTTP requests that were passed on to another replica, until their response ended.", "http_request_method", "outcome")
	linkUpstreams  = describe("mcp_proxy_link_upstreams", "Upstreams announced by a host.", "link")
	linkLosses     = describe("mcp_proxy_link_losses_total", "Lost links.", "link")
	refused        = describe("mcp_proxy_refusals_total", "Requests refused because of the client's identity or limits.", "reason")
)

// described are all metrics.
var described []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	described = append(described, d)
	return d
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range described {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(to chan<- prometheus.Metric) {
	o := out{to}
	o.gauge(build, 1, c.version, runtime.Version())
	c.collectRequests(o)
	c.collectCalls(o)
	for k, h := range c.sessions.all() {
		o.histogram(serverSession, h, k.transport, k.era, k.errorType)
	}
	c.collectServers(o)
	for k, h := range c.forwards.all() {
		o.histogram(forwards, h, k.method, k.outcome)
	}
	for k, n := range c.losses.all() {
		o.counter(linkLosses, n.Load(), k)
	}
	for k, n := range c.refusals.all() {
		o.counter(refused, n.Load(), k)
	}
	c.collectSnapshot(o)
}

func (c *collector) collectRequests(o out) {
	for k, h := range c.requests.all() {
		o.histogram(serverOperation, h, observe.MethodOf(k.method), k.upstream, k.tool, k.errorType)
	}
	for account, ended := range c.accounts.all() {
		for i := range ended {
			if n := ended[i].Load(); n > 0 {
				o.counter(calls, n, account, string(observe.Outcomes[i]))
			}
		}
	}
}

func (c *collector) collectCalls(o out) {
	for k, h := range c.calls.all() {
		o.histogram(clientOperation, &h.histogram, observe.MethodOf(k.method), k.upstream, k.errorType)
	}
}

func (c *collector) collectServers(o out) {
	for k, h := range c.lives.all() {
		o.histogram(clientSession, h, k.upstream, k.errorType)
	}
	for k, n := range c.ends.all() {
		o.counter(serverEnds, n.Load(), k.upstream, k.outcome, k.cause)
	}
}

// collectSnapshot exposes the current state of the proxy.
func (c *collector) collectSnapshot(o out) {
	now := c.snapshot()
	c.collectUpstreams(o, now)
	sessions := make(map[sessionKey]int)
	var inFlight, open, waiting int
	for _, s := range now.Sessions {
		sessions[sessionKey{transport: s.Transport, era: s.Era}]++
		inFlight += s.InFlight
		open += s.Listens
		waiting += s.QueuedBytes
	}
	for k, n := range sessions {
		o.gauge(sessionsOpen, float64(n), k.transport, k.era)
	}
	hasClients := now.Process.Role != "host"
	if hasClients {
		o.gauge(callsOpen, float64(inFlight))
		o.gauge(listens, float64(open))
		o.gauge(sessionsMost, float64(now.Process.MaxSessions))
		o.gauge(queueBytes, float64(waiting), "client", "")
	}
	for _, t := range now.Traffic {
		o.gauge(requestsOpen, float64(t.InFlight), t.Upstream)
		if hasClients { // a host queues nothing for upstreams
			o.gauge(queueBytes, float64(t.QueuedBytes), "upstream", t.Upstream)
		}
		if t.Link == "" {
			o.gauge(suspended, float64(t.Suspended), t.Upstream)
		}
	}
	for _, l := range now.Links {
		o.gauge(linkUp, oneIf(l.Up), l.Name, strconv.FormatBool(l.Required))
		o.gauge(linkUpstreams, float64(len(l.Upstreams)), l.Name)
	}
	collectReplicas(o, now.Replicas)
}

func collectReplicas(o out, all []observe.Replica) {
	if len(all) == 0 {
		return
	}
	states, links := make(map[string]int), map[string]int{"up": 0, "down": 0, "idle": 0}
	for _, m := range all {
		states[m.State]++
		switch {
		case m.Self:
		case m.Linked:
			links["up"]++
		case m.Unreachable:
			links["down"]++
		default:
			links["idle"]++
		}
	}
	for state, n := range states {
		o.gauge(replicas, float64(n), state)
	}
	for state, n := range links {
		o.gauge(replicaLinks, float64(n), state)
	}
	if m := all[0].Moves; m != nil {
		o.gauge(replicaWaiting, float64(m.Waiting))
		o.gauge(replicaKept, float64(m.Kept))
		o.counter(replicaMoves, int64(m.Taken), "taken")
		o.counter(replicaMoves, int64(m.Resumed), "resumed")
		o.counter(replicaMoves, int64(m.Adopted), "adopted")
		o.counter(replicaMoves, int64(m.Yielded), "yielded")
		o.counter(replicaLookups, int64(m.Found), "found")
		o.counter(replicaLookups, int64(m.Missing), "missing")
	}
}

// collectUpstreams exposes the local upstreams, also those that never started, because a rate of failures needs a series
// before the first failure. Removed upstreams have none.
func (c *collector) collectUpstreams(o out, now observe.Snapshot) {
	servers, running := make(map[[2]string]int), make(map[string]bool)
	for _, u := range now.Upstreams {
		if u.State == observe.Spare {
			continue
		}
		servers[[2]string{u.Name, u.State}]++
		running[u.Name] = running[u.Name] || u.State == "running"
	}
	for k, n := range servers {
		o.gauge(serversNow, float64(n), k[0], k[1])
	}
	for _, t := range now.Traffic {
		if t.Link != "" {
			continue
		}
		o.gauge(up, oneIf(running[t.Upstream] || t.Failed.InARow == 0), t.Upstream, strconv.FormatBool(t.Required))
		s := c.servers.find(t.Upstream)
		if s == nil {
			s = new(serverCounts) // it has never started
		}
		o.counter(serverStarts, s.starts.Load(), t.Upstream)
		o.counter(serverAgain, s.restarts.Load(), t.Upstream)
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// An out collects metrics.
type out struct{ to chan<- prometheus.Metric }

func (o out) gauge(d *prometheus.Desc, value float64, labels ...string) {
	o.to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, valid(labels)...)
}

func (o out) counter(d *prometheus.Desc, value int64, labels ...string) {
	o.to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), valid(labels)...)
}

func (o out) histogram(d *prometheus.Desc, h *histogram, labels ...string) {
	o.to <- h.metric(d, valid(labels)...)
}

// valid replaces invalid UTF-8, which Prometheus refuses.
func valid(labels []string) []string {
	for i, l := range labels {
		labels[i] = strings.ToValidUTF8(l, "\uFFFD")
	}
	return labels
}
