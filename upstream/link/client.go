package link

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Causes of a link's end.
var (
	// ErrNoAnswer is the cause if the other side accepts connections and is no host, or hangs.
	ErrNoAnswer = errors.New("the host does not answer the hello of the link")

	errNoOpen      = errors.New("the host does not answer the hello of a stream")
	errHostStreams = errors.New("the host opened a stream")
)

// A Client is the proxy's end: it opens streams to the upstreams of a host.
type Client struct {
	Log    *slog.Logger   // nil discards
	Limits jsonrpc.Limits // of one message from the host

	// ID identifies this proxy to hosts on its next link, in at most 64 bytes; "" for
	// no id.
	ID string

	// HelloTimeout is how long a host may take to answer a hello; zero means 10 s for that of
	// the link, as at the host, and 30 s for that of a stream, which may wait behind large
	// messages. After that the link ends, since a stream whose hello is not answered cannot
	// be closed without harm to the link.
	HelloTimeout time.Duration

	// Heartbeat finds a host that is gone without closing the link.
	Heartbeat Heartbeat

	// Announced, if not nil, is called with the host's announcement when a link is up,
	// and whenever the announcement changes. Lost, if not nil, is called when a link that
	// was up has ended, also if a newer one has replaced it, with the event of its
	// streams' ends and the cause. The calls are sequential: Lost is the last for one
	// link, and those for the next link follow. The link waits for them, and neither may
	// wait for Serve.
	Announced func(upstreams []Upstream)
	Lost      func(event string, err error)

	// Failed, if not nil, is called with the cause when Redial could not bring a link up.
	Failed func(err error)

	current  currentLink
	rejected announcer
}

// Serve owns carrier until it returns, and lets Open use it. It returns the cause when the
// link or ctx ends. Every stream then fails with the cause "link lost". When ctx ends, the
// last messages on closed streams have a second to arrive. Serve may be called again: Open
// uses the link that came up last, and the previous one, which may be half dead, is ended.
func (c *Client) Serve(ctx context.Context, carrier net.Conn) error {
	return c.serve(ctx, carrier, unwatched)
}

func (c *Client) serve(ctx context.Context, carrier net.Conn, w watcher) error {
	l, err := c.newLink(ctx, carrier)
	if err != nil {
		w.ended(false, "", err)
		return err
	}
	l.up = w.up
	over := make(chan struct{})
	defer close(over)
	var talk sync.WaitGroup
	talk.Go(func() { c.control(l, over) })
	_, err = l.y.AcceptStreamWithContext(ctx) // returns at the end, as hosts open none
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil:
		err = errHostStreams
	case !l.begun():
		err = strange(err)
	}
	c.current.detach(l)
	l.part(err, byeTimeout)
	err = l.close(err)
	talk.Wait()
	up := l.begun()
	if up && c.Lost != nil {
		c.Lost(l.event, err)
	}
	w.ended(up, l.event, err)
	return err
}

// Redial keeps up a link to a host that listens: it dials, serves the link, and dials again
// after a pause when the link has ended or the dial has failed, until ctx ends. It logs when
// the link comes up and goes down.
func (c *Client) Redial(ctx context.Context, dial func(context.Context) (net.Conn, error)) error {
	return redial(ctx, &endReporter{log: orDiscard(c.Log), failed: c.Failed}, dial, c.serve)
}

// Accept serves links from hosts that dial l until ctx ends or l is closed. Open uses the
// latest. Accept closes l and waits for all links.
func (c *Client) Accept(ctx context.Context, l net.Listener) error {
	return accept(ctx, &endReporter{log: orDiscard(c.Log)}, l, c.serve)
}

func (c *Client) newLink(ctx context.Context, carrier net.Conn) (*link, error) {
	if err := handshake(ctx, carrier); err != nil {
		carrier.Close()
		return nil, jsonrpc.Closed(err)
	}
	return newLink(carrier, yamux.Client, newConfig(orDiscard(c.Log)))
}

// control sends the hello of the link and then reads the host's announcements.
func (c *Client) control(l *link, over chan struct{}) {
	giveUp := time.AfterFunc(cmp.Or(c.HelloTimeout, linkHello), func() { l.fail(ErrNoAnswer) })
	defer giveUp.Stop()
	y, err := l.y.OpenStream()
	if err != nil {
		if !l.ending() { // otherwise err is a consequence
			l.fail(err)
		}
		return
	}
	k := newControl(l, y)
	if err := k.greet(c.ID); err != nil {
		k.end(err)
		return
	}
	giveUp.Stop()
	l.begin(k.bye)
	k.live(c.Heartbeat, &c.rejected)
	k.end(c.talk(k, over))
}

func (c *Client) talk(k *control, over chan struct{}) error {
	if before := c.current.attach(k.link, over); before != nil {
		<-before
	}
	orDiscard(c.Log).Info("link up")
	return k.read(c.Announced, nil)
}

// Open opens a stream to an upstream. Headers of clients, which may be secrets, stay in this
// process. Open waits until Serve has its first link and the host has answered the hello, or
// until ctx ends. After a link was lost, it waits only a second for the next. Every error is a
// [*jsonrpc.ClosedError] with Delivered false and, if the host refused, its cause.
func (c *Client) Open(ctx context.Context, h Hello) (jsonrpc.Conn, error) {
	k, err := c.openSoon(ctx, h)
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Dial opens a stream of bytes, on which this side sends first. Its errors and waits are those of Open.
// The link bounds neither how long its reads and writes take, nor what one of them holds up. After the
// end of the link they fail with a [*jsonrpc.ClosedError]. The caller closes it.
func (c *Client) Dial(ctx context.Context) (net.Conn, error) {
	opened, err := c.Open(ctx, Hello{bytes: true})
	if err != nil {
		return nil, err
	}
	return &byteStream{conn: opened.(*conn)}, nil
}

// Event returns the event of the end of the link, which may be up, or of the last one; "" before the
// first.
func (c *Client) Event() string { return c.current.end() }

// Reject sends the host the complete list of announced upstreams that the proxy does not
// offer. It does not wait. A host of an older version ignores it.
func (c *Client) Reject(all []Rejection) { c.rejected.put(rejectionsLine(all)) }

// openSoon is Open, of either kind of stream.
func (c *Client) openSoon(ctx context.Context, h Hello) (*conn, error) {
	for again := false; ; again = true {
		l, err := c.current.await(ctx)
		if err != nil {
			return nil, err
		}
		k, err := c.try(ctx, l, h)
		if err == nil {
			return k, nil
		}
		// The link may be back, and the upstream was not started.
		if again || ctx.Err() != nil || !l.over() {
			return nil, err
		}
	}
}

// try opens a stream on l. Opening cannot be interrupted, so its goroutine goes on when ctx
// ends, and then closes the stream itself.
func (c *Client) try(ctx context.Context, l *link, h Hello) (*conn, error) {
	type result struct {
		conn *conn
		err  error
	}
	opened := make(chan result) // never closed
	select {
	case l.opening <- struct{}{}:
	case <-l.y.CloseChan():
		return nil, notOpened(l.lost(nil))
	case <-ctx.Done():
		return nil, notOpened(&jsonrpc.ClosedError{Cause: jsonrpc.CauseLate, Err: context.Cause(ctx)})
	}
	if !l.spawn(func() {
		k, err := c.openOn(l, h)
		select {
		case opened <- result{k, err}:
		case <-ctx.Done():
			if err == nil {
				k.Close()
			}
		}
	}) {
		<-l.opening
		return nil, notOpened(l.lost(nil))
	}
	select {
	case r := <-opened:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, notOpened(&jsonrpc.ClosedError{Cause: jsonrpc.CauseLate, Err: context.Cause(ctx)})
	}
}

// openOn opens a stream and sends its hello. It frees its place in l.opening when the
// stream is open or, if the host refused it, closed at both ends: until then the host counts
// it.
func (c *Client) openOn(l *link, h Hello) (*conn, error) {
	opened := func() { <-l.opening }
	hello, err := h.line()
	if err != nil {
		opened()
		return nil, &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause(err.Error())}
	}
	giveUp := time.AfterFunc(cmp.Or(c.HelloTimeout, 30*time.Second), func() { l.fail(errNoOpen) })
	defer giveUp.Stop()
	y, err := l.y.OpenStream()
	if err != nil {
		opened()
		l.fail(err) // the stream may be half open, and cannot be closed
		return nil, notOpened(l.lost(err))
	}
	k := newConn(l, y, c.Limits)
	k.finished = opened
	if err := k.greet(hello); err != nil {
		k.Close()
		return nil, err
	}
	k.finished = nil // not closed yet
	opened()
	return k, nil
}

// errAnswer is the end of a stream whose host sent an invalid answer to the hello.
var errAnswer = &jsonrpc.ClosedError{Cause: jsonrpc.CauseBadAnswer}

// greet sends the hello and reads the answer.
func (c *conn) greet(hello []byte) error {
	err := c.out.WriteLines(hello)
	if err != nil {
		return notOpened(err)
	}
	line, err := c.line()
	if err != nil {
		return notOpened(err)
	}
	n, err := parseNote(line)
	switch {
	case err != nil || !isNote(line):
		return notOpened(errAnswer)
	case n.ok:
		return nil
	case n.refused != "":
		return &jsonrpc.ClosedError{Cause: jsonrpc.ParseCause(n.refused)}
	}
	return notOpened(errAnswer)
}

// notOpened returns the end of a stream as an error of Open, where nothing was sent.
func notOpened(err error) error {
	end := jsonrpc.EndOf(err, jsonrpc.CauseBadAnswer)
	end.Delivered = false
	return end
}
