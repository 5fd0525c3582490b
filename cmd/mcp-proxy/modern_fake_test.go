//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"
)

// The tests' own client and server of the modern era understand each other without
// a proxy between.
func TestModernFake(t *testing.T) {
	address := keepServing(t, `FAKE_ERA: "modern"`)
	for _, wire := range []string{"modern WebSocket"} {
		t.Run(wire, func(t *testing.T) {
			s := &site{t: t, url: "http://" + address}
			c := s.connectOver(wire)
			useModern(c, "")
		})
	}
}

// useModern uses everything that the two eras have in common; prefix is that of the server's
// names.
func useModern(c *client, prefix string) {
	t := c.t
	t.Helper()
	defer func() {
		if t.Failed() {
			c.mu.Lock()
			defer c.mu.Unlock()
			t.Log("told", c.told)
		}
	}()
	if got := c.get(1, prefix+"echo"); got != `{"content":[],"structuredContent":{}}` {
		t.Error("echo got", got)
	}
	c.say(`{"jsonrpc":"2.0","id":"level","method":"logging/setLevel","params":{"level":"info"}}`)
	c.await("level")
	c.callWithToken(2, prefix+"notify")
	c.await("2")
	if c.heardOf(`notifications/progress {"progressToken":"t","progress":1}`) != 1 || c.heardOf(`"said"`) != 1 {
		t.Error("notify told", c.told)
	}
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"%sask","arguments":{"about":"3","n":1.50}}}`, prefix))
	eventually(t, "the question", func() bool { return c.questions() == 1 })
	c.accept()
	if got := c.await("3"); got != `{"action":"accept"}` {
		t.Error("ask got", got)
	}
	c.listen(4, `{"toolsListChanged":true,"resourceSubscriptions":["fake://thing"]}`)
	c.get(5, prefix+"grow")
	c.get(6, prefix+"update")
	eventually(t, "the changes", func() bool {
		return c.heardOn(4, "tools/list_changed") == 1 && c.heardOn(4, `"fake://thing"`) >= 1
	})
	c.cancel("4")
	if got := c.get(8, prefix+"grown1"); strings.HasPrefix(got, "!") {
		t.Error("grown1 got", got)
	}
	if c.count(func(string) bool { return true }) != 8 {
		t.Error("answers:", c.answers)
	}
}
