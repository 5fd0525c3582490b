package link

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// many is more streams than yamux's Session.Close gets through in any time: each
// blocked reader spins in it for a whole slice of a processor, over and over.
const many = 2000

// crowded returns a pair with many streams, on each of which both ends read.
func crowded(t *testing.T) (p *pair, client context.CancelFunc, readers *sync.WaitGroup) {
	c, s := &Client{}, &Server{Handle: echo}
	near, far := net.Pipe()
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

// TestCrowdedLinkEnds ends a link in every way, under thousands of
// readers, some of whose streams are written to all the time.
func TestCrowdedLinkEnds(t *testing.T) {
	t.Parallel()
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

// TestCrowdOnSocket has a proxy that opens, all at once, many more streams than the
// host takes: each is refused, those that were there go on, and the log has a line.
func TestCrowdOnSocket(t *testing.T) {
	t.Parallel()
	const most, more = 20, 8 * maxRefusals
	l, dial := listenAt(t, Endpoint{URL: "tcp://127.0.0.1:0"}, Endpoint{URL: "tcp://127.0.0.1:0"})
	r := reach(t, &Client{}, &Server{Handle: echo, Streams: most}, l, dial.Dial)
	conns := []jsonrpc.Conn{}
	for range most - 1 { // and the control stream
		conns = append(conns, open(t, r.client))
	}
	var crowd sync.WaitGroup
	for range more {
		crowd.Go(func() {
			_, err := r.client.Open(t.Context(), hello)
			wantNotOpened(t, err, jsonrpc.CauseOverloaded.String())
		})
	}
	crowd.Wait()
	for _, c := range conns {
		call(t, c, numbered(1))
	}
	if lines := strings.Count(r.log.String(), "too many streams"); lines != 1 {
		t.Errorf("%d lines, want 1:\n%s", lines, r.log.String())
	}
}
