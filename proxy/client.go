package proxy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// A Client is a client of a [Proxy] in the same program. It refuses all requests of servers. Several goroutines may
// use it. Its owner closes it.
type Client struct {
	// Hello is what answered initialize, as it came.
	Hello json.RawMessage

	peer *peer.Peer
	end  context.CancelFunc
	over chan struct{} // closed when nothing of it runs any more
}

// Client begins a session for this program, with one upstream, or with all if that is "". To policies it is the
// operator. When ctx is done before initialize is answered, the session ends.
func (p *Proxy) Client(ctx context.Context, upstream string) (*Client, error) {
	p.start()
	if !p.inside.enter() {
		return nil, jsonrpc.ErrClosed
	}
	near, far := jsonrpc.Pipe()
	go func() {
		defer p.inside.leave()
		_ = p.router.Serve(p.serving, identity.TheOperator, upstream, inProgram{far}) // near hears why
	}()
	return newClient(ctx, near)
}

// An inProgram is a client's Conn that ends in this program.
type inProgram struct{ *jsonrpc.PipeConn }

// Transport says how it is carried.
func (inProgram) Transport() string { return "program" }

// newClient returns a client on c, which it owns. It has completed initialize.
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

// maxAsked bounds the pending requests of servers, all of which are refused.
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

// Close ends the session. Its servers are stopped, which [Proxy.Shutdown] waits for.
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

// Error implements error. For a lost connection it is the sentence that says what happened.
func (e *AnswerError) Error() string {
	if what, ok := jsonrpc.WhatClosed(e.Message, e.Data); ok {
		return what
	}
	return fmt.Sprintf("%s (%d)", e.Message, e.Code)
}

// Closed reports whether a lost or missing connection is the reason.
func (e *AnswerError) Closed() bool {
	_, ok := jsonrpc.WhatClosed(e.Message, e.Data)
	return ok
}

// Status is the HTTP status that the server answered with, 0 if there is none.
func (e *AnswerError) Status() int {
	var data struct{ Cause jsonrpc.Cause }
	_ = json.Unmarshal(e.Data, &data) // a server's own error may have any data
	return data.Cause.HTTPStatus()
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
	Total    float64 `json:"total"` // 0: not known
	Message  string  `json:"message"`
}

// Request sends a request, and returns the result as it came. Params may be nil. Progress, unless nil, is called for
// each notification; it must return soon. The error is an [*AnswerError], or what ended the session, or the cause of
// ctx: then the request is cancelled.
func (c *Client) Request(ctx context.Context, method string, params json.RawMessage, progress func(Progress)) (json.RawMessage, error) {
	answers := make(chan answered, 1)
	call := c.peer.NewCall(method)
	call.Done = func(m *jsonrpc.Message, lost *peer.Lost) { answers <- answered{m, lost} }
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
	case a := <-answers:
		return a.result()
	case <-ctx.Done():
		if call.Cancel(context.Cause(ctx).Error()) {
			return nil, context.Cause(ctx)
		}
		a := <-answers
		return a.result()
	}
}

// An answered is the end of a request: its answer, or its loss.
type answered struct {
	m    *jsonrpc.Message
	lost *peer.Lost
}

func (a answered) result() (json.RawMessage, error) {
	switch {
	case a.lost != nil:
		return nil, a.lost.End
	case a.m.Error != nil:
		return nil, answerError(a.m.Error)
	}
	return a.m.Result, nil
}

// Limits of [Client.List].
const (
	maxListPages = 1000
	maxListBytes = 256 << 20
)

var errEndless = errors.New("the list is endless")

// List asks for all pages of a list, such as "tools/list", and returns its elements as they came.
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

// Offers reports whether the server declares a capability, such as "tools".
func (c *Client) Offers(capability string) bool {
	all, _ := jsonrpc.Member(c.Hello, "capabilities")
	has, _ := jsonrpc.Member(all, capability)
	return has != nil
}

// helloParams are the params of initialize, of a client without capabilities.
func helloParams() json.RawMessage {
	return json.RawMessage(`{"protocolVersion":"` + mcp.LegacyVersions[0] + `","capabilities":{},"clientInfo":{"name":"mcp-proxy","version":"` + Version() + `"}}`)
}

// An Offer is what a client sees of a proxy: lists as they are sent, and which upstreams are missing in them.
type Offer struct {
	Tools     []json.RawMessage `json:"tools"`
	Prompts   []json.RawMessage `json:"prompts,omitzero"`
	Resources []json.RawMessage `json:"resources,omitzero"`
	Templates []json.RawMessage `json:"resourceTemplates,omitzero"`
	Missing   []Missing         `json:"missing,omitzero"`
}

// Missing is an upstream or link that is not available.
type Missing struct {
	Name string `json:"name"`
	Why  string `json:"why"` // in words that follow the name
}

// Offer asks for all tools, and for everything else if all is true. It knows which upstreams of this process are missing,
// provided that there is no other client.
func (p *Proxy) Offer(ctx context.Context, c *Client, all bool) (*Offer, error) {
	o := &Offer{Tools: []json.RawMessage{}}
	lists := []struct {
		method, member string
		into           *[]json.RawMessage
	}{
		{mcp.MethodToolsList, "tools", &o.Tools},
		{mcp.MethodPromptsList, "prompts", &o.Prompts},
		{mcp.MethodResourcesList, "resources", &o.Resources},
		{mcp.MethodTemplatesList, "resourceTemplates", &o.Templates},
	}
	for _, l := range lists {
		capability := cmp.Or(map[string]string{"resourceTemplates": "resources"}[l.member], l.member)
		if !c.Offers(capability) || !all && l.member != "tools" {
			continue
		}
		found, err := c.List(ctx, l.method, l.member)
		o.Missing = p.missing()
		if _, answered := errors.AsType[*AnswerError](err); err != nil && !(answered && len(o.Missing) > 0) { // else those would have listed
			return nil, fmt.Errorf("%s: %w", l.method, err)
		}
		*l.into = append(*l.into, found...)
	}
	o.Missing = p.missing()
	return o, nil
}

// missing returns the upstreams and links that are not available to the only client.
func (p *Proxy) missing() (all []Missing) {
	byName := representative(p.host.host.Status())
	for _, u := range p.host.configured() {
		s, seen := byName[u]
		switch {
		case seen && s.State == upstream.StateRunning:
		case s.Says != "":
			all = append(all, Missing{u, s.Says})
		case seen && s.State == upstream.StateStarting:
			all = append(all, Missing{u, "is still starting"})
		}
	}
	for _, l := range p.links.snapshot() {
		if !l.Up {
			all = append(all, Missing{l.Name, l.Why})
		}
	}
	return all
}

// representative returns, of each upstream, the status that says most about its availability: a running server, else
// one with a failure. A server that was only asked for its era says nothing.
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

// Narrow returns a configuration with only the upstream that the name of a tool names, if it names one: nothing else has
// to start then. Names stay what they were.
func Narrow(cfg *config.Config, tool string) *config.Config {
	narrow := Quiet(cfg)
	u, _ := named(cfg, tool)
	if u == nil || len(cfg.Upstreams)+len(cfg.Links) < 2 {
		return narrow
	}
	narrow.Upstreams, narrow.Links = []config.Upstream{*u}, nil
	return narrow
}

// runs returns a configuration with the upstreams that run here now.
func (h *hosting) runs() *config.Config {
	h.mu.Lock()
	defer h.mu.Unlock()
	cfg := &config.Config{}
	for _, name := range slices.Sorted(maps.Keys(h.configs)) {
		cfg.Upstreams = append(cfg.Upstreams, h.configs[name])
	}
	return cfg
}

// named returns the upstream of a configuration that the name of a tool begins with, by its prefix or
// as policies call it, and the rest of the name; nil for none. A sole upstream has all names.
func named(cfg *config.Config, tool string) (found *config.Upstream, rest string) {
	naming := catalog.Naming(strings.TrimPrefix(cfg.Prefix, "auto"))
	sole := len(cfg.Upstreams) == 1 && len(cfg.Links) == 0
	longest := ""
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		for _, prefix := range []string{naming.Prefix(u.Name, u.Prefix, !sole), policy.Name(u.Name, "")} {
			if len(prefix) > len(longest) && strings.HasPrefix(tool, prefix) {
				found, longest = u, prefix
			}
		}
	}
	if found == nil && sole {
		found = &cfg.Upstreams[0]
	}
	return found, strings.TrimPrefix(tool, longest)
}
