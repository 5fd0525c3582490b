package eras

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// retry handles a request that comes back with a requestState. Whatever is wrong with
// it, the call never runs a second time: its first half may have had its effect.
func (s *modernClient) retry(r *peer.Request, said Request) {
	if err := checkResponses(said.Input); err != nil {
		r.Fail(jsonrpc.InvalidParams(err.Error()))
		return
	}
	state, _ := jsonrpc.Unquote(said.State)
	use := stateUse{state, digestOf(r.Method, r.Message.Params), sha256.Sum256(canonicalIfShort(said.Input))}
	if c, result := s.comeBack(r, said, use); c != nil {
		c.finish(result)
	}
}

// checkResponses returns what keeps inputResponses from being an object of results.
func checkResponses(responses json.RawMessage) error {
	if responses == nil {
		return nil
	}
	var wrong error
	err := jsonrpc.Each(responses, func(_ string, value json.RawMessage) {
		if value[0] != '{' {
			wrong = errors.New(`a value in "inputResponses" is not an object`)
		}
	})
	if err != nil {
		return errors.New(`"inputResponses" is not an object`)
	}
	return wrong
}

// comeBack goes on with the call that a state belongs to. If it was answered meanwhile,
// it returns that answer, to be given to the client.
func (s *modernClient) comeBack(r *peer.Request, said Request, u stateUse) (*modernCall, *jsonrpc.Message) {
	a := s.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if rc := a.answers.find(u); rc != nil {
		r.Respond(rc.replay(u))
		return nil, nil
	}
	p := a.suspensions[u.state]
	switch {
	case p == nil || !time.Now().Before(p.expiry):
		r.Fail(refusedState(stateExpired))
		return nil, nil
	case p.digest != u.digest:
		r.Fail(refusedState(stateInvalid))
		return nil, nil
	case p.call != nil && p.call.state != suspended:
		r.Fail(refusedState(stateUsed))
		return nil, nil
	case p.call == nil:
		s.restartLocked(r, said, p, u)
		return nil, nil
	}
	c := p.call
	if !s.enterLocked(c, r, said) {
		return nil, nil
	}
	c.stored = a.answers.add(u)
	c.state = forwarded
	if result := c.takeKept(); result != nil {
		return c, result
	}
	c.goOn()
	return nil, nil
}

// goOn gives the server the input that it has asked for. What is missing is
// asked again.
func (c *modernCall) goOn() {
	defer c.LetGo()
	l := c.session
	l.raiseLevel(c)
	open, responses := slices.Clone(c.requests), c.responses()
	for i, q := range open {
		if responses[i] != nil {
			q.done()
			q.Respond(&jsonrpc.Message{Result: StripReserved(responses[i])})
		}
	}
	if kept := c.progress.kept; kept != nil {
		c.progress.kept = nil
		c.tellProgress(kept)
	}
	if len(c.requests) > 0 {
		c.gather(collectFor)
	}
}

// responses returns what the client says to each open request, nil for nothing, in
// one pass. What can be read in two ways says nothing.
func (c *modernCall) responses() []json.RawMessage {
	keys, at, responses := make([]string, len(c.requests)), make([]jsonrpc.Span, len(c.requests)), make([]json.RawMessage, len(c.requests))
	for i, q := range c.requests {
		keys[i] = q.key
	}
	if jsonrpc.Find(c.Input, jsonrpc.Span{}, at, keys...) == nil {
		for i := range at {
			responses[i] = at[i].Of(c.Input)
		}
	}
	return responses
}

// urlsOf returns the requests for input that a refusal amounts to which names URLs to
// visit first (2025-11-25 client/elicitation, "URL Elicitation Required"); or the
// error for a client that does not take them.
func (c *modernCall) urlsOf(e WireError) (*jsonrpc.Message, []byte) {
	list, err := jsonrpc.Member(e.Data, "elicitations")
	elicitations, errList := jsonrpc.Elements(list)
	if err != nil || errList != nil || len(elicitations) == 0 || len(elicitations) > maxCallRequests {
		return &jsonrpc.Message{Error: ToModernError(e.Text)}, nil
	}
	if !AbilitiesOf(c.Capabilities).URL {
		return jsonrpc.Failure(mcp.MissingCapability([]byte(`{"elicitation":{"url":{}}}`))), nil
	}
	requests := make([]jsonrpc.Value, 0, len(elicitations))
	for i, params := range elicitations {
		params = jsonrpc.Set(params, jsonrpc.Value{Key: "mode", Text: []byte(`"url"`)})
		requests = append(requests, jsonrpc.Value{Key: keyOf(i + 1), Text: InputRequest(mcp.MethodElicit, params)})
	}
	return nil, jsonrpc.Set(nil, requests...)
}

// restart returns the answer to a call that was refused until its client has
// visited URLs. When it comes back the call begins anew: nothing has run.
func (c *modernCall) restart(requests json.RawMessage, digest [32]byte) *jsonrpc.Message {
	if c.restarts >= maxRounds {
		return jsonrpc.Failure(errTooManyAsks)
	}
	p := c.group.a.newSuspensionLocked(nil, digest)
	if p == nil {
		return jsonrpc.Failure(jsonrpc.Overloaded(c.group.a.id.upstream))
	}
	p.round = c.restarts
	return &jsonrpc.Message{Result: InputRequired(requests, p.newState(), c.serverInfo)}
}

// restartLocked begins a call anew, once.
func (s *modernClient) restartLocked(r *peer.Request, said Request, p *suspension, u stateUse) {
	c := newModernCall(r.Message)
	if c.restarts = p.round; !s.enterLocked(c, r, said) {
		return
	}
	c.stored = s.a.answers.add(u)
	p.forget()
	c.group.place(c)
}
