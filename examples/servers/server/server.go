// Package server serves MCP on stdin and stdout, in the versions with initialize. It is just large enough for the servers
// of the quickstart: with an SDK they take much longer to compile. For a server of your own use an SDK.
package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"sync"
)

// A Server answers requests. Its fields must not change once Serve is called.
type Server struct {
	Name, Version string
	Instructions  string
	Capabilities  map[string]any // besides tools
	Tools         []Tool
	Methods       map[string]Method // besides initialize, ping and those of tools
}

// A Method answers a request. It runs in a goroutine of its own, until ctx ends because the client cancels the request or
// leaves. The result is encoded as JSON. An [Error] is sent as it is, any other error as an internal one.
type Method func(ctx context.Context, r *Request) (result any, err error)

// A Tool is listed by tools/list. Call gets the arguments as the request's params and returns the result of [Text] or
// [Structured]. Its error becomes a result with isError, which the model reads.
type Tool struct {
	Name         string          `json:"name"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema,omitempty"`
	Annotations  map[string]bool `json:"annotations,omitempty"`
	Call         Method          `json:"-"`
}

// A Request is one of the client's.
type Request struct {
	Params json.RawMessage

	token json.RawMessage // for progress; nil if the client wants none
	send  func(message) error
}

// Read decodes the params into to. It returns an [Error] if they do not fit.
func (r *Request) Read(to any) error {
	if len(r.Params) == 0 {
		return nil
	}
	if err := json.Unmarshal(r.Params, to); err != nil {
		return &Error{Code: -32602, Message: "invalid params: " + err.Error()}
	}
	return nil
}

// Notify sends a notification.
func (r *Request) Notify(method string, params any) error {
	text, err := json.Marshal(params)
	if err != nil {
		return err
	}
	return r.send(message{Method: method, Params: text})
}

// Progress tells the client how much of total is done, if it wants to know.
func (r *Request) Progress(done, total int) error {
	if r.token == nil {
		return nil
	}
	return r.Notify("notifications/progress", map[string]any{"progressToken": r.token, "progress": done, "total": total})
}

// An Error is the error of a request.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// Text returns the result of a tool that consists of a text.
func Text(text string) any {
	return map[string]any{"content": []any{map[string]string{"type": "text", "text": text}}}
}

// Structured returns the result of a tool that has an output schema.
func Structured(output any) (any, error) {
	text, err := json.Marshal(output)
	if err != nil {
		return nil, err
	}
	result := Text(string(text)).(map[string]any)
	result["structuredContent"] = output
	return result, nil
}

// A message is a request, a notification or a response.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
}

// versions are the revisions of the protocol that a Server speaks, the newest first.
var versions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// Serve answers the requests in r until it ends, and writes to w. It returns when all methods have returned.
func (s *Server) Serve(ctx context.Context, r io.Reader, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var mu sync.Mutex // guards w and open
	open := make(map[string]context.CancelFunc)
	send := func(m message) error {
		m.Version = "2.0"
		text, err := json.Marshal(m)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err = w.Write(append(text, '\n'))
		return err
	}
	for in := bufio.NewReader(r); ; {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var m message
		switch {
		case json.Unmarshal(line, &m) != nil:
			_ = send(message{ID: json.RawMessage("null"), Error: &Error{Code: -32700, Message: "not a message"}})
		case m.Method == "notifications/cancelled":
			var cancelled struct {
				ID json.RawMessage `json:"requestId"`
			}
			_ = json.Unmarshal(m.Params, &cancelled) // else it names no request
			mu.Lock()
			if end := open[string(cancelled.ID)]; end != nil {
				end()
			}
			mu.Unlock()
		case m.Method != "" && m.ID != nil:
			ctx, end := context.WithCancel(ctx)
			id := string(m.ID)
			mu.Lock()
			open[id] = end
			mu.Unlock()
			wg.Go(func() {
				answer := s.answer(ctx, &m, send)
				mu.Lock()
				delete(open, id)
				mu.Unlock()
				if ctx.Err() == nil { // the client still wants the answer
					_ = send(answer) // the client reads it, or has gone
				}
				end()
			})
		}
	}
}

// answer returns the response to a request.
func (s *Server) answer(ctx context.Context, m *message, send func(message) error) message {
	var params struct {
		Meta struct {
			Token json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	_ = json.Unmarshal(m.Params, &params) // the method reads all params
	r := &Request{Params: m.Params, token: params.Meta.Token, send: send}
	method := s.Methods[m.Method]
	switch m.Method {
	case "initialize":
		method = s.initialize
	case "ping":
		method = func(context.Context, *Request) (any, error) { return struct{}{}, nil }
	case "tools/list":
		method = func(context.Context, *Request) (any, error) { return map[string]any{"tools": s.Tools}, nil }
	case "tools/call":
		method = s.call
	}
	if method == nil {
		return message{ID: m.ID, Error: &Error{Code: -32601, Message: "Method not found: " + m.Method}}
	}
	result, err := method(ctx, r)
	if err != nil {
		own, ok := errors.AsType[*Error](err)
		if !ok {
			own = &Error{Code: -32603, Message: err.Error()}
		}
		return message{ID: m.ID, Error: own}
	}
	return message{ID: m.ID, Result: result}
}

// initialize agrees on the client's version, or else on our newest one.
func (s *Server) initialize(_ context.Context, r *Request) (any, error) {
	var params struct {
		Version string `json:"protocolVersion"`
	}
	if err := r.Read(&params); err != nil {
		return nil, err
	}
	if !slices.Contains(versions, params.Version) {
		params.Version = versions[0]
	}
	capabilities := map[string]any{"tools": struct{}{}}
	for name, one := range s.Capabilities {
		capabilities[name] = one
	}
	result := map[string]any{
		"protocolVersion": params.Version, "capabilities": capabilities,
		"serverInfo": map[string]string{"name": s.Name, "version": s.Version},
	}
	if s.Instructions != "" {
		result["instructions"] = s.Instructions
	}
	return result, nil
}

func (s *Server) call(ctx context.Context, r *Request) (any, error) {
	var params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := r.Read(&params); err != nil {
		return nil, err
	}
	at := slices.IndexFunc(s.Tools, func(t Tool) bool { return t.Name == params.Name })
	if at < 0 {
		return nil, &Error{Code: -32602, Message: "unknown tool: " + params.Name}
	}
	result, err := s.Tools[at].Call(ctx, &Request{Params: params.Arguments, token: r.token, send: r.send})
	if err != nil {
		failed := Text(err.Error()).(map[string]any)
		failed["isError"] = true
		return failed, nil
	}
	return result, nil
}
