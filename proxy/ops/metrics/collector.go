package metrics

import (
	"runtime"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// The names of the semantic conventions for MCP, which are in development and may change.
// Labels that do not apply are empty.
var (
	serverOperation = describe("mcp_server_operation_duration_seconds", "Duration of client requests.", "error_type", "gen_ai_tool_name", "mcp_method_name", "upstream")
	clientOperation = describe("mcp_client_operation_duration_seconds", "Duration of requests to upstreams.", "error_type", "mcp_method_name", "upstream")
	serverSession   = describe("mcp_server_session_duration_seconds", "Duration of client sessions.", "era", "error_type", "transport")
	clientSession   = describe("mcp_client_session_duration_seconds", "Lifetime of servers that run here, and of sessions with remote servers.", "error_type", "upstream")
)

// Our own metrics.
var (
	build          = describe("mcp_proxy_build_info", "Build of the program.", "goversion", "version")
	calls          = describe("mcp_proxy_calls_total", "Finished client requests.", "outcome", "principal")
	callsOpen      = describe("mcp_proxy_calls_in_flight", "Client requests in flight.")
	requestsOpen   = describe("mcp_proxy_requests_in_flight", "Requests to upstreams in flight.", "upstream")
	suspended      = describe("mcp_proxy_suspended_calls", "Calls suspended until the client answers a server's question.", "upstream")
	listens        = describe("mcp_proxy_listens", "Open subscriptions of clients.")
	queueBytes     = describe("mcp_proxy_queue_bytes", "Bytes queued for clients and upstreams.", "side", "upstream")
	sessionsOpen   = describe("mcp_proxy_sessions", "Client sessions.", "era", "transport")
	sessionsMost   = describe("mcp_proxy_sessions_limit", "Maximum number of client sessions (limits.sessions), not counting stdio.")
	up             = describe("mcp_proxy_upstream_up", "0 while an upstream that runs here is failing and none of its servers runs, otherwise 1.", "required", "upstream")
	serversNow     = describe("mcp_proxy_upstream_servers", "Servers and remote sessions that are starting, running or stopping.", "state", "upstream")
	serverStarts   = describe("mcp_proxy_upstream_starts_total", "Starts of servers and remote sessions.", "upstream")
	serverAgain    = describe("mcp_proxy_upstream_restarts_total", "Upstream restarts after a failure.", "upstream")
	serverEnds     = describe("mcp_proxy_upstream_ends_total", "Ends of servers and remote sessions.", "cause", "outcome", "upstream")
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

// collect returns all metrics: what hooks have counted, what the process uses, and at last the state in a new snapshot.
func (m *Metrics) collect(snapshot func() observe.Snapshot) out {
	o := make(out)
	o.addRuntime()
	o.addProcess()
	o.gauge(build, 1, runtime.Version(), m.version)
	m.collectRequests(o)
	m.collectCalls(o)
	for k, h := range m.sessions.all() {
		o.add(serverSession, "histogram", h, k.era, k.errorType, k.transport)
	}
	m.collectServers(o)
	for k, h := range m.forwards.all() {
		o.add(forwards, "histogram", h, k.method, k.outcome)
	}
	for k, n := range m.losses.all() {
		o.counter(linkLosses, float64(n.Load()), k)
	}
	for k, n := range m.refusals.all() {
		o.counter(refused, float64(n.Load()), k)
	}
	m.collectSnapshot(o, snapshot())
	return o
}

func (m *Metrics) collectRequests(o out) {
	for k, h := range m.requests.all() {
		o.add(serverOperation, "histogram", h, k.errorType, k.tool, observe.MethodOf(k.method), k.upstream)
	}
	for account, ended := range m.accounts.all() {
		for i := range ended {
			if n := ended[i].Load(); n > 0 {
				o.counter(calls, float64(n), string(observe.Outcomes[i]), account)
			}
		}
	}
}

func (m *Metrics) collectCalls(o out) {
	for k, h := range m.calls.all() {
		o.add(clientOperation, "histogram", &h.histogram, k.errorType, observe.MethodOf(k.method), k.upstream)
	}
}

func (m *Metrics) collectServers(o out) {
	for k, h := range m.lives.all() {
		o.add(clientSession, "histogram", h, k.errorType, k.upstream)
	}
	for k, n := range m.ends.all() {
		o.counter(serverEnds, float64(n.Load()), k.cause, k.outcome, k.upstream)
	}
}

// collectSnapshot exposes the current state of the proxy.
func (m *Metrics) collectSnapshot(o out, now observe.Snapshot) {
	m.collectUpstreams(o, now)
	sessions := make(map[sessionKey]int)
	var inFlight, open, waiting int
	for _, s := range now.Sessions {
		sessions[sessionKey{transport: s.Transport, era: s.Era}]++
		inFlight += s.InFlight
		open += s.Listens
		waiting += s.QueuedBytes
	}
	for k, n := range sessions {
		o.gauge(sessionsOpen, float64(n), k.era, k.transport)
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
		o.counter(replicaMoves, float64(m.Taken), "taken")
		o.counter(replicaMoves, float64(m.Resumed), "resumed")
		o.counter(replicaMoves, float64(m.Adopted), "adopted")
		o.counter(replicaMoves, float64(m.Yielded), "yielded")
		o.counter(replicaLookups, float64(m.Found), "found")
		o.counter(replicaLookups, float64(m.Missing), "missing")
	}
}

// collectUpstreams exposes the local upstreams, also those that never started, because a rate of failures needs a series
// before the first failure. Removed upstreams have none.
func (m *Metrics) collectUpstreams(o out, now observe.Snapshot) {
	servers, running := make(map[[2]string]int), make(map[string]bool)
	for _, u := range now.Upstreams {
		if u.State == observe.Spare {
			continue
		}
		servers[[2]string{u.Name, u.State}]++
		running[u.Name] = running[u.Name] || u.State == "running"
	}
	for k, n := range servers {
		o.gauge(serversNow, float64(n), k[1], k[0])
	}
	for _, t := range now.Traffic {
		if t.Link != "" {
			continue
		}
		o.gauge(up, oneIf(running[t.Upstream] || t.Failed.InARow == 0), strconv.FormatBool(t.Required), t.Upstream)
		s := m.servers.find(t.Upstream)
		if s == nil {
			s = new(serverCounts) // it has never started
		}
		o.counter(serverStarts, float64(s.starts.Load()), t.Upstream)
		o.counter(serverAgain, float64(s.restarts.Load()), t.Upstream)
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
