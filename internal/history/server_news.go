package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// listen opens a listen of the modern era.
func (c *connection) listen(m *message, p params) {
	wanted := p.Notifications
	c.journal.add(Subscription, "", m.Method+" "+strings.Join(wanted.ResourceSubscriptions, " "))
	honoured := notifications{ToolsListChanged: wanted.ToolsListChanged}
	if slices.Contains(wanted.ResourceSubscriptions, thingOf(c.name)) {
		honoured.ResourceSubscriptions = []string{thingOf(c.name)}
	}
	c.mu.Lock()
	c.listens[string(m.ID)] = honoured
	c.mu.Unlock()
	c.send(string(m.ID), &message{Method: "notifications/subscriptions/acknowledged", Params: encode(object{
		"notifications": honoured, "_meta": object{metaSubscription: m.ID}})})
}

// update tells the client that the resource has changed, because of a call.
func (c *connection) update(nonce string) {
	c.mu.Lock()
	follows := c.follows
	c.mu.Unlock()
	c.tell("notifications/resources/updated", object{"uri": thingOf(c.name), "cause": nonce}, follows,
		func(n notifications) bool { return n.ResourceSubscriptions != nil })
}

// changed tells the client that there is another list of tools.
func (c *connection) changed() {
	c.tell("notifications/tools/list_changed", object{}, !c.modern, func(n notifications) bool { return n.ToolsListChanged })
}

// tell sends a notification to a client of the legacy era if it follows, and on each listen that wants it.
func (c *connection) tell(method string, params object, follows bool, wants func(notifications) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if follows {
		c.send("", &message{Method: method, Params: encode(params)})
	}
	for id, n := range c.listens {
		if wants(n) {
			params["_meta"] = object{metaSubscription: json.RawMessage(id)}
			c.send(id, &message{Method: method, Params: encode(params)})
		}
	}
}

// tools lists the tool, and one whose name has the number of the list, if that has changed.
func (c *connection) tools() []object {
	schema := object{"type": "object"}
	all := []object{{"name": tool, "inputSchema": schema, "execution": object{"taskSupport": "optional"}}}
	if n, _ := c.register.apply(call{Do: "get", Key: "tools"}); n > 0 {
		all = append(all, object{"name": fmt.Sprint(numbered, n), "inputSchema": schema})
	}
	return all
}

// numbered begins the name of the tool that has the number of its list.
const numbered = "v"
