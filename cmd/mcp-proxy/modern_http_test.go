//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A modernPosts carries each request of a modern client in a POST of its own. To cancel a
// request it ends its POST; to vanish it ends them all.
type modernPosts struct {
	t      *testing.T
	url    string
	token  string // "" for none
	heard  func([]byte)
	client *http.Client
	ctx    context.Context // of all POSTs
	drop   context.CancelFunc
	done   sync.WaitGroup // POSTs

	mu   sync.Mutex
	open map[jsonrpc.ID]context.CancelFunc // requests; the newest of each id
}

func dialModernHTTP(s *site, heard func([]byte)) (wire, error) {
	w := &modernPosts{t: s.t, url: s.url + "/mcp", heard: heard, client: &http.Client{Transport: &http.Transport{}},
		open: map[jsonrpc.ID]context.CancelFunc{}}
	w.ctx, w.drop = context.WithCancel(context.Background())
	return w, nil
}

// send returns before the request has arrived.
func (w *modernPosts) send(text string) error {
	m, err := jsonrpc.Decode([]byte(text))
	if err != nil {
		return err
	}
	if m.Method == "notifications/cancelled" {
		w.abort(m.Params)
		return nil
	}
	ctx, cancel := context.WithCancel(w.ctx)
	w.mu.Lock()
	w.open[m.ID] = cancel
	w.mu.Unlock()
	w.done.Go(func() {
		defer cancel()
		if err := w.post(ctx, m); err != nil && ctx.Err() == nil {
			w.t.Errorf("%s: %v", text, err)
		}
	})
	return nil
}

func (w *modernPosts) abort(params json.RawMessage) {
	raw, _ := jsonrpc.Member(params, "requestId")
	id, _ := jsonrpc.ParseID(raw)
	w.mu.Lock()
	defer w.mu.Unlock()
	if cancel := w.open[id]; cancel != nil {
		cancel()
	}
}

// post sends m and reads the messages for it, up to the response.
func (w *modernPosts) post(ctx context.Context, m *jsonrpc.Message) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, strings.NewReader(string(m.Append(nil))))
	if err != nil {
		return err
	}
	w.stamp(req, m)
	resp, err := w.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answered := false
	err = readMessages(resp, func(text []byte) {
		if got, err := jsonrpc.Decode(text); err == nil && got.IsResponse() {
			answered = true
			w.check(resp, got)
			if got.ID.IsZero() { // refused before it was read: the error has no id, and belongs to the request of this POST
				got.ID = m.ID
				text = got.Append(nil)
			}
		}
		w.heard(text)
	})
	if err == nil && !answered && m.IsRequest() {
		err = fmt.Errorf("%s, and no answer", resp.Status)
	}
	return err
}

// stamp sets the headers that repeat members of the body.
func (w *modernPosts) stamp(req *http.Request, m *jsonrpc.Message) {
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", "2026-07-28")
	req.Header.Set("Mcp-Method", m.Method)
	if key := mcp.MethodOf(m.Method).HeaderKey(); key != "" {
		text, _ := jsonrpc.Member(m.Params, key)
		name, _ := jsonrpc.Unquote(text)
		req.Header.Set("Mcp-Name", mcp.EncodeHeader(name))
	}
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
}

// check checks that the status fits the answer: most errors have 200.
func (w *modernPosts) check(resp *http.Response, answer *jsonrpc.Message) {
	want := http.StatusOK
	code, _ := jsonrpc.Member(answer.Error, "code")
	switch string(code) {
	case "-32601":
		want = http.StatusNotFound
	case "-32020", "-32021", "-32022":
		want = http.StatusBadRequest
	}
	if resp.StatusCode != want && resp.StatusCode != http.StatusServiceUnavailable { // 4xx is for requests that cannot begin
		w.t.Errorf("%s with %s%s", resp.Status, answer.Result, answer.Error)
	}
}

func (w *modernPosts) vanish() {
	w.drop()
	w.done.Wait()
	w.client.CloseIdleConnections()
}
