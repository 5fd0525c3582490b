package link

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"

	chunks "github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
)

// A network is a TCP proxy with a toxic in each direction, which may change
// while connections are open.
type network struct {
	net.Listener
	target string

	mu     sync.Mutex
	up     toxics.Toxic // from who dials
	down   toxics.Toxic
	cables []*cable
	wg     sync.WaitGroup
}

// A cable is one direction of a connection.
type cable struct {
	down bool
	from net.Conn
	in   chan *chunks.StreamChunk
	stub *toxics.ToxicStub
}

// toxic returns a network before target, to be dialled at its Addr.
func toxic(t testing.TB, target net.Addr, up, down toxics.Toxic) *network {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{Listener: l, target: target.String(), up: up, down: down}
	n.wg.Go(n.run)
	t.Cleanup(func() {
		l.Close()
		n.cut()
		n.set(new(toxics.NoopToxic), new(toxics.NoopToxic)) // whatever is delayed may go
		n.wg.Wait()
	})
	return n
}

func (n *network) run() {
	for {
		near, err := n.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", n.target)
		if err != nil {
			near.Close()
			continue
		}
		n.mu.Lock()
		n.lay(near, far, false)
		n.lay(far, near, true)
		n.mu.Unlock()
	}
}

// lay lays a cable; n.mu is held.
func (n *network) lay(from, to net.Conn, down bool) {
	in, out := make(chan *chunks.StreamChunk), make(chan *chunks.StreamChunk)
	c := &cable{down, from, in, toxics.NewToxicStub(in, out)}
	n.cables = append(n.cables, c)
	if _, resets := n.toxic(c).(*toxics.ResetToxic); resets {
		from.(*net.TCPConn).SetLinger(0)
		to.(*net.TCPConn).SetLinger(0)
	}
	w := chunks.NewChanWriter(in)
	n.wg.Go(func() { io.Copy(w, from); w.Close() })
	n.wg.Go(func() { io.Copy(to, chunks.NewChanReader(out)); to.Close(); from.Close(); drain(out) })
	n.start(c)
}

func drain(out <-chan *chunks.StreamChunk) {
	for range out {
	}
}

func (n *network) toxic(c *cable) toxics.Toxic {
	if c.down {
		return n.down
	}
	return n.up
}

func (n *network) start(c *cable) {
	wrapped := &toxics.ToxicWrapper{Toxic: n.toxic(c), Toxicity: 1}
	if s, ok := wrapped.Toxic.(toxics.StatefulToxic); ok {
		c.stub.State = s.NewState()
	}
	running := make(chan struct{})
	n.wg.Go(func() {
		close(running)
		if c.stub.Run(wrapped); c.stub.Closed() {
			drain(c.in) // the toxic reads no more
		}
	})
	<-running
}

// set changes the toxics of all connections, those that come too.
func (n *network) set(up, down toxics.Toxic) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.up, n.down = up, down
	for _, c := range n.cables {
		if c.stub.InterruptToxic() {
			n.start(c)
		}
	}
}

// cut ends all connections.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.cables {
		c.from.Close()
	}
}

// dial dials through n.
func (n *network) dial(ctx context.Context) (net.Conn, error) {
	return Endpoint{URL: "tcp://" + n.Addr().String()}.Dial(ctx)
}
