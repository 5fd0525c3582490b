package proxy

import (
	"cmp"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// A condition is what an upstream is at, of all that is known of its servers.
type condition struct {
	state  string
	failed observe.Failure
}

const (
	stateFailed = "failed"
	stateIdle   = "idle"
)

// conditionsOf returns the conditions of the upstreams that have a status, by name.
func conditionsOf(all []upstream.Status) map[string]condition {
	byName := make(map[string][]upstream.Status)
	for _, s := range all {
		byName[s.Upstream] = append(byName[s.Upstream], s)
	}
	conditions := make(map[string]condition)
	for name, servers := range byName {
		conditions[name] = conditionOf(servers)
	}
	return conditions
}

// conditionOf decides by the worst of servers, which says most to operators.
func conditionOf(servers []upstream.Status) condition {
	var c condition
	worst := slices.MaxFunc(servers, func(a, b upstream.Status) int {
		return cmp.Or(cmp.Compare(min(a.Failed, 1), min(b.Failed, 1)), cmp.Compare(a.Failures, b.Failures), cmp.Compare(a.Failed, b.Failed))
	})
	if worst.Failed > 0 {
		c.failed = observe.Failure{Cause: worst.Cause, Says: worst.Says, Event: worst.Event, InARow: worst.Failures, Next: worst.Next}
	}
	for _, state := range []upstream.State{upstream.StateCrashLoop, upstream.StateWaiting, upstream.StateStarting, upstream.StateRunning, upstream.StateStopping} {
		if slices.ContainsFunc(servers, func(s upstream.Status) bool { return s.State == state && (s.Lives() || s.Failed > 0) }) {
			c.state = string(state)
			return c
		}
	}
	if c.state = stateIdle; worst.Failed > 0 {
		c.state = stateFailed
	}
	return c
}
