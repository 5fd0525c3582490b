//go:build unix

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// A farHost is a host in this process, whose links can be cut.
type farHost struct {
	t    *testing.T
	host *proxy.Host
	ctx  context.Context
	wg   sync.WaitGroup

	mu   sync.Mutex
	down bool // no link comes up
	open []*carrier
}

func newFarHost(t *testing.T, cfg *config.Config, beat time.Duration, log *lines, events *book) *farHost {
	t.Helper()
	host, err := proxy.NewHost(cfg, config.HostLink{Heartbeat: beat}, proxy.Options{Log: slog.New(slog.NewTextHandler(log, nil)), Hooks: events.hooks()})
	if err != nil {
		t.Fatal(err)
	}
	f := &farHost{t: t, host: host}
	ctx, cancel := context.WithCancel(context.Background())
	f.ctx = ctx
	t.Cleanup(func() {
		cancel()
		f.wg.Wait()
		end, stop := context.WithTimeout(context.Background(), stopReserve(cfg))
		defer stop()
		f.host.Shutdown(end)
	})
	return f
}

func (f *farHost) server() *link.Server { return *inside[*link.Server](f.host, "half", "server") }

// listen serves links at a URL and returns it with its port.
func (f *farHost) listen(url string) string {
	f.t.Helper()
	at := link.Endpoint{URL: url}
	l, err := at.Listen()
	if err != nil {
		f.t.Fatal(err)
	}
	f.wg.Go(func() { f.server().Accept(f.ctx, watched{l, f}) })
	if l.Addr().Network() == "unix" {
		return url
	}
	return "tcp://" + l.Addr().String()
}

// dial keeps a link up to a proxy.
func (f *farHost) dial(url string) {
	at := link.Endpoint{URL: url, Token: func() (string, error) { return "secret", nil }}
	f.wg.Go(func() {
		f.server().Redial(f.ctx, func(ctx context.Context) (net.Conn, error) {
			c, err := at.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return f.watch(c)
		})
	})
}

// watch keeps c to be cut. While the links are down it closes c.
func (f *farHost) watch(conn net.Conn) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		conn.Close()
		return nil, errors.New("down")
	}
	c := &carrier{conn, make(chan struct{})}
	f.open = append(f.open, c)
	return c, nil
}

// freeze makes all open links silent.
func (f *farHost) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.open {
		close(c.frozen)
	}
	f.open = nil
}

// A carrier is a connection that can be frozen: then writes are discarded, and reads get
// nothing.
type carrier struct {
	net.Conn
	frozen chan struct{}
}

func (c *carrier) Write(p []byte) (int, error) {
	select {
	case <-c.frozen:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

func (c *carrier) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		select {
		case <-c.frozen:
			if err == nil {
				continue
			}
		default:
		}
		return n, err
	}
}

// cut cuts all links; with down it keeps them down.
func (f *farHost) cut(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
	for _, c := range f.open {
		c.Conn.Close()
	}
	f.open = nil
}

// up lets links come up again after cut.
func (f *farHost) up() { f.cut(false) }

// watched is a listener whose connections can be cut.
type watched struct {
	net.Listener
	f *farHost
}

func (w watched) Accept() (net.Conn, error) {
	for {
		c, err := w.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c, err = w.f.watch(c); err == nil {
			return c, nil
		}
	}
}
