package main

import (
	"encoding/json"
	"strconv"
)

// follow subscribes to resources. Updates of them have a stream of their own over HTTP.
func (c *client) follow() {
	if w, ok := c.wire.(*posts); ok && !w.modern {
		w.listen()
	}
	switch {
	case c.kind.modern:
		var uris []string
		for _, server := range c.world.of(followed) {
			uris = append(uris, thingOf(server))
		}
		c.wire.send(&message{ID: json.RawMessage(`"listen"`), Method: "subscriptions/listen", Params: encode(object{
			"notifications": notifications{uris, true}, "_meta": c.meta()})})
	default:
		for _, server := range c.world.of(followed) {
			c.mu.Lock()
			c.last++
			id := strconv.Itoa(c.last)
			c.asks[id] = server
			c.mu.Unlock()
			c.wire.send(&message{ID: json.RawMessage(id), Method: "resources/subscribe", Params: encode(object{"uri": thingOf(server)})})
		}
	}
}

// subscribed takes the response to a request of a subscription, and the end of a listen.
func (c *client) subscribed(m *message) bool {
	c.mu.Lock()
	server, asked := c.asks[string(m.ID)]
	c.mu.Unlock()
	if asked && m.Error == nil {
		c.rec.add(c.name, Follows, "", server)
	}
	return asked || string(m.ID) == `"listen"`
}
