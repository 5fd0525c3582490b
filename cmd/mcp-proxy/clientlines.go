package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// ClientLines tell which clients connect and disconnect: each client when its first request has ended, since
// its name is known then, and when its session ends.
type clientLines struct {
	tell func(text string) // writes a line; must not block

	open sync.Map  // *connectedClient by session
	once sync.Once // guards the hint about clients that share a session
}

// A connectedClient is a session: that of one client, or of all clients of one principal.
type connectedClient struct {
	transport string
	principal string

	mu    sync.Mutex // guards names
	names []string   // the names that its clients gave
}

// mostClientLines bounds the names kept of one session.
const mostClientLines = 16

func (v *clientLines) came(s proxy.Session) {
	v.open.Store(s.ID, &connectedClient{transport: s.Transport, principal: s.Principal})
}

// asked is called when a request of a client has ended.
func (v *clientLines) asked(c proxy.Request, _ proxy.End) {
	found, ok := v.open.Load(c.Session)
	if !ok {
		return
	}
	one := found.(*connectedClient)
	name := cmp.Or(oneLine(bare(c.Client), 40), "somebody")
	one.mu.Lock()
	known := slices.Contains(one.names, name) || len(one.names) == mostClientLines
	if !known {
		one.names = append(one.names, name)
	}
	together := len(one.names)
	one.mu.Unlock()
	if known {
		return
	}
	v.tell(one.hello(name, c))
	if together == 2 && one.principal == "anonymous" {
		v.once.Do(func() {
			v.tell("clients do not authenticate here, so these clients are one, and servers remember the same for both. Give them tokens (auth.tokens) to separate them.")
		})
	}
}

func (v *connectedClient) hello(name string, c proxy.Request) string {
	about := []string{v.transport}
	if v.principal != "" && v.principal != "anonymous" {
		about = append(about, v.principal)
	}
	return fmt.Sprintf("%s connected (%s, session %s)", name, strings.Join(about, ", "), c.Session)
}

// left is called at the end of each session. A session without a request has no line.
func (v *clientLines) left(s proxy.Session, end proxy.End) {
	found, ok := v.open.LoadAndDelete(s.ID)
	if !ok {
		return
	}
	one := found.(*connectedClient)
	one.mu.Lock()
	names := strings.Join(one.names, ", ")
	one.mu.Unlock()
	if names == "" {
		return
	}
	text := fmt.Sprintf("%s disconnected after %s", names, roughly(end.Took))
	if end.Outcome != proxy.OK {
		text += ": " + end.Cause
	}
	v.tell(text)
}
