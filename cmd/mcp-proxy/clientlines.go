package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// ClientLines are the clients that are told of: each when its first request was answered, since
// then it has said what it is called, and when its session is over.
type clientLines struct {
	tell func(text string) // must not wait

	open sync.Map  // *connectedClient by session
	once sync.Once // of saying that several are one
}

// A connectedClient is a session, of one client or of all of one principal.
type connectedClient struct {
	transport string
	principal string

	mu    sync.Mutex // guards names
	names []string   // of its clients, as they call themselves
}

// mostClientLines bounds the names that one session has here.
const mostClientLines = 16

func (v *clientLines) came(s proxy.Session) {
	v.open.Store(s.ID, &connectedClient{transport: s.Transport, principal: s.Principal})
}

// asked is called for each call of a client.
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

// left is called at the end of each session. Who has said nothing is not told of.
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
