//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A client collects what it receives, over any wire.
type client struct {
	wire
	t *testing.T

	mu      sync.Mutex
	answers map[string]json.RawMessage // by id: the result, or the error with "!" before it
	asked   []*jsonrpc.Message
	twice   []string
	told    []string // notifications: method and params
}

// A wire is one way to reach the proxy.
type wire interface {
	send(text string) error // one message
	vanish()                // leaves; when it returns, the connection has ended
}

// dial connects a wire to a site; it passes each message that arrives to heard.
type dial func(s *site, heard func(text []byte)) (wire, error)

// wires are the ways in which clients reach a proxy, and leave it.
var wires = map[string]dial{
	"stdio": dialStdio,
	"WebSocket": func(s *site, heard func([]byte)) (wire, error) {
		return dialWebSocket(s.url, heard)
	},
	"HTTP": func(s *site, heard func([]byte)) (wire, error) {
		return newHTTPWire(s.url+"/mcp", heard), nil
	},
	"SSE": dialSSE,

	"modern stdio":     modern(dialStdio),
	"modern WebSocket": modern(func(s *site, heard func([]byte)) (wire, error) { return dialWebSocket(s.url, heard) }),
	"modern HTTP":      modern(dialModernHTTP),
}

// wiresOf returns the names of the wires of an era.
func wiresOf(era mcp.Era) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(wires)), func(name string) bool { return strings.HasPrefix(name, "modern ") != (era == mcp.Modern) })
}

// connect initializes a new client of the site's era over WebSocket.
func (s *site) connect() *client { return s.connectOver("WebSocket") }

// connectOver initializes a new client of the era in the wire's name, else of the site's
// era.
func (s *site) connectOver(name string) *client {
	s.t.Helper()
	if s.layout.client == mcp.Modern && !strings.HasPrefix(name, "modern ") {
		name = "modern " + name
	}
	c := s.join(name)
	c.say(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	c.await("init")
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

// join returns a new client that has sent nothing yet.
func (s *site) join(name string) *client {
	s.t.Helper()
	c := &client{t: s.t, answers: map[string]json.RawMessage{}}
	w, err := wires[name](s, c.heard)
	if err != nil {
		s.t.Fatal(err)
	}
	c.wire = w
	s.t.Cleanup(w.vanish)
	return c
}

func (c *client) heard(text []byte) {
	m, err := jsonrpc.Decode(text)
	if err != nil {
		c.t.Errorf("%s: %v", text, err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch id := m.ID.String(); {
	case m.IsRequest():
		c.asked = append(c.asked, m)
	case m.IsResponse():
		if c.answers[id] != nil {
			c.twice = append(c.twice, id)
		}
		c.answers[id] = m.Result
		if m.Error != nil {
			c.answers[id] = append([]byte("!"), sameEvent(m.Error)...)
		}
	default:
		c.told = append(c.told, m.Method+" "+string(m.Params))
	}
}

func (c *client) say(text string) {
	c.t.Helper()
	if err := c.send(text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) call(id int, tool string) {
	c.t.Helper()
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q}}`, id, tool))
}

// get calls a tool and returns the answer.
func (c *client) get(id int, tool string) string {
	c.t.Helper()
	c.call(id, tool)
	return c.await(strconv.Itoa(id))
}

// cancel cancels a call.
func (c *client) cancel(id string) {
	c.t.Helper()
	c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
}

// works calls a tool of an upstream until it answers: after a loss the first calls may be
// refused, but then they must not have reached the server. It returns how many calls were
// refused.
func (c *client) works(id int, tool string) (refused int) {
	c.t.Helper()
	first := id
	eventually(c.t, tool, func() bool {
		id++
		got := c.get(id, tool)
		if strings.HasPrefix(got, "!") && !strings.Contains(got, `"phase":"not_sent","retryable":true`) {
			c.t.Fatalf("the next call got %s", got)
		}
		return !strings.HasPrefix(got, "!")
	})
	return id - first - 1
}

// heardOf returns how many notifications contain part.
func (c *client) heardOf(part string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return countPart(c.told, part)
}

// accept answers all questions so far.
func (c *client) accept() {
	c.t.Helper()
	c.reply(func(json.RawMessage) string { return `{"action":"accept"}` })
}

// reply answers all questions so far with the result of answer for their params.
func (c *client) reply(answer func(question json.RawMessage) string) {
	c.t.Helper()
	c.mu.Lock()
	asked := c.asked
	c.asked = nil
	c.mu.Unlock()
	for _, q := range asked {
		c.say(`{"jsonrpc":"2.0","id":` + q.ID.String() + `,"result":` + answer(q.Params) + `}`)
	}
}

// questions returns how many questions are open.
func (c *client) questions() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.asked)
}

// await waits for the answer to a request.
func (c *client) await(id string) string {
	c.t.Helper()
	var answer json.RawMessage
	if _, err := strconv.Atoi(id); err != nil {
		id = strconv.Quote(id)
	}
	eventually(c.t, "answer to "+id, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		answer = c.answers[id]
		return answer != nil
	})
	return string(answer)
}

// answer returns the answer to a request; "" if there is none yet.
func (c *client) answer(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.answers[id])
}

// count returns how many answers satisfy ok.
func (c *client) count(ok func(answer string) bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, a := range c.answers {
		if ok(string(a)) {
			n++
		}
	}
	return n
}
