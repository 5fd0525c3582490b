package main

import (
	"context"
	"encoding/json"
	"fmt"
)

// What servers ask clients. The question has the nonce of the call that asks, and so has the reply.
const (
	elicitation = "elicitation/create"
	sampling    = "sampling/createMessage"
)

// questionOf returns the params of the question that a call asks.
func questionOf(a call) object {
	if a.Ask == sampling {
		return object{"messages": []object{{"role": "user", "content": object{"type": "text", "text": a.Nonce}}}, "maxTokens": 10}
	}
	return object{"message": a.Nonce, "requestedSchema": object{"type": "object", "properties": object{}}}
}

// asker returns the nonce of the call that asks a question.
func (p *params) asker() string {
	if len(p.Messages) > 0 {
		return p.Messages[0].Content.Text
	}
	return p.Message
}

// answerTo returns a client's reply to a question.
func answerTo(p *params) object {
	if len(p.Messages) > 0 {
		return object{"role": "assistant", "model": "none", "content": object{"type": "text", "text": p.asker()}}
	}
	return object{"action": "accept", "content": object{"nonce": p.asker()}}
}

// contentOf returns the nonce in a client's reply to a question.
func contentOf(reply json.RawMessage) string {
	var r struct{ Content struct{ Nonce, Text string } }
	_ = json.Unmarshal(reply, &r) // a reply of another shape has no nonce
	return r.Content.Nonce + r.Content.Text
}

// ask asks the client what the call is about. It returns false if the call is not to go on: it was cancelled,
// or its client is to come back with the reply.
func (c *connection) ask(ctx context.Context, m *message, p params) (reply string, goes bool) {
	method, params := p.Arguments.Ask, questionOf(p.Arguments)
	if c.modern {
		if p.RequestState != "" {
			reply = contentOf(p.InputResponses["q"])
			c.journal.add(Replied, p.Arguments.Nonce, reply)
			return reply, true
		}
		c.journal.add(Asked, p.Arguments.Nonce, "")
		c.reply(m, object{"resultType": "input_required", "requestState": p.Arguments.Nonce,
			"inputRequests": object{"q": object{"method": method, "params": params}}}, nil)
		return "", false
	}
	c.mu.Lock()
	c.asked++
	id := fmt.Sprint(c.asked)
	replied := make(chan message, 1)
	c.questions[id] = question{p.Arguments.Nonce, replied}
	c.mu.Unlock()
	c.journal.add(Asked, p.Arguments.Nonce, "")
	c.send(string(m.ID), &message{ID: json.RawMessage(id), Method: method, Params: encode(params)})
	select {
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.questions, id)
		c.mu.Unlock()
		return "", false
	case r := <-replied:
		if r.Error != nil {
			c.reply(m, nil, object{"code": -32603, "message": unasked})
			return "", false
		}
		reply = contentOf(r.Result)
		c.journal.add(Replied, p.Arguments.Nonce, reply)
		return reply, true
	}
}

// unasked is the error of a call whose question was refused. The others are errors for a question: the proxy cannot tell
// whose call asks, or that call has ended.
const (
	unasked      = "the question was refused"
	unattributed = "cannot attribute server request"
	callEnded    = "the call has ended"
	sessionOver  = "Connection closed: this session is over"
)

// A question is one that waits for its reply.
type question struct {
	nonce   string // of the call that asks
	replied chan<- message
}

// replied passes a reply to the call that waits for it. It is journaled here that it is an error, so that the order
// with a cancellation is that in which they came.
func (c *connection) replied(m *message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q, waits := c.questions[string(m.ID)]
	if !waits {
		return
	}
	delete(c.questions, string(m.ID))
	if m.Error != nil {
		c.journal.add(Refused, q.nonce, string(m.Error))
	}
	q.replied <- *m
}
