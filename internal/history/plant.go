package main

import (
	"encoding/json"
	"hash/fnv"
	"strings"
	"sync"
)

// A plant is a fault that this program makes between the proxy and a client, or that its servers make, to prove
// that the judge finds it. A nil plant makes none.
type plant struct {
	name string

	mu   sync.Mutex
	kept map[*client]*message // what a fault holds back, by the client
	last *message
}

// plants are the faults that can be planted, and which promise each breaks.
var plants = map[string]int{
	// Between the proxy and clients.
	"answer twice": 1, "lose an answer": 1, "swap two answers": 3, "deny an execution": 2, "lose a cancel": 4,
	"send progress late": 5, "lose progress": 5, "give progress to another": 3,
	// Of servers.
	"execute twice": 2, "cancel another": 4, "forget a write": 7, "leave a process": 8,
}

// plantsOfReplicas are those of the world of replicas, between the balancer and clients.
var plantsOfReplicas = map[string]int{"send to two replicas": 2, "fail a call": 9, "forget a session": 9}

func (o options) plants() map[string]int {
	if o.replicas {
		return plantsOfReplicas
	}
	return plants
}

// repeats reports whether a message is to be sent twice, as by a balancer that tries again what was sent.
func (p *plant) repeats(m *message) bool { return p.hits("send to two replicas", m) }

// forgets reports whether a session is to be unknown from a message on.
func (p *plant) forgets(m *message) bool { return p.hits("forget a session", m) }

func (p *plant) hits(name string, m *message) bool {
	if p == nil || p.name != name {
		return false
	}
	q, err := m.params()
	return err == nil && q.Arguments.Nonce != "" && planted(q.Arguments.Nonce)
}

// server returns the fault for the servers.
func (p *plant) server() string {
	if p == nil {
		return ""
	}
	return p.name
}

// planted chooses the operations to which a planted fault is done: one in eight.
func planted(nonce string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(nonce)) // never fails
	return h.Sum32()%8 == 0
}

// change returns what a client receives instead of m.
func (p *plant) change(c *client, m *message) []*message {
	if p == nil {
		return []*message{m}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil {
		p.kept = map[*client]*message{}
	}
	nonce := c.nonceOf(m)
	if !planted(nonce) && p.name != "swap two answers" {
		return []*message{m}
	}
	isResult := m.isResponse() && strings.Contains(string(m.Result), "structuredContent")
	isProgress := m.Method == "notifications/progress"
	switch {
	case p.name == "answer twice" && isResult:
		return []*message{m, m}
	case p.name == "lose an answer" && isResult, p.name == "lose progress" && isProgress:
		return nil
	case p.name == "deny an execution" && isResult:
		return []*message{{ID: m.ID, Error: json.RawMessage(`{"code":-32603,"message":"Connection closed","data":` +
			`{"reason":"connection_closed","cause":"link lost","phase":"not_sent","retryable":true}}`)}}
	case p.name == "fail a call" && isResult:
		return []*message{{ID: m.ID, Error: json.RawMessage(`{"code":-32603,"message":"Connection closed","data":` +
			`{"reason":"connection_closed","cause":"link lost","phase":"in_flight","retryable":false}}`)}}
	case p.name == "swap two answers" && isResult:
		other := p.last
		p.last = m
		if other != nil && planted(nonce) {
			return []*message{{ID: m.ID, Result: other.Result}}
		}
	case p.name == "send progress late" && isProgress:
		p.kept[c] = m
		return nil
	case p.name == "send progress late" && isResult && p.kept[c] != nil:
		late := p.kept[c]
		delete(p.kept, c)
		return []*message{m, late}
	case p.name == "give progress to another" && isProgress:
		q, _ := m.params()
		return []*message{{Method: m.Method, Params: encode(object{
			"progressToken": "c0.0.0:0", "progress": q.Progress, "message": q.Message})}}
	}
	return []*message{m}
}

// nonceOf returns the nonce of the operation to which a message belongs.
func (c *client) nonceOf(m *message) string {
	if p, err := m.params(); err == nil && p.nonce() != "" {
		return p.nonce()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.open[string(m.ID)]; o != nil && m.isResponse() {
		return o.Nonce
	}
	return ""
}
