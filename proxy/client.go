package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// A Client is a client of a [Proxy] in the same program. It refuses all requests of servers. Several goroutines may
// use it. Its owner closes it.
type Client struct {
	Hello json.RawMessage // the result of initialize as received

	peer *peer.Peer
	end  context.CancelFunc
	over chan struct{} // closed by run at its end
}

// Client begins a session for this program, with one upstream, or with all if upstream is "". Policies treat it as the
// operator. The session ends if ctx is done before initialize is answered. The caller closes the Client.
func (p *Proxy) Client(ctx context.Context, upstream string) (*Client, error) {
	p.start()
	if !p.inside.enter() {
		return nil, jsonrpc.ErrClosed
	}
	near, far := jsonrpc.Pipe()
	go func() {
		defer p.inside.leave()
		_ = p.router.Serve(p.serving, identity.TheOperator, upstream, inProgram{far}) // near returns the cause
	}()
	return newClient(ctx, near)
}

// An inProgram is the Conn of a [Client].
type inProgram struct{ *jsonrpc.PipeConn }

// Transport names the transport for operators.
func (inProgram) Transport() string { return "program" }

// newClient completes initialize on c and returns the client, which closes c.
func newClient(ctx context.Context, c jsonrpc.Conn) (*Client, error) {
	running, end := context.WithCancel(context.Background())
	client := &Client{end: end, over: make(chan struct{})}
	client.peer = peer.New(peer.Options{Requests: maxAsked, Request: refuseToAnswer})
	go client.run(running, c)
	var err error
	client.Hello, err = client.Request(ctx, mcp.MethodInitialize, helloParams(), nil)
	if err != nil {
		client.Close()
		return nil, err
	}
	client.peer.Send(jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	return client, nil
}

// maxAsked bounds the pending requests of servers. The client refuses them all.
const maxAsked = 16

// refuseToAnswer answers requests of servers.
func refuseToAnswer(r *peer.Request) {
	if r.Method == mcp.MethodPing {
		r.Respond(&jsonrpc.Message{Result: json.RawMessage(`{}`)})
		return
	}
	r.Fail(jsonrpc.MethodNotFound(r.Method))
}

// run serves c until it ends.
func (c *Client) run(ctx context.Context, conn jsonrpc.Conn) {
	defer close(c.over)
	c.peer.End(c.peer.Run(ctx, conn))
	jsonrpc.CloseWith(conn, nil)
}

// Close ends the session, and its servers stop. [Proxy.Shutdown] waits for them.
func (c *Client) Close() {
	c.end()
	<-c.over
}

// An AnswerError is an error response.
type AnswerError struct {
	Code    int
	Message string
	Data    json.RawMessage // nil for none
}

// Error implements error. For a lost connection it returns the sentence that describes the end.
func (e *AnswerError) Error() string {
	if what, ok := jsonrpc.WhatClosed(e.Message, e.Data); ok {
		return what
	}
	return fmt.Sprintf("%s (%d)", e.Message, e.Code)
}

// Closed reports whether a connection was lost or missing.
func (e *AnswerError) Closed() bool {
	_, ok := jsonrpc.WhatClosed(e.Message, e.Data)
	return ok
}

// Status returns the HTTP status of the server's answer, 0 if there is none.
func (e *AnswerError) Status() int { return e.cause().HTTPStatus() }

// NeedsLogin reports whether a person must log in to the server first.
func (e *AnswerError) NeedsLogin() bool { return e.cause() == jsonrpc.CauseLogin }

func (e *AnswerError) cause() jsonrpc.Cause {
	var data struct{ Cause jsonrpc.Cause }
	_ = json.Unmarshal(e.Data, &data) // a server's own error may have any data
	return data.Cause
}

// answerError parses an error response.
func answerError(text json.RawMessage) error {
	e := &AnswerError{}
	if err := json.Unmarshal(text, e); err != nil || e.Message == "" {
		return &AnswerError{Code: e.Code, Message: "the server says no more about it", Data: e.Data}
	}
	return e
}

// A Progress is a progress notification of a server.
type Progress struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"` // 0 if not known
	Message  string  `json:"message"`
}

// Request sends a request and returns the result as received. Params may be nil. Progress, unless nil, is called for
// each progress notification and must return soon. The error is an [*AnswerError], the end of the session, or the cause
// of ctx, whose end cancels the request.
func (c *Client) Request(ctx context.Context, method string, params json.RawMessage, progress func(Progress)) (json.RawMessage, error) {
	var result json.RawMessage
	var failure error
	done := make(chan struct{})
	call := c.peer.NewCall(method)
	call.Done = func(m *jsonrpc.Message, lost *peer.Lost) {
		result, failure = resultOf(m, lost)
		close(done)
	}
	if progress != nil {
		params = mcp.SetMeta(params, jsonrpc.Value{Key: "progressToken", Text: call.ID.Raw()})
		call.Progress = func(m *jsonrpc.Message, _ jsonrpc.Span) {
			var p Progress
			if json.Unmarshal(m.Params, &p) == nil {
				progress(p)
			}
		}
	}
	if err := call.Send(jsonrpc.NewRequest(jsonrpc.ID{}, method, params)); err != nil {
		return nil, err
	}
	select {
	case <-done:
	case <-ctx.Done():
		if call.Cancel(context.Cause(ctx).Error()) {
			return nil, context.Cause(ctx)
		}
		<-done
	}
	return result, failure
}

// resultOf returns the result of a call that was answered with m or lost.
func resultOf(m *jsonrpc.Message, lost *peer.Lost) (json.RawMessage, error) {
	switch {
	case lost != nil:
		return nil, lost.End
	case m.Error != nil:
		return nil, answerError(m.Error)
	}
	return m.Result, nil
}

// listKinds are the lists that servers have, each with the capability that declares it.
var listKinds = []struct{ capability, method, member string }{
	{"tools", mcp.MethodToolsList, "tools"},
	{"prompts", mcp.MethodPromptsList, "prompts"},
	{"resources", mcp.MethodResourcesList, "resources"},
	{"resources", mcp.MethodTemplatesList, "resourceTemplates"},
}

// Limits of [Client.List].
const (
	maxListPages = 1000
	maxListBytes = 256 << 20
)

var errEndless = errors.New("the list is endless")

// List asks for all pages of a list, such as "tools/list", and returns its elements as received.
func (c *Client) List(ctx context.Context, method, member string) (all []json.RawMessage, err error) {
	var params, last json.RawMessage
	size := 0
	for range maxListPages {
		page, err := c.Request(ctx, method, params, nil)
		if err != nil {
			return all, err
		}
		if size += len(page); size > maxListBytes {
			return all, errEndless
		}
		text, err := jsonrpc.Member(page, member)
		if err != nil {
			return all, fmt.Errorf("%s: %w", method, err)
		}
		elements, err := jsonrpc.Elements(text)
		if err != nil {
			return all, fmt.Errorf("%s: %s is not a list", method, member)
		}
		all = append(all, elements...)
		cursor, _ := jsonrpc.Member(page, "nextCursor")
		if len(cursor) == 0 || string(cursor) == "null" {
			return all, nil
		}
		if bytes.Equal(cursor, last) {
			break
		}
		last, params = cursor, jsonrpc.Set(nil, jsonrpc.Value{Key: "cursor", Text: cursor})
	}
	return all, errEndless
}

// ask is a [lists.AskFunc].
func (c *Client) ask(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
	result, err := c.Request(ctx, method, params, nil)
	if refused, ok := errors.AsType[*AnswerError](err); ok {
		return nil, &lists.AnswerError{Wire: (&jsonrpc.Error{Code: refused.Code, Message: refused.Message}).Raw()}
	}
	return result, err
}

// Offers reports whether the server declares a capability, such as "tools".
func (c *Client) Offers(capability string) bool {
	all, _ := jsonrpc.Member(c.Hello, "capabilities")
	has, _ := jsonrpc.Member(all, capability)
	return has != nil
}

// offersSkills reports whether the server declares the extension of skills.
func (c *Client) offersSkills() bool {
	all, _ := jsonrpc.Member(c.Hello, "capabilities")
	extensions, _ := jsonrpc.Member(all, "extensions")
	skills, _ := jsonrpc.Member(extensions, mcp.ExtensionSkills)
	return skills != nil
}

// helloParams returns the params of initialize for a client without capabilities.
func helloParams() json.RawMessage {
	return json.RawMessage(`{"protocolVersion":"` + mcp.LegacyVersions[0] + `","capabilities":{},"clientInfo":{"name":"mcp-proxy","version":"` + Version() + `"}}`)
}

// An Offer is what a client sees of a proxy: the lists as received, and the upstreams that are missing in them.
type Offer struct {
	Tools     []json.RawMessage `json:"tools"`
	Prompts   []json.RawMessage `json:"prompts,omitzero"`
	Resources []json.RawMessage `json:"resources,omitzero"`
	Templates []json.RawMessage `json:"resourceTemplates,omitzero"`
	Skills    []json.RawMessage `json:"skills,omitzero"`
	Missing   []Missing         `json:"missing,omitzero"`
}

// Missing is an upstream or link that is not available.
type Missing struct {
	Name string `json:"name"`
	Why  string `json:"why"` // in words that follow the name
}

// representative returns for each upstream the status that tells most about its availability: a running server, else
// one with a failure. A server that was only asked for its era tells nothing.
func representative(all []upstream.Status) map[string]upstream.Status {
	byName := make(map[string]upstream.Status)
	for _, s := range all {
		runs := s.State == upstream.StateRunning
		if old, seen := byName[s.Upstream]; !seen || runs || s.Says != "" && old.State != upstream.StateRunning {
			byName[s.Upstream] = s
		}
	}
	return byName
}

// Offer asks for the tools, and for all other lists if all is true. It knows which upstreams of this process are
// missing only if there is no other client.
func (p *Proxy) Offer(ctx context.Context, c *Client, all bool) (*Offer, error) {
	o := &Offer{Tools: []json.RawMessage{}}
	into := []*[]json.RawMessage{&o.Tools, &o.Prompts, &o.Resources, &o.Templates}
	for i, l := range listKinds {
		if !c.Offers(l.capability) || !all && l.member != "tools" {
			continue
		}
		found, err := c.List(ctx, l.method, l.member)
		o.Missing = p.missing()
		_, answered := errors.AsType[*AnswerError](err)
		if err != nil && !(answered && len(o.Missing) > 0) { // else the missing ones have the list
			return nil, fmt.Errorf("%s: %w", l.method, err)
		}
		*into[i] = append(*into[i], found...)
	}
	if all && c.offersSkills() {
		found, err := c.List(ctx, mcp.MethodSkillsList, "skills")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", mcp.MethodSkillsList, err)
		}
		o.Skills = found
	}
	o.Missing = p.missing()
	return o, nil
}

// missing returns the upstreams and links that are not available to the only client.
func (p *Proxy) missing() (all []Missing) {
	byName := representative(p.host.host.Status())
	configured, links := p.host.configured(), p.links.snapshot()
	for _, u := range configured {
		s, seen := byName[u]
		left := p.router.LeftOut(u) // also if it runs, or was stopped since it was too slow
		switch {
		case s.Says != "" && s.State != upstream.StateRunning:
			all = append(all, Missing{u, s.Says})
		case seen && s.State == upstream.StateStarting:
			all = append(all, Missing{u, "is still starting"})
		case left != "" && len(configured)+len(links) > 1: // the list of a sole one is its own error
			all = append(all, Missing{u, "is left out of a list: " + left})
		}
	}
	for _, l := range links {
		if !l.Up {
			all = append(all, Missing{l.Name, l.Why})
		}
	}
	return all
}
