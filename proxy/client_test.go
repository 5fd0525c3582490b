package proxy_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A client in the same program calls, lists, gets errors and cancels a call. Close and the end of
// the proxy leave no goroutine behind.
func TestClient(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	p, _ := serveWith(t, config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}}}}, proxy.Options{})
	for _, upstream := range []string{"", "a"} {
		c, err := p.Client(t.Context(), upstream)
		if err != nil {
			t.Fatal(err)
		}
		// Close does not wait for the session of the client before.
		eventually(t, "one session", func() bool { return len(p.Snapshot().Sessions) == 1 })
		if sessions := p.Snapshot().Sessions; sessions[0].Transport != "program" || sessions[0].Client != "mcp-proxy" {
			t.Errorf("%+v", sessions)
		}
		list, err := c.List(t.Context(), "tools/list", "tools")
		if err != nil || len(list) != 2 || !c.Offers("tools") || c.Offers("nonsense") {
			t.Errorf("listed %s, %v", list, err)
		}
		got, err := c.Request(t.Context(), "tools/call", json.RawMessage(`{"name":"greet"}`), func(proxy.Progress) {})
		if err != nil || !strings.Contains(string(got), `"hello"`) {
			t.Errorf("%s, %v", got, err)
		}
		_, err = c.Request(t.Context(), "prompts/get", json.RawMessage(`{"name":"none"}`), nil)
		if answer, ok := errors.AsType[*proxy.AnswerError](err); !ok || answer.Code == 0 || answer.Message == "" {
			t.Errorf("%#v", err)
		}
		ctx, giveUp := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() {
			_, err := c.Request(ctx, "tools/call", json.RawMessage(`{"name":"hang"}`), nil)
			over <- err
		}()
		<-server.hanging
		giveUp()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		c.Close()
		if _, err := c.Request(t.Context(), "ping", nil, nil); err == nil {
			t.Error("a request after the end")
		}
		c.Close()
	}

	c, err := p.Client(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	if _, err := c.List(t.Context(), "tools/list", "tools"); err == nil {
		t.Error("a list after the end of the proxy")
	}
	c.Close()
	if _, err := p.Client(t.Context(), ""); err == nil {
		t.Error("a client after the end of the proxy")
	}
}

// Each upstream is tried by itself, whatever becomes of the others.
func TestTrials(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	found, err := proxy.Diagnose(t.Context(), &config.Config{Upstreams: []config.Upstream{
		{Name: "a", Remote: config.Remote{URL: server.URL}, Shared: true}, {Name: "gone", Process: config.Process{Command: "/there/is/none"}},
	}, Links: []config.Link{{Name: "far", Accept: true}}}, proxy.Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil || len(found.Upstreams) != 2 {
		t.Fatal(found, err)
	}
	if a := found.Upstreams[0]; !a.OK() || a.Tools.Count != 2 || a.Tools.Bytes == 0 || a.Server != "server 1" || a.StartMs == 0 || a.Transport != "http" {
		t.Errorf("%+v", a)
	}
	if gone := found.Upstreams[1]; gone.OK() || gone.Failed != "did not start: command not found" || gone.Transport != "stdio" {
		t.Errorf("%+v", gone)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := proxy.Diagnose(ctx, &config.Config{Upstreams: []config.Upstream{{Name: "a", Remote: config.Remote{URL: server.URL}}}}, proxy.Options{Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
