package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// aftermath is how long a fault on one of several replicas may have effects when it is over: a death is known after 6 s.
const aftermath = 10 * time.Second

// crashed reports whether a replica may have died before a time, or been taken from the others.
func (j *judge) crashed(at int64) bool { return j.happened(at, crashes...) }

// streamable reports whether a client is none of its connection: any replica serves its requests.
func (l *life) streamable() bool { return l.kind == "HTTP" || l.kind == "modern HTTP" }

// moves judges that a replica that is restarted in order takes nothing from clients of Streamable HTTP.
func (j *judge) moves() {
	if !j.replicas {
		return
	}
	for _, r := range j.calls {
		if j.clients[r.client].streamable() && len(r.outcomes) > 0 && r.outcomes[0].What == Failed {
			j.unmoved(r, r.outcomes[0])
		}
	}
	for name, c := range j.clients {
		switch {
		case !c.streamable() || c.why.What != Broken:
		case !j.crashed(c.over):
			j.found(9, fmt.Sprintf("%s had to begin again, and no replica had died: %s", name, c.why.Text), name)
		case j.continues(c):
			j.found(9, fmt.Sprintf("%s had to begin again, and another replica had its session: %s", name, c.why.Text), name)
		}
	}
}

// unmoved judges a call that failed. What a process of a server keeps may be lost, and so may a suspended call.
func (j *judge) unmoved(r *record, o Event) {
	f := readFailure(o)
	switch over := j.clients[r.client].over; {
	case over > 0 && over < o.At, r.cancel != nil && f.Code == -32800, j.taskFailed(r, f), r.op.Task != "", r.op.Method != "":
	case f.Message == unasked && j.refused(r, o.At), f.Data.Reason == "request_state_expired" && j.forgotten(r, o.At):
	case !j.crashed(o.At):
		j.found(9, fmt.Sprintf("%s failed, and no replica had died: %s", r.nonce, o.Text), r.nonce)
	case !isBeforeAll(f) && j.sentAfterDeath(r, o.At):
		j.found(9, fmt.Sprintf("%s failed, and was sent when the replica was dead: %s", r.nonce, o.Text), r.nonce)
	}
}

// isBeforeAll reports whether an error is that of a request that was turned away: it may be sent again.
func isBeforeAll(f failure) bool {
	return strings.HasPrefix(f.Message, "HTTP 503 with Retry-After") || f.Data.Phase == "not_sent"
}

// continues reports whether the session of a client should have survived a crash: one replica was killed, and no other
// that may have kept the session, which was there a second before.
func (j *judge) continues(c *life) bool {
	began, crashes := int64(math.MaxInt64), 0
	for _, at := range c.follows {
		began = min(began, at)
	}
	for _, d := range j.disturbed {
		switch {
		case !d.isCrash() || d.from > c.over || c.over-2*int64(aftermath) > d.to:
		case !strings.HasPrefix(d.what, "kill proxy"), began > d.from-int64(time.Second):
			return false
		default:
			crashes++
		}
	}
	return crashes == 1
}

// droppedBeside reports whether the client dropped the response to another call of the same server, which may have
// carried the question of a call: a server on pipes does not say whose call asks. Through two proxies the question may
// be on its way then.
func (j *judge) droppedBeside(r *record) bool {
	for _, other := range j.calls {
		if other.lost && other.client == r.client && other.op.Server == r.op.Server {
			return true
		}
	}
	return false
}

// sentAfterDeath reports whether the crashes that may have effects at a time are all kills, from before the call was sent.
func (j *judge) sentAfterDeath(r *record, at int64) bool {
	for _, d := range j.disturbed {
		switch crash := d.isCrash(); {
		case !crash || d.from > at || at-int64(aftermath) > d.to:
		case !strings.HasPrefix(d.what, "kill proxy"), d.from+int64(time.Second) > r.sent:
			return false
		}
	}
	return true
}

func (d disturbance) isCrash() bool {
	for _, name := range crashes {
		if strings.HasPrefix(d.what, name) {
			return true
		}
	}
	return false
}

// A service is that a process of a server began a call.
type service struct {
	process string
	at      int64
}

// servicesOf returns what each client got of each server, by both names, in order of time.
func (j *judge) servicesOf() map[string][]service {
	all := map[string][]service{}
	for _, e := range j.events {
		if r := j.calls[e.Of]; e.What == Began && r != nil {
			key := r.client + " " + r.op.Server
			all[key] = append(all[key], service{e.By, e.At})
		}
	}
	return all
}

// servedBy reports whether a client was served by a process of a server before a time, and after it: updates come from
// the process of its own replica.
func (j *judge) servedBy(client, server, process string, at int64) bool {
	all := j.services[client+" "+server]
	i, _ := slices.BinarySearchFunc(all, at, func(s service, at int64) int { return cmp.Compare(s.at, at) })
	return i > 0 && i < len(all) && all[i-1].process == process && all[i].process == process
}
