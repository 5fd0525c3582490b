package link

import (
	"context"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// many is more streams than yamux's Session.Close gets through in any time: each
// blocked reader spins in it for a whole slice of a processor, over and over.
const many = 2000

// crowded returns a pair with many streams, on each of which both ends read.
func crowded(t *testing.T) (p *pair, client context.CancelFunc, readers *sync.WaitGroup) {
	c, s := &Client{}, &Server{Handle: echo}
	near, far := Ring()
	c.Trusted, s.Trusted = true, true
	ctx, client := context.WithCancel(context.Background())
	forced, stop := context.WithCancel(context.Background())
	p = &pair{c, s, near, far, stop, make(chan error, 1), make(chan error, 1)}
	go func() { p.ended <- s.Serve(forced, far) }()
	go func() { p.clientEnd <- c.Serve(ctx, near) }()
	t.Cleanup(func() { client(); stop(); await(t, p.ended); await(t, p.clientEnd) })
	conns := make(chan jsonrpc.Conn, many)
	times(many, func() { conns <- open(t, c) })
	close(conns)
	readers = new(sync.WaitGroup)
	for conn := range conns {
		readers.Go(func() {
			for {
				if _, err := conn.Recv(); err != nil {
					return
				}
			}
		})
	}
	return p, client, readers
}

// TestCrowdedLinkEnds ends a link in memory in every way, under thousands of
// readers, some of whose streams are written to all the time.
func TestCrowdedLinkEnds(t *testing.T) {
	for name, end := range map[string]func(p *pair, client context.CancelFunc){
		"by the proxy": func(_ *pair, client context.CancelFunc) { client() },
		"near carrier": func(p *pair, _ context.CancelFunc) { p.near.Close() },
		"far carrier":  func(p *pair, _ context.CancelFunc) { p.far.Close() },
		"by the host":  func(p *pair, _ context.CancelFunc) { p.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			p, client, readers := crowded(t)
			busy := open(t, p.client)
			var talk sync.WaitGroup
			talk.Go(func() {
				for n := 0; busy.Send(numbered(n)) == nil; n++ {
					if _, err := busy.Recv(); err != nil {
						return
					}
				}
			})
			end(p, client)
			talk.Wait()
			readers.Wait()
		})
	}
}
