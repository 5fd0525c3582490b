package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

// allowed are the faults that explain a cause, by how its text begins.
var allowed = map[string][]string{
	"signal: ":      {"kill server", "restart", "kill host", "kill proxy", "reload"},
	"stdin closed":  {"kill", "restart", "reload"},
	"stdout closed": {"kill", "restart", "reload"},
	"exit status":   {"kill", "restart", "reload", "take descriptors"},
	"start failed":  {"kill", "restart", "take descriptors", "cut", "half-open", "corrupt", "stop", "reload"},
	"start timeout": {"stop", "half-open", "delay", "slice"},
	"link lost": {"kill proxy", "freeze proxy", "split proxy", "take key", "cut link", "kill host", "restart host", "stop host", "half-open link", "corrupt link", "delay link",
		"slice link", "take descriptors", "restart proxy"},
	"host stopped":       {"restart host", "restart proxy"},
	"no answer to pings": {"freeze proxy", "split proxy", "stop host", "half-open link", "delay link", "slice link"},
	"connection":         {"kill", "cut", "half-open", "stop", "restart", "take descriptors", "withdraw token", "expire tokens"},
	"connect":            {"kill", "cut", "half-open", "stop", "restart", "take descriptors"},
	"stream ended":       {"kill", "cut", "half-open", "restart"},
	"request failed":     {"kill", "cut", "half-open", "restart", "take descriptors"},
	"HTTP 404":           {"kill remote"},
	"HTTP 503":           {"restart proxy", "take descriptors"},
	"bad answer":         {"corrupt"},
	"bad hello":          {"corrupt"},
	"initialize refused": {"restart proxy", "withdraw token", "expire tokens", "corrupt"},
	"HTTP 401":           {"withdraw token", "expire tokens"},
	"upstream changed":   {"reload", "withdraw token", "expire tokens"},
	"token withdrawn":    {"withdraw token"},
	"token expired":      {"expire tokens"},
	"not opened in time": {"stop host", "half-open link", "delay link", "slice link", "take descriptors"},
	"closed":             {"kill", "cut", "restart"},
	"WebSocket":          {"restart proxy", "kill proxy", "withdraw token", "expire tokens"},
}

// reasons judges that an error has a reason: it names an event that was logged, and a cause that the nemesis is.
func (j *judge) reasons(r *record) {
	for _, o := range r.outcomes {
		if o.What != Failed {
			continue
		}
		f := readFailure(o)
		switch over := j.clients[r.client].over; {
		case over > 0 && over < o.At, r.cancel != nil && f.Code == -32800:
		case f.Message == unasked && j.refused(r, o.At):
		case j.taskFailed(r, f), j.unknown(r, f, o.At):
		case f.Data.Reason == "invalid_response" && j.happened(o.At, "corrupt"):
		case f.Data.Reason == "timeout" && j.late(r, o.At):
		case f.Data.Reason == "request_state_expired" && j.forgotten(r, o.At):
		case f.Data.Reason == "connection_closed" && f.Data.Upstream == "" &&
			j.happened(o.At, slices.Concat(crashes, []string{"restart proxy", "withdraw token", "expire tokens"})...): // its own
		case f.Data.Phase == "not_sent" && (strings.Contains(f.Message, "has not connected yet") || strings.Contains(f.Message, "has not answered yet")): // nothing has ended
		case j.replicas && (f.Data.Reason == "" || f.Data.Cause == "not opened in time") && j.crashed(o.At): // of the balancer; or no link has ended
		case f.Data.Reason == "" || f.Data.Event == "" && f.Data.Reason == "connection_closed":
			j.found(6, fmt.Sprintf("%s got an error without a reason or an event: %s", r.nonce, o.Text), r.nonce)
		case f.Data.Event != "" && !bytes.Contains(j.logs, []byte(f.Data.Event)) && !j.killedAfter(r, o.At):
			j.found(6, fmt.Sprintf("%s got the event %s, which no log has", r.nonce, f.Data.Event), r.nonce)
		case !j.explained(f.Data.Cause, o.At):
			j.found(6, fmt.Sprintf("%s got the cause %q, which nothing explains: %s", r.nonce, f.Data.Cause, o.Text), r.nonce)
		}
	}
}

// late reports whether a list took as long as the proxy waits for one, 10 s, because a server is silent. A client's own
// proxy waits as long for the one that merges the lists, and may be first.
func (j *judge) late(r *record, at int64) bool {
	return r.op.Server == "" && strings.HasSuffix(j.clients[r.client].kind, "stdio") && at-r.sent > int64(9*time.Second) &&
		j.happened(at, "stop", "half-open", "kill host", "restart host", "cut link", "delay", "slice")
}

// forgotten reports whether the process that translated for a suspended call may have ended: the state of the call was
// its alone. What is not a principal's ends with its streams, also if their link was lost.
func (j *judge) forgotten(r *record, at int64) bool {
	far := strings.HasPrefix(r.op.Server, "far")
	return j.happened(at, "restart proxy", "kill proxy", "freeze proxy", "split proxy", "take key") || far && j.happened(at, "restart host", "kill host") ||
		far && j.clients[r.client].kind != "modern HTTP" && j.happened(at, "cut link", "half-open link", "corrupt link", "stop host")
}

// killedAfter reports whether a proxy that may have answered was killed before it gathered for one line what
// failed together, which takes 5 s at most.
func (j *judge) killedAfter(r *record, at int64) bool {
	soon := at + int64(6*time.Second)
	client := j.clients[r.client]
	return strings.HasSuffix(client.kind, "stdio") && client.why.Text == "vanish" && client.over < soon ||
		slices.ContainsFunc(j.faults, func(e Event) bool {
			return (strings.HasPrefix(e.Text, "kill proxy") || strings.HasPrefix(e.Text, "kill host")) && e.At > at && e.At < soon
		})
}

func (j *judge) explained(cause string, at int64) bool {
	for begin, faults := range allowed {
		if strings.HasPrefix(cause, begin) && j.happened(at, faults...) {
			return true
		}
	}
	return false
}
