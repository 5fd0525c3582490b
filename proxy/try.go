package proxy

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
)

// Try starts upstreams once, as for a client that asks for their lists and leaves, and calls tell with each
// result, from several goroutines. Upstreams that the proxy does not have fail. It returns when all have answered
// or ctx is done; Shutdown waits for the servers. An upstream behind a link needs only its name.
func (p *Proxy) Try(ctx context.Context, upstreams []config.Upstream, tell func(*ops.Trial)) {
	p.start()
	t := newTrials(p.config.Load(), p.host, p.dial)
	t.into = p.router.LearnFrom
	t.now(ctx, upstreams, tell)
}

// Try does what [Proxy.Try] does.
func (h *Host) Try(ctx context.Context, upstreams []config.Upstream, tell func(*ops.Trial)) {
	newTrials(&config.Config{}, h.half, h.half.open).now(ctx, upstreams, tell)
}

// now tries upstreams of a running proxy or host.
func (t *trials) now(ctx context.Context, upstreams []config.Upstream, tell func(*ops.Trial)) {
	var wg sync.WaitGroup
	for _, u := range upstreams {
		wg.Go(func() { t.one(ctx, u, tell) })
	}
	wg.Wait()
}

// one tries one upstream for now.
func (t *trials) one(ctx context.Context, u config.Upstream, tell func(*ops.Trial)) {
	tr, began := &ops.Trial{Upstream: u.Name, Transport: transportOf(u)}, time.Now()
	done := func() {
		if ctx.Err() == nil {
			tell(tr)
		}
	}
	client, other, err := t.into.start(ctx, u.Name, func() (*Client, error) {
		client, err := t.ask(ctx, tr, rand.Text())
		done()
		if client != nil {
			err = nil // about a list
		}
		return client, err
	})
	switch {
	case client != nil:
		client.Close()
	case other != nil:
		tr.StartMs = millis(time.Since(began))
		t.look(tr)
		found(tr, other)
		done()
	case err != nil && tr.OK(): // of the other one's trial
		t.look(tr)
		failed(tr, "", err)
		done()
	}
}

// found records what somebody else's trial has found.
func found(tr *ops.Trial, e *lists.Entry) {
	introduced(tr, e.Introduction)
	for k, size := range []*ops.ListSize{&tr.Tools, &tr.Prompts, &tr.Resources, &tr.Templates} {
		if l := e.Lists[k]; l != nil {
			text, _ := jsonrpc.Member(l.Page, listKinds[k].member)
			all, _ := jsonrpc.Elements(text)
			size.Count, size.Bytes = len(all), len(l.Page)
		}
	}
	tr.Stderr = nil
}

// Refresh asks all upstreams for their lists again, and returns when all have answered or ctx ends.
func (p *Proxy) Refresh(ctx context.Context) {
	p.start()
	p.router.Learn(ctx, mostTrials)
}
