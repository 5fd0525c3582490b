package link

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
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

	// ID is what hosts know this proxy by on its next link, at most 64 bytes. Zero
	// is for one that does not say.
	ID string

	// HelloTimeout is how long a host may take to answer a hello; zero means
	// 30 s, and an hour in one process. Then the link is given up, since a stream
	// that is not answered cannot be closed without harm to it.
	HelloTimeout time.Duration

	// Heartbeat finds a host that is gone without a word.
	Heartbeat Heartbeat

	// Streams bounds those that are open at once, until SetStreams replaces it;
	// zero is no bound but the host's. One more is refused at once, with
	// [jsonrpc.CauseOverloaded].
	Streams int

	// Trusted is for a host in this process: its messages are not checked a
	// second time, and there is no control stream, so no heartbeat and no
	// announcement. It must be the same at both ends.
	Trusted bool

	// Announced, if it is not nil, is called with what the host announces: once
	// a link is up, whenever it changes, and again when a lost link is back.
	// Lost is called with the event, as the ends of its streams have it, and the
	// cause when a link that was up has ended, also if a
	// newer one has replaced it. The calls come one after another: those for one
	// link, Lost the last, and then those for the next. The link waits for them,
	// and neither may wait for Serve.
	Announced func(upstreams []Upstream)
	Lost      func(event string, err error)

	// Failed, if it is not nil, is called with the cause when Redial could not
	// bring a link up.
	Failed func(err error)

	current  currentLink
	rejected announcer

	mu    sync.Mutex // guards Streams and the fields below
	open  int        // streams
	crowd overload
}

// Serve owns carrier until it returns, and lets Open use it. It returns when
// the link ends or ctx does, with the cause. Every stream then fails with the
// cause "link lost". When ctx ends, what was said last on closed streams has a
// second to arrive. Serve may be called again; of several links, the latest to
// be up is used, and the one before it, which may be half dead, is ended.
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
	if c.Trusted {
		c.current.attach(l, over)
	} else {
		talk.Go(func() { c.control(l, over) })
	}
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
	up := c.Trusted || l.begun()
	if up && c.Lost != nil {
		c.Lost(l.event, err)
	}
	w.ended(up, l.event, err)
	return err
}

// Redial keeps up a link to a host that listens: it dials, serves the link, and
// when that ends, or cannot be dialled, it dials again, after a while, until ctx
// ends. It logs when the link comes and goes.
func (c *Client) Redial(ctx context.Context, dial func(context.Context) (net.Conn, error)) error {
	return redial(ctx, &endReporter{log: orDiscard(c.Log), failed: c.Failed}, dial, c.serve)
}

// Accept serves links from hosts that dial l, of which the latest is used,
// until ctx ends or l is closed. It closes l and waits for all links.
func (c *Client) Accept(ctx context.Context, l net.Listener) error {
	return accept(ctx, &endReporter{log: orDiscard(c.Log)}, l, c.serve)
}

func (c *Client) newLink(ctx context.Context, carrier net.Conn) (*link, error) {
	if err := handshake(ctx, carrier); err != nil {
		carrier.Close()
		return nil, jsonrpc.Closed(err)
	}
	return newLink(carrier, yamux.Client, newConfig(orDiscard(c.Log), c.Trusted), c.Trusted)
}

// control says hello for the link and then reads what the host announces.
func (c *Client) control(l *link, over chan struct{}) {
	giveUp := time.AfterFunc(c.helloTimeout(), func() { l.fail(errNoAnswer) })
	defer giveUp.Stop()
	y, err := l.y.OpenStream()
	if err != nil {
		if !l.ending() { // or it is a consequence
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
	k.live(c.Heartbeat, c.rejected.pending())
	k.end(c.talk(k, over))
}

func (c *Client) talk(k *control, over chan struct{}) error {
	if before := c.current.attach(k.link, over); before != nil {
		<-before
	}
	orDiscard(c.Log).Info("link up")
	return k.read(controlHandler{announced: c.Announced})
}

func (c *Client) helloTimeout() time.Duration {
	return orElse(c.HelloTimeout, timeout(30*time.Second, c.Trusted))
}

// Open opens a stream to an upstream. It waits until Serve has its first link
// and the host has answered the hello, or until ctx ends; a link that was lost
// it gives only a second to be back. Every error is a [*jsonrpc.ClosedError] with
// Delivered false; if the host refused, the cause says why.
func (c *Client) Open(ctx context.Context, h Hello) (jsonrpc.Conn, error) {
	if !c.enter(h.Upstream) {
		return nil, notOpened(&jsonrpc.ClosedError{Cause: jsonrpc.CauseOverloaded, Err: errTooMany})
	}
	k, err := c.openSoon(ctx, h)
	if err != nil {
		c.leave()
		return nil, err
	}
	k.over = c.leave
	return k, nil
}

// Reject tells the host what is not offered of what it announces: all of it, so that an empty
// list ends it. It does not wait. A host of an older version ignores it.
func (c *Client) Reject(all []Rejection) { c.rejected.put(rejectionsLine(all)) }

// SetStreams replaces Streams, for the streams that are opened from now on.
func (c *Client) SetStreams(most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Streams = most
}

// enter counts one more stream, if there is room.
func (c *Client) enter(upstream string) bool {
	c.mu.Lock()
	most := c.Streams
	ok, first := c.crowd.admit(c.open, most)
	if ok {
		c.open++
	}
	c.mu.Unlock()
	if first {
		orDiscard(c.Log).Warn("too many streams, more are refused", "most", most, "upstream", upstream)
	}
	return ok
}

func (c *Client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	c.crowd.thin(c.open, c.Streams)
}

// openSoon is Open once there is room.
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
		// A link that is lost before the answer may be back, and the upstream
		// was not started.
		if again || ctx.Err() != nil || !l.over() {
			return nil, err
		}
	}
}

// try opens a stream on l. An opening cannot be interrupted, so that it goes on
// when ctx ends, and whoever does not hand the stream over closes it.
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

// openOn opens a stream and says hello on it. The next may be opened when this one is
// open, or gone: to the host, one that it refuses is there until it is closed.
func (c *Client) openOn(l *link, h Hello) (*conn, error) {
	opened := func() { <-l.opening }
	hello, err := h.line()
	if err != nil {
		opened()
		return nil, &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause(err.Error())}
	}
	giveUp := time.AfterFunc(c.helloTimeout(), func() { l.fail(errNoAnswer) })
	defer giveUp.Stop()
	y, err := l.y.OpenStream()
	if err != nil {
		opened()
		l.fail(err) // a stream that may be half open cannot be closed
		return nil, notOpened(l.lost(err))
	}
	k := newConn(l, y, c.Limits)
	k.finished = opened
	if err := k.greet(hello); err != nil {
		k.Close()
		return nil, err
	}
	k.finished = nil // nobody has closed it yet
	opened()
	return k, nil
}

// errAnswer is the end of a stream whose host answers the hello with something else.
var errAnswer = &jsonrpc.ClosedError{Cause: jsonrpc.CauseBadAnswer}

// greet says hello and reads the answer.
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

// notOpened makes the end of a stream the error of its opening: nothing was sent.
func notOpened(err error) error {
	end := jsonrpc.EndOf(err, jsonrpc.CauseBadAnswer)
	end.Delivered = false
	return end
}
