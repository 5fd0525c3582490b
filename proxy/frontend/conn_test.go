package frontend

import (
	"context"
	"iter"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tmaxmax/go-sse"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

func TestConnStreamable(t *testing.T) {
	t.Parallel()
	conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
		ts := newManualServer(t, nil)
		c, conn := ts.connectManual("2025-11-25")
		return newClientConn(c, c.get(), func() { c.delete() }), conn
	})
}

func TestConnLegacy(t *testing.T) {
	t.Parallel()
	conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
		ts := newManualServer(t, nil)
		c := ts.at("/message")
		client := newClientConn(c, ts.at("/sse").get(), func() {})
		endpoint, _, _ := client.next()
		c.url += endpoint.Data[strings.Index(endpoint.Data, "?"):]
		return client, conntest.Await(t, "session", ts.conns)
	})
}

// A clientConn is the client's end of a session: Send posts, Recv reads one
// stream.
type clientConn struct {
	*testClient
	ctx    context.Context
	cancel context.CancelFunc
	stream *http.Response
	next   func() (sse.Event, error, bool)
	bye    func()
	posts  sync.Mutex // or they would overtake each other
	once   sync.Once
}

func newClientConn(c *testClient, stream *http.Response, bye func()) *clientConn {
	conn := &clientConn{testClient: c, stream: stream, bye: bye}
	conn.ctx, conn.cancel = context.WithCancel(context.Background())
	events := iter.Seq2[sse.Event, error](sse.Read(stream.Body, &sse.ReadConfig{MaxEventSize: 4 << 20}))
	var stop func()
	conn.next, stop = iter.Pull2(events)
	c.t.Cleanup(stop)
	return conn
}

func (c *clientConn) Recv() (*jsonrpc.Message, error) {
	for {
		ev, err, ok := c.next()
		if !ok || err != nil || c.ctx.Err() != nil {
			return nil, jsonrpc.Closed(err)
		}
		if ev.Data != "" {
			return jsonrpc.Decode([]byte(ev.Data))
		}
	}
}

func (c *clientConn) Send(m *jsonrpc.Message) error {
	c.posts.Lock()
	defer c.posts.Unlock()
	if c.ctx.Err() != nil {
		return jsonrpc.ErrClosed
	}
	resp, err := c.http.Do(c.request(http.MethodPost, string(m.Append(nil))).WithContext(c.ctx))
	if err != nil {
		return jsonrpc.Closed(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		return jsonrpc.ErrClosed
	}
	return nil
}

func (c *clientConn) Close() error {
	c.once.Do(func() {
		c.cancel()
		c.bye()
		c.stream.Body.Close()
	})
	return nil
}
