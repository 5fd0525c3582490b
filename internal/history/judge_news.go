package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// updates judges that the clients that follow a resource get its updates, and no others. Of updates that come one
// after the other a client may get the last one alone.
func (j *judge) updates(r *record) {
	for _, e := range r.updated {
		if j.denies(e.By, e.Text, "*") {
			j.found(3, fmt.Sprintf("%s got an update of %s, which is denied to it", e.By, e.Text), r.nonce, e.By)
		}
		if e.Text != r.op.Server || r.op.Do != "touch" || !slices.Contains(followed, e.Text) {
			j.found(3, fmt.Sprintf("%s got an update of %s because of %s", e.By, e.Text, r.nonce), r.nonce, e.By)
		}
	}
	if r.op.Do != "touch" || len(r.effects) == 0 || len(r.outcomes) == 0 || r.outcomes[0].What != Result || j.died(r.op.Server, r.sent) {
		return
	}
	for name, c := range j.clients {
		since, follows := c.follows[r.op.Server]
		stays := c.over == 0 || c.over > r.outcomes[0].At+int64(time.Second)
		if j.replicas && (!j.servedBy(name, r.op.Server, r.effects[0].By, r.effects[0].At) || c.kind == "modern HTTP") {
			continue // the listen of modern HTTP is where it arrived
		}
		if follows && since < r.sent && stays && c.updated[r.op.Server] < r.effects[0].At {
			j.found(5, fmt.Sprintf("%s got no update of %s because of %s", name, r.op.Server, r.nonce), r.nonce, name)
		}
	}
}

// followed notes since when the client is subscribed to something.
func (l *life) followed(e Event) {
	if l.follows[e.Text] == 0 {
		put(&l.follows, e.Text, e.At)
	}
}

// list judges a list of tools: each is one of ours, and none is there twice.
func (j *judge) list(r *record, o Event) {
	seen := map[string]bool{}
	for server, names := range toolsIn(o) {
		if j.withdrawn(r, server, o.At) {
			j.found(3, fmt.Sprintf("%s lists what %s has, which was removed", r.nonce, server), r.nonce)
		}
		for _, name := range names {
			if j.denies(r.client, server, name) {
				j.found(3, fmt.Sprintf("%s lists %s of %s, which is denied to its client", r.nonce, name, server), r.nonce)
			}
			known := name == tool || strings.HasPrefix(name, numbered) && slices.Contains(followed, server)
			if !known || seen[server+name] || len(names) > 2 || !slices.Contains(append(servers, "spare"), server) {
				j.found(3, fmt.Sprintf("%s lists %s of %s", r.nonce, name, server), r.nonce)
			}
			seen[server+name] = true
		}
	}
}

// toolsIn returns the names of the tools in a list, by server.
func toolsIn(o Event) map[string][]string {
	var tools []struct{ Name string }
	_ = json.Unmarshal([]byte(o.Text), &tools) // no list has no tools
	all := map[string][]string{}
	for _, t := range tools {
		server, name, _ := strings.Cut(t.Name, "__")
		all[server] = append(all[server], name)
	}
	return all
}

// toolLists judges that a second after a server got another list of tools, lists have it, and the clients that wait
// for that have been told. A client that has not asked since it was told before need not be told again.
func (j *judge) toolLists() {
	if j.replicas { // each has a server of its own, and knows the changes of that
		return
	}
	for _, r := range j.calls {
		if r.op.Do != "grow" || len(r.effects) == 0 || len(r.outcomes) == 0 || r.outcomes[0].What != Result || j.died(r.op.Server, r.sent) {
			continue
		}
		since, then := r.effects[0].At, r.outcomes[0].At+int64(time.Second)
		for name, c := range j.clients {
			if j.denies(name, r.op.Server, "*") {
				continue
			}
			begin := c.follows["tools"]
			stays := c.over == 0 || c.over > then
			if begin > 0 && begin < r.sent && stays && c.updated["tools"] < since && c.listed > c.updated["tools"] {
				j.found(5, fmt.Sprintf("%s was not told that %s has changed its tools because of %s", name, r.op.Server, r.nonce), r.nonce, name)
			}
		}
		var a answer
		_ = json.Unmarshal([]byte(r.outcomes[0].Text), &a) // else that is an anomaly by itself
		for _, l := range j.calls {
			if l.op.Server+l.op.Method == "" && l.sent > then && len(l.outcomes) > 0 && l.outcomes[0].What == Result &&
				!j.died(r.op.Server, l.sent) && !j.denies(l.client, r.op.Server, "*") && numberOf(toolsIn(l.outcomes[0])[r.op.Server]) < a.Value {
				j.found(3, fmt.Sprintf("%s lists the tools of %s as they were before %s", l.nonce, r.op.Server, r.nonce), l.nonce, r.nonce)
			}
		}
	}
}

// numberOf returns the number of a list of tools of one server; 0 if it was never changed.
func numberOf(names []string) (n int) {
	for _, name := range names {
		if text, ok := strings.CutPrefix(name, numbered); ok {
			n, _ = strconv.Atoi(text)
		}
	}
	return n
}

// messages judges that log messages are those of the call, and that all of them come before its result where they
// cannot be anybody else's: from a server that serves one client alone, or on the response to the call. Over
// legacy HTTP what a server on pipes says has a stream of its own, and comes in no order with the result.
func (j *judge) messages(r *record) {
	kind := j.clients[r.client].kind
	if len(r.logged) > r.op.Log && !(translated(kind, r.op.Server) && isUnattributed(r.op.Server)) {
		j.found(3, fmt.Sprintf("%s got %d log messages of %d", r.nonce, len(r.logged), r.op.Log), r.nonce)
	}
	pipes := r.op.Server == "own" || r.op.Server == "far"
	certain := pipes && !strings.HasPrefix(kind, "modern") && kind != "HTTP" || r.op.Server == "remote" && !strings.HasPrefix(kind, "modern") ||
		r.op.Server == "modern-remote"
	if !certain || len(r.outcomes) == 0 || r.outcomes[0].What != Result || r.op.Server == "far" && j.happened(r.outcomes[0].At, "corrupt") {
		return
	}
	late := slices.ContainsFunc(r.logged, func(e Event) bool { return e.At > r.outcomes[0].At })
	if late || len(r.logged) < r.op.Log {
		j.found(5, fmt.Sprintf("%s got %d of %d log messages, or one after its result", r.nonce, len(r.logged), r.op.Log), r.nonce)
	}
}

// isUnattributed reports whether a server does not say to whom its log messages belong. The translation for a modern
// client may have several sessions there, and each gets them.
func isUnattributed(server string) bool { return server == "common" || server == "far-common" }

// translated reports whether a client of a kind speaks another era than a server.
func translated(kind, server string) bool {
	return strings.HasPrefix(kind, "modern") != strings.HasPrefix(server, "modern")
}

// overhears reports whether a client may get a log message of another one's call. A shared server of the legacy era does
// not say whose it is, so it goes to all clients of a principal, until another principal has used the process, too.
func (j *judge) overhears(r *record, e Event) bool {
	who := principalOf(r.client)
	if e.What != Logged || e.By == r.client || principalOf(e.By) != who || len(r.began) == 0 ||
		!isUnattributed(r.op.Server) {
		return false
	}
	for _, other := range j.calls {
		if principalOf(other.client) != who && len(other.began) > 0 && other.began[0].By == r.began[0].By &&
			other.began[0].At < r.began[0].At {
			return false
		}
	}
	return true
}
