package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
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
