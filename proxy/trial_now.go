package proxy

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Try starts the upstreams of cfg once, as for a client that asks for their lists and leaves,
// and calls tell with what came of each, from several goroutines. Those of them that the proxy
// does not have fail. It returns when all have answered or ctx is done; Shutdown waits for the
// servers. One that is behind a link has its name alone.
func (p *Proxy) Try(ctx context.Context, upstreams []config.Upstream, tell func(*Trial)) {
	p.start()
	newTrials(p.config.Load(), p.host, p.dial).now(ctx, upstreams, tell)
}

// Try is what [Proxy.Try] is.
func (h *Host) Try(ctx context.Context, upstreams []config.Upstream, tell func(*Trial)) {
	newTrials(&config.Config{}, h.half, h.half.open).now(ctx, upstreams, tell)
}

// now tries upstreams of what runs.
func (t *trials) now(ctx context.Context, upstreams []config.Upstream, tell func(*Trial)) {
	var wg sync.WaitGroup
	for _, u := range upstreams {
		wg.Go(func() {
			tr := &Trial{Upstream: u.Name, Transport: transportOf(u)}
			client, _ := t.ask(ctx, tr, rand.Text()) // the trial says why
			if ctx.Err() == nil {
				tell(tr)
			}
			if client != nil {
				client.Close()
			}
		})
	}
	wg.Wait()
}

// open attaches a stream without a link. Whoever gets it closes it, and the host waits for the end.
func (h *hosting) open(_ context.Context, name, key string, era mcp.Era) (jsonrpc.Conn, error) {
	near, far := jsonrpc.Pipe()
	c := &attached{PipeConn: near, ended: make(chan struct{})}
	go c.run(func() error { return h.host.Attach(h.forced, name, key, era, far) })
	return c, nil
}

// An attached Conn says why its stream has ended.
type attached struct {
	*jsonrpc.PipeConn
	ended chan struct{}
	err   error // set when ended is closed
}

func (a *attached) run(attach func() error) {
	defer close(a.ended)
	a.err = attach()
}

// Recv implements [jsonrpc.Conn].
func (a *attached) Recv() (*jsonrpc.Message, error) {
	m, err := a.PipeConn.Recv()
	if err != nil {
		<-a.ended
		err = a.err
	}
	return m, err
}
