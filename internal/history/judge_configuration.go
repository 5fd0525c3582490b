package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A configuration is what it denies to principals, and when it has not all servers.
type configuration struct {
	denied  []Event
	removed []*removal
}

// A removal is the time in which the configuration has no server of a name: from a time between the first two, until
// one between the others.
type removal struct {
	server                       string
	begins, begun, ending, ended int64
}

func (c *configuration) read(e Event) {
	server, done := strings.CutSuffix(e.Text, " done")
	switch {
	case e.What == Denies:
		c.denied = append(c.denied, e)
	case e.What == Removes && !done:
		c.removed = append(c.removed, &removal{server, e.At, math.MaxInt64, math.MaxInt64, math.MaxInt64})
	case e.What == Removes:
		c.last(server).begun = e.At
	case !done:
		c.last(server).ending = e.At
	default:
		c.last(server).ended = e.At
	}
}

// last returns the last removal of a server.
func (c *configuration) last(server string) (last *removal) {
	for _, r := range c.removed {
		if r.server == server {
			last = r
		}
	}
	return last
}

// denies reports whether a client may not use a tool of a server, or nothing there, "*".
func (c *configuration) denies(client, server, tool string) bool {
	for _, e := range c.denied {
		what, found := strings.CutPrefix(e.Text, principalOf(client)+" "+server+" ")
		if found && (what == "*" || what == tool) {
			return true
		}
	}
	return false
}

// withdrawn reports whether a server was removed before an operation was sent, and not yet added again at a time.
func (c *configuration) withdrawn(r *record, server string, at int64) bool {
	for _, gone := range c.removed {
		if gone.server == server && gone.begun < r.sent && at < gone.ending {
			return true
		}
	}
	return false
}

// unknown reports whether an error says that there is no such tool, or that nobody has tasks, and there may be none for
// this client.
func (c *configuration) unknown(r *record, f failure, at int64) bool {
	switch {
	case f.Code == -32602 && strings.HasPrefix(f.Message, "Unknown tool: "):
		return c.missing(r, r.op.Server, at) || c.denies(r.client, r.op.Server, tool)
	case f.Code == -32601 && r.op.Method == "tasks/list":
		return slices.ContainsFunc(servers, func(s string) bool { return c.missing(r, s, at) || c.denies(r.client, s, "*") })
	}
	return false
}

// missing reports whether a server may not have been there in the time of an operation, which ended at a time.
func (c *configuration) missing(r *record, server string, at int64) bool {
	return slices.ContainsFunc(c.removed, func(gone *removal) bool {
		return gone.server == server && gone.begins < at && r.sent < gone.ended
	})
}

// forbidden judges that no server gets a call that its client may not make, or that comes after the server was removed.
func (j *judge) forbidden(r *record) {
	for _, e := range slices.Concat(r.began, r.effects) {
		switch {
		case j.denies(r.client, r.op.Server, tool):
			j.found(3, fmt.Sprintf("%s came to %s, which is denied to its client", r.nonce, e.By), r.nonce)
		case j.withdrawn(r, r.op.Server, e.At):
			j.found(3, fmt.Sprintf("%s came to %s, which was removed", r.nonce, e.By), r.nonce)
		}
	}
}
