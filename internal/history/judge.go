package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A judge looks at a whole history.
type judge struct {
	events []Event // in order of time
	logs   []byte  // of the proxy, the host and the clients' own proxies

	configuration
	calls     map[string]*record
	clients   map[string]*life
	faults    []Event
	replicas  bool                 // there are several proxies
	disturbed []disturbance        // by faults; with replicas
	services  map[string][]service // as of servicesOf
	quiet     int64
	patience  time.Duration // from then on
	anomalies []Anomaly
}

// A record is what a history says of one operation.
type record struct {
	nonce     string
	client    string
	op        operation
	sent      int64
	outcomes  []Event
	lost      bool // the client does not get the outcome
	cancel    *Event
	cancelled int64 // when that was sent
	progress  []Event
	starting  bool // the proxy told that the server starts
	logged    []Event
	asked     []Event
	updated   []Event // by any client that follows
	began     []Event // servers', from here on
	effects   []Event
	replied   []Event
	refused   []Event
	ended     []Event
	stopped   []Event // cancellations
}

// A life is what it says of one client.
type life struct {
	kind string
	over int64 // when it left, or its connection ended; 0 if neither
	why  Event

	follows map[string]int64 // when it was subscribed to the resource of a server
	updated map[string]int64 // when it got the last update
	listed  int64            // when it got the last list of tools
}

func put(m *map[string]int64, key string, value int64) {
	if *m == nil {
		*m = map[string]int64{}
	}
	(*m)[key] = value
}

// judgeHistory returns the anomalies of a history.
func judgeHistory(events []Event, logs []byte) []Anomaly {
	j := &judge{events: slices.Clone(events), logs: logs, calls: map[string]*record{}, clients: map[string]*life{}}
	slices.SortStableFunc(j.events, inTime)
	for _, e := range j.events {
		j.read(e)
	}
	if j.replicas {
		j.disturbed, j.services = disturbances(j.events), j.servicesOf()
	}
	j.connections()
	for _, r := range j.calls {
		j.outcome(r)
		j.execution(r)
		j.belongings(r)
		j.cancellation(r)
		j.order(r)
		j.reasons(r)
		j.updates(r)
		j.forbidden(r)
	}
	j.toolLists()
	j.moves()
	j.isolation()
	j.registers()
	slices.SortStableFunc(j.anomalies, func(a, b Anomaly) int { return cmp.Compare(a.Rule, b.Rule) })
	return j.anomalies
}

// inTime compares events by when they were.
func inTime(a, b Event) int { return cmp.Compare(a.At, b.At) }

func (j *judge) found(rule int, what string, of ...string) {
	j.anomalies = append(j.anomalies, Anomaly{Rule: rule, What: what, Of: of})
}

// read sorts an event into what it is about.
func (j *judge) read(e Event) {
	switch e.What {
	case Join:
		j.clients[e.By] = &life{kind: e.Text}
		return
	case Left, Broken:
		if c := j.clients[e.By]; c.over == 0 {
			c.over, c.why = e.At, e
		}
		return
	case Fault:
		j.faults = append(j.faults, e)
		return
	case Quiet:
		j.quiet = e.At
		j.patience, _ = time.ParseDuration(e.Text)
		return
	case Replicated:
		j.replicas = true
		return
	case Kept:
		j.found(9, e.Text)
		return
	case Denies, Removes, Adds:
		j.configuration.read(e)
		return
	case Follows:
		j.clients[e.By].followed(e)
		return
	case Hangs:
		j.found(1, fmt.Sprintf("%s waits in vain: %s", e.By, e.Text), e.By)
		return
	case Odd:
		j.found(3, "a message that belongs to nothing: "+e.Text, e.By)
		return
	case Sent:
		r := &record{nonce: e.Of, client: e.By, sent: e.At}
		if err := json.Unmarshal([]byte(e.Text), &r.op); err != nil {
			j.found(0, err.Error(), e.Of)
		}
		j.calls[e.Of] = r
		return
	}
	r := j.calls[e.Of]
	if e.What == Updated && e.Text == "tools" {
		put(&j.clients[e.By].updated, e.Text, e.At)
	}
	if r == nil {
		if e.Of != "" {
			j.found(3, fmt.Sprintf("%s for %q, which nobody has sent", e.What, e.Of), e.By)
		}
		return
	}
	r.add(e, j)
}

func (r *record) add(e Event, j *judge) {
	if e.What == Updated {
		r.updated = append(r.updated, e)
		put(&j.clients[e.By].updated, e.Text, e.At)
		return
	}
	if j.overhears(r, e) || j.misdirected(r, e) {
		return
	}
	if !strings.Contains(e.By, "/") && e.By != r.client {
		j.found(3, fmt.Sprintf("%s got %s of %s's %s", e.By, e.What, r.client, r.nonce), r.nonce, e.By)
		return
	}
	switch e.What {
	case Result, Failed:
		if r.op.Server+r.op.Method == "" {
			j.clients[r.client].listed = e.At
		}
		r.outcomes = append(r.outcomes, e)
	case Cancel:
		r.cancel = cmp.Or(r.cancel, &e)
		r.cancelled = e.At
	case Lost:
		r.lost = true
	case Progress:
		if e.Text == "-1 starting "+r.op.Server && r.op.Progress > 0 && !r.starting && len(r.progress)+len(r.outcomes) == 0 {
			r.starting = true // once, and first
			return
		}
		r.progress = append(r.progress, e)
	case Logged:
		r.logged = append(r.logged, e)
	case Question:
		r.asked = append(r.asked, e)
	case Began:
		r.began = append(r.began, e)
	case Effect:
		r.effects = append(r.effects, e)
	case Replied:
		r.replied = append(r.replied, e)
	case Refused:
		r.refused = append(r.refused, e)
	case Ended:
		r.ended = append(r.ended, e)
	case Cancelled:
		r.stopped = append(r.stopped, e)
	}
}

// happened reports whether one of these faults began in the minute before a time. A fault may have effects
// for so long as a host that is stopped, and pings that get no answer, take.
// With replicas, where there is always one, it is known until when it may.
func (j *judge) happened(at int64, faults ...string) bool {
	if j.replicas {
		return slices.ContainsFunc(j.disturbed, func(d disturbance) bool {
			return d.from < at && at-int64(aftermath) < d.to &&
				slices.ContainsFunc(faults, func(f string) bool { return strings.HasPrefix(d.what, f) })
		})
	}
	return slices.ContainsFunc(j.faults, func(e Event) bool {
		return e.At < at && at-e.At < int64(time.Minute) &&
			slices.ContainsFunc(faults, func(f string) bool { return strings.HasPrefix(e.Text, f) })
	})
}

// misdirected reports whether a notification may have come to another client because a byte of a link had changed:
// in the number of a stream. yamux has no checksums, and these links have no TLS.
func (j *judge) misdirected(r *record, e Event) bool {
	return (e.What == Logged || e.What == Progress) && e.By != r.client && strings.HasPrefix(r.op.Server, "far") &&
		slices.ContainsFunc(j.faults, func(f Event) bool {
			return strings.HasPrefix(f.Text, "corrupt link") && f.At < e.At && e.At-f.At < int64(time.Second)
		})
}

// execution judges how often the call was executed.
func (j *judge) execution(r *record) {
	if len(r.effects) > 1 || len(r.began) > 1 {
		j.found(2, fmt.Sprintf("%s began %d times and was executed %d times", r.nonce, len(r.began), len(r.effects)), r.nonce)
	}
	if r.op.Server == "" || len(r.outcomes) == 0 {
		return
	}
	o := r.outcomes[0]
	if o.What == Result && len(r.effects) == 0 && !unanswered(r, o) && !isCancelled(o) {
		j.found(2, r.nonce+" has a result and was not executed", r.nonce)
	}
	if readFailure(o).Data.Phase == "not_sent" && len(r.effects)+len(r.began) > 0 && r.op.Ask+r.op.Task == "" {
		j.found(2, r.nonce+" was executed and its error says not_sent", r.nonce)
	}
}

// unanswered reports whether an outcome is the tool error of a call whose question the client, which is leaving, did
// not answer: a server of the modern era asks by a result, and goes on only with the answer.
func unanswered(r *record, o Event) bool {
	return r.op.Ask != "" && strings.HasPrefix(r.op.Server, "modern") && strings.Contains(o.Text, `"isError":true`)
}

// A failure is an error of the proxy.
type failure struct {
	Code    int
	Message string
	Data    struct{ Reason, Cause, Phase, Event, Upstream string }
}

func readFailure(e Event) (f failure) {
	if e.What == Failed || e.What == Refused {
		_ = json.Unmarshal([]byte(e.Text), &f) // of another shape it is none of ours
	}
	return f
}

// belongings judges that what came belongs to the call.
func (j *judge) belongings(r *record) {
	for _, o := range r.outcomes {
		if o.What != Result || unanswered(r, o) && j.clients[r.client].over > 0 || isCancelled(o) || r.op.Method != "" {
			continue
		}
		if r.op.Server == "" {
			j.list(r, o)
			continue
		}
		var a answer
		if err := json.Unmarshal([]byte(o.Text), &a); err != nil || a.Nonce != r.nonce ||
			!strings.HasPrefix(a.Server, r.op.Server+"/") || r.op.Ask != "" && a.Reply != r.nonce {
			j.found(3, fmt.Sprintf("%s to %s got %s", r.nonce, r.op.Server, o.Text), r.nonce, a.Nonce)
		}
	}
	for _, p := range r.progress {
		if _, of, _ := strings.Cut(p.Text, " "); of != r.nonce || r.op.Progress == 0 {
			j.found(3, fmt.Sprintf("%s got the progress of %s", r.nonce, of), r.nonce, of)
		}
	}
	j.questions(r)
	j.messages(r)
	j.tasks(r)
	for _, e := range slices.Concat(r.began, r.effects) {
		if !strings.HasPrefix(e.By, r.op.Server+"/") {
			j.found(3, fmt.Sprintf("%s to %s came to %s", r.nonce, r.op.Server, e.By), r.nonce)
		}
	}
}

// isolation judges that no two clients share a process of an isolated upstream.
func (j *judge) isolation() {
	of := map[string]string{}
	for _, e := range j.events {
		r := j.calls[e.Of]
		if e.What != Began || r == nil || !strings.HasPrefix(e.By, "own/") && !strings.HasPrefix(e.By, "far/") {
			continue
		}
		owner := j.owner(r.client)
		if other := of[e.By]; other != "" && other != owner {
			j.found(3, fmt.Sprintf("%s and %s share %s", other, owner, e.By), r.nonce, e.By)
		}
		of[e.By] = owner
	}
}

// owner returns whose the session of a client is: its own, or over modern HTTP its principal's.
func (j *judge) owner(client string) string {
	if j.clients[client].kind != "modern HTTP" {
		return client
	}
	return principalOf(client)
}

// endings are the faults because of which the proxy cancels calls.
var endings = []string{
	"restart proxy", "kill proxy", "reload", "withdraw token", "expire tokens", "cut", "half-open", "freeze proxy", "split proxy", "take key",
	"stop host", "restart host", "kill host", "corrupt", "delay", "slice", "take descriptors",
}

// cancellation judges that a cancellation reaches the call that was cancelled, and no other one.
func (j *judge) cancellation(r *record) {
	over := j.clients[r.client].over
	for _, e := range r.stopped {
		gone := over > 0 && over < e.At
		if r.cancel == nil && r.op.Task != "cancel" && !gone && !j.happened(e.At, endings...) {
			j.found(4, r.nonce+" was cancelled, but not by its client", r.nonce)
		}
	}
	if len(r.stopped)+len(r.refused) > 1 && !j.crossed(r) {
		j.found(4, r.nonce+" was stopped twice: by a cancellation, by the error for its question, or both", r.nonce)
	}
	if over > 0 && over < r.cancelled {
		return // nobody reads it
	}
	if r.cancel == nil || len(r.began) == 0 || len(r.ended) > 0 && r.ended[0].At < r.cancelled {
		return
	}
	later := j.later(r)
	switch {
	case j.died(r.began[0].By, r.cancelled), len(r.outcomes) > 0 && len(r.ended) == 0:
	case (j.clients[r.client].kind == "HTTP" || j.replicas && j.clients[r.client].kind == "modern HTTP") && (len(r.outcomes) > 0 || r.began[0].At > r.cancelled): // its cancellation may have overtaken it
	case len(r.stopped) == 0 && len(r.ended) > 0, later > 0 && (len(r.stopped) == 0 || r.stopped[0].At > later):
		j.found(4, r.nonce+" was cancelled, but its server was not told, or went on before", r.nonce)
	}
}

// later returns when the server of a cancelled call began with one that the client sent after the cancellation,
// on a way that keeps messages in order; 0 for never.
func (j *judge) later(r *record) int64 {
	kind := strings.TrimPrefix(j.clients[r.client].kind, "modern ")
	if strings.Contains(r.op.Server, "remote") || kind != "WebSocket" && kind != "stdio" {
		return 0
	}
	for _, other := range j.calls {
		if other.client == r.client && other.sent > r.cancelled &&
			len(other.began) > 0 && other.began[0].By == r.began[0].By {
			return other.began[0].At
		}
	}
	return 0
}

// died reports whether a server or its connection may have ended after a call began.
func (j *judge) died(server string, at int64) bool {
	name, _, _ := strings.Cut(server, "/")
	later := 30 * time.Second
	if j.replicas {
		later = aftermath / 2
	}
	return j.happened(at+int64(later), "freeze", "split", "kill", "stop", "cut", "half-open", "corrupt", "restart", "reload",
		"withdraw", "expire", "take", "delay "+name)
}

// order judges that progress comes in order and before the answer, and all of it before a result.
func (j *judge) order(r *record) {
	last := "0"
	for _, p := range r.progress {
		n, _, _ := strings.Cut(p.Text, " ")
		if n <= last || len(r.outcomes) > 0 && p.At > r.outcomes[0].At {
			j.found(5, fmt.Sprintf("%s got progress %s after %s, or after its answer", r.nonce, n, last), r.nonce)
		}
		last = n
	}
	if len(r.outcomes) != 1 || j.happened(r.outcomes[0].At, "corrupt") && strings.HasPrefix(r.op.Server, "far") {
		return // a notification that is no JSON any more is dropped
	}
	if r.outcomes[0].What == Result && len(r.progress) < r.op.Progress {
		j.found(5, fmt.Sprintf("%s got %d of %d notifications before its result", r.nonce, len(r.progress), r.op.Progress), r.nonce)
	}
}
