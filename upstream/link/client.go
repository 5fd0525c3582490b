package link

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// Ends of a link.
var (
	errNoAnswer    = errors.New("hello not answered in time")
	errHostStreams = errors.New("the host opened a stream")
)

// A Client is the proxy's end: it opens streams to the upstreams of a host.
type Client struct {
	Log    *slog.Logger   // nil discards
	Limits jsonrpc.Limits // of one message from the host

	// HelloTimeout is how long a host may take to answer a hello; zero means
	// 30 s. Then the link is given up, since a stream that is not answered
	// cannot be closed without harm to it.
	HelloTimeout time.Duration

	mu      sync.Mutex    // guards the fields below
	link    *link         // nil while Serve does not run
	arrived chan struct{} // closed when link is set; nil if nobody waits
}

// Serve owns carrier until it returns, and lets Open use it. It returns when
// the link ends or ctx does, with the cause. Every stream then fails with the
// cause "link lost". Serve may be called again; of several, the latest is used.
func (c *Client) Serve(ctx context.Context, carrier net.Conn) error {
	l, err := newLink(carrier, yamux.Client, newConfig(orDiscard(c.Log)))
	if err != nil {
		return err
	}
	c.attach(l)
	_, err = l.y.AcceptStreamWithContext(ctx) // returns at the end, as hosts open none
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil:
		err = errHostStreams
	}
	c.detach(l)
	return l.close(err)
}

func (c *Client) attach(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link = l
	if c.arrived != nil {
		close(c.arrived)
		c.arrived = nil
	}
}

func (c *Client) detach(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.link = nil
	}
}

// Open opens a stream to an upstream. It waits until Serve has a link and the
// host has answered the hello, or until ctx ends. Every error is a
// [*jsonrpc.ClosedError] with Delivered false; if the host refused, the cause
// says why.
func (c *Client) Open(ctx context.Context, h Hello) (jsonrpc.Conn, error) {
	l, err := c.await(ctx)
	if err != nil {
		return nil, notOpened(causeLost, err)
	}
	// An opening cannot be interrupted, so that it goes on when ctx ends, and
	// whoever does not hand the stream over closes it.
	type result struct {
		conn *conn
		err  error
	}
	opened := make(chan result) // never closed
	if !l.spawn(func() {
		k, err := c.open(l, h)
		select {
		case opened <- result{k, err}:
		case <-ctx.Done():
			if err == nil {
				k.Close()
			}
		}
	}) {
		return nil, notOpened(causeLost, nil)
	}
	select {
	case r := <-opened:
		if r.err != nil {
			return nil, r.err
		}
		return r.conn, nil
	case <-ctx.Done():
		return nil, notOpened("not opened in time", context.Cause(ctx))
	}
}

// await returns the link as soon as there is one.
func (c *Client) await(ctx context.Context) (*link, error) {
	for ctx.Err() == nil {
		c.mu.Lock()
		l := c.link
		if l == nil && c.arrived == nil {
			c.arrived = make(chan struct{})
		}
		arrived := c.arrived
		c.mu.Unlock()
		if l != nil {
			return l, nil
		}
		select {
		case <-arrived:
		case <-ctx.Done():
		}
	}
	return nil, context.Cause(ctx)
}

// open opens a stream and says hello on it.
func (c *Client) open(l *link, h Hello) (*conn, error) {
	hello, err := h.line()
	if err != nil {
		return nil, notOpened(err.Error(), nil)
	}
	giveUp := time.AfterFunc(orElse(c.HelloTimeout, 30*time.Second), func() { l.fail(errNoAnswer) })
	defer giveUp.Stop()
	y, err := l.y.OpenStream()
	if err != nil {
		l.fail(err) // a stream that may be half open cannot be closed
		return nil, notOpened(causeLost, err)
	}
	k := newConn(l, y, c.Limits)
	if err := k.greet(hello); err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// badAnswer is the cause when a host answers a hello with something else.
const badAnswer = "bad answer to the hello"

// greet says hello and reads the answer.
func (c *conn) greet(hello []byte) error {
	err := c.out.WriteLines(hello)
	if err != nil {
		return undelivered(err)
	}
	line, err := c.line()
	if err != nil {
		return undelivered(err)
	}
	n, err := parseNote(line)
	switch {
	case err != nil || !isNote(line):
		return notOpened(badAnswer, nil)
	case n.ok:
		return nil
	case n.refused != "":
		return notOpened(n.refused, nil)
	}
	return notOpened(badAnswer, nil)
}

// undelivered makes the end of a stream the error of its opening.
func undelivered(err error) error {
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); ok {
		return notOpened(end.Cause, end.Err)
	}
	return notOpened(badAnswer, err)
}

// notOpened returns the error of an opening that failed: nothing was sent.
func notOpened(cause string, err error) error {
	return &jsonrpc.ClosedError{Cause: cause, Err: err}
}

// orElse returns d, or what zero means.
func orElse(d, zero time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return zero
}
