package main

import (
	"fmt"
	"strings"
	"time"
)

// connections judges that no connection of a client ended without a reason.
func (j *judge) connections() {
	for name, c := range j.clients {
		if c.over > 0 && c.why.What == Broken &&
			!j.happened(c.over, "restart proxy", "kill proxy", "freeze proxy", "split proxy", "take key", "withdraw token", "expire tokens", "take descriptors") &&
			!(c.why.Text == errInitialize.Error() && j.isSole(c.over) && j.happened(c.over, "kill", "stop", "cut", "restart host", "reload")) {
			j.found(1, fmt.Sprintf("the connection of %s (%s) ended: %s", name, c.kind, c.why.Text), name)
		}
	}
}

// isSole reports whether there may be one server alone at a time, whose failure is that of initialize.
func (j *judge) isSole(at int64) bool {
	if j.happened(at, "reload without") {
		return true
	}
	sole := ""
	for _, e := range j.events {
		if name, _, _ := strings.Cut(e.By, "/"); e.What == Started {
			if sole != "" && sole != name {
				return false
			}
			sole = name
		}
	}
	return sole != ""
}

// outcome judges that there is exactly one, or at most one if the client did not wait for it.
func (j *judge) outcome(r *record) {
	client := j.clients[r.client]
	over := client.over
	switch {
	case len(r.outcomes) > 1:
		j.found(1, fmt.Sprintf("%s has %d outcomes", r.nonce, len(r.outcomes)), r.nonce)
	case len(r.outcomes) > 0 || r.cancel != nil || r.lost:
	case j.replicas && r.op.Ask != "" && len(r.asked) == 0 && j.droppedBeside(r):
	case j.replicas && len(r.asked) > 0 && j.happened(r.asked[0].At, "split proxy", "freeze proxy"): // of two copies of the session the other one got the reply
	case over == 0, j.waited(r, over), j.halfClosed(client) && r.sent < over && len(r.asked) == 0 && r.op.Task == "":
		j.found(1, r.nonce+" has no outcome", r.nonce)
	case j.stopped(client) && len(r.began) > 0 && r.began[0].At < over && r.op.Task == "" &&
		(len(r.asked) == 0 || !strings.HasPrefix(client.kind, "modern")):
		j.found(1, r.nonce+" was open when the proxy ended, and has no outcome", r.nonce)
	}
}

// stopped reports whether the connection of a client ended because the proxy did, in order. Then the proxy settles what
// it has read before. Modern HTTP has no connection that ends.
func (j *judge) stopped(l *life) bool {
	ordered := strings.HasSuffix(l.kind, "WebSocket") || strings.HasSuffix(l.kind, "stdio")
	return ordered && l.why.What == Broken && j.happened(l.over, "restart proxy") &&
		!j.happened(l.over, "kill proxy", "withdraw token", "expire tokens", "take descriptors", "read nothing")
}

// halfClosed reports whether a client on stdio has only closed its end, and read what came until there was no more.
// A question of the modern era is an answer then, to which it cannot reply; nor can it ask for the result of a task.
// Pipes in memory end with the proxy.
func (j *judge) halfClosed(l *life) bool {
	return strings.HasSuffix(l.kind, "stdio") && l.why.What == Left &&
		(l.why.Text == "close" || l.why.Text == halfClose && !j.happened(l.over+int64(time.Second), "restart proxy"))
}

// halfClose is what a client in memory does that leaves as with "close".
const halfClose = "half-close"

// waited reports whether a client has left only after it had waited for the outcome in vain.
func (j *judge) waited(r *record, over int64) bool {
	return j.quiet > 0 && over-max(j.quiet, r.sent) > int64(j.patience-time.Second)
}
