package link

import (
	"bytes"
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

// stopTimeout is how long handlers may take after their ctx was cancelled; then the link
// is cut.
const stopTimeout = 2 * time.Second

// A Handler begins to serve one stream, and calls over once, at the end. It owns c until then. Then
// c is closed, and the proxy gets over's [*jsonrpc.ClosedError], unless c was closed before.
// Cancelling ctx forces it to end. The end of the link does not cancel ctx, but every Recv and Send
// then fails.
type Handler func(ctx context.Context, h Hello, c jsonrpc.Conn, over func(error))

// maxRefusals bounds the streams that are being refused because there are too many. One
// more ends the link.
const maxRefusals = 2 * maxOpening

// A Server is the host's end: it accepts streams to upstreams.
type Server struct {
	Handle Handler
	Bytes  func(c net.Conn)           // serves a stream of bytes, of which it reads first; owns c until it returns; nil refuses them
	Known  func(upstream string) bool // reports, without waiting, whether there is such an upstream; nil accepts all
	Log    *slog.Logger               // nil discards
	Limits jsonrpc.Limits             // of one message from the proxy

	// Through, if not nil, replaces Handle: each stream continues, byte by byte, on the link of this Client to the
	// host, whose upstreams Announce must repeat. When that link is lost, the caller ends Serve.
	Through *Client

	// Upstreams are announced to each proxy, until Announce replaces them.
	Upstreams []Upstream

	// HelloTimeout is how long the hello of a link or a stream may take; zero means 10 s.
	HelloTimeout time.Duration

	// Heartbeat finds a proxy that is gone without closing the link.
	Heartbeat Heartbeat

	// Streams bounds the streams of one link, including those whose proxy has left
	// and whose handler has not returned, until SetStreams replaces it; zero means
	// 4096. More are refused with [jsonrpc.CauseOverloaded].
	Streams int

	// Linked and Unlinked, if not nil, are called with the id of a proxy that has one:
	// Linked when a link to it is up, Unlinked when the link has ended and all its
	// handlers have returned.
	Linked, Unlinked func(proxy string)

	// Lost, if not nil, is called when a link that was up has failed, with event and
	// cause as in the log, and how long it lived.
	Lost func(event string, err error, lived time.Duration)

	// Rejected, if not nil, is called with the id of a link and the announced upstreams
	// that its proxy does not offer, whenever they change, and with nil when the link has
	// ended.
	Rejected func(link string, all []Rejection)

	announced announcer

	mu sync.Mutex // guards Streams
}

// Serve owns carrier until it returns, and runs Handle for each stream. It returns the
// cause when the link or ctx has ended, and all handlers have returned. Cancelling ctx
// cancels that of the handlers; after 2 s the link is cut.
func (s *Server) Serve(ctx context.Context, carrier net.Conn) error {
	return s.serve(ctx, carrier, unwatched)
}

func (s *Server) serve(ctx context.Context, carrier net.Conn, w watcher) error {
	l, err := s.newLink(ctx, carrier)
	if err != nil {
		w.ended(false, "", err)
		return err
	}
	l.up = w.up
	late := time.AfterFunc(s.helloTimeout(), func() {
		if !l.begun() {
			l.fail(errLateHello)
		}
	})
	defer late.Stop()
	var streams sync.WaitGroup
	err = s.accept(ctx, l, &streams)
	if ctx.Err() != nil {
		cut := time.AfterFunc(stopTimeout, func() { l.fail(err) })
		defer cut.Stop()
		streams.Wait()
		l.quiet()
		l.wg.Wait() // the closing lines
		l.part(err, byeTimeout)
	} else {
		l.part(err, tellTimeout)
	}
	w.ended(l.begun(), l.event, l.cause())
	streams.Wait()
	if l.proxy != "" && s.Unlinked != nil {
		s.Unlinked(l.proxy)
	}
	return l.close(err)
}

// Redial keeps up a link to a proxy that listens, as [Client.Redial] does. A new
// link does not wait for the handlers of the old one.
func (s *Server) Redial(ctx context.Context, dial func(context.Context) (net.Conn, error)) error {
	return redial(ctx, s.reporter(), dial, s.serve)
}

// Accept serves links from proxies that dial l, up to 64 at once, until ctx ends
// or l is closed. It closes l and waits for all links.
func (s *Server) Accept(ctx context.Context, l net.Listener) error {
	return accept(ctx, s.reporter(), l, s.serve)
}

func (s *Server) reporter() *endReporter {
	return &endReporter{log: orDiscard(s.Log), host: true, lost: s.Lost}
}

func (s *Server) newLink(ctx context.Context, carrier net.Conn) (*link, error) {
	err := s.announceFirst()
	if err == nil {
		err = handshake(ctx, carrier)
	}
	if err != nil {
		carrier.Close()
		return nil, jsonrpc.Closed(err)
	}
	return newLink(carrier, yamux.Server, newConfig(orDiscard(s.Log)))
}

func (s *Server) helloTimeout() time.Duration {
	return cmp.Or(s.HelloTimeout, linkHello)
}

// accept accepts streams until the link or ctx ends, and returns the cause. It does no
// work itself: a stream that waits too long to be accepted ends the link.
func (s *Server) accept(ctx context.Context, l *link, streams *sync.WaitGroup) error {
	var full bool // a refused stream was logged
	for {
		y, err := l.y.AcceptStreamWithContext(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && !l.begun() {
			return strange(err)
		}
		if err != nil {
			return err
		}
		c := newConn(l, y, s.Limits)
		c.host = true
		n, most := l.unfinished(), s.most()
		switch ok, first := admit(n-1, most, &full); {
		case ok:
			full = full && n > most/2
			streams.Add(1)
			go s.stream(ctx, c, streams.Done)
		case n > most+maxRefusals:
			return errFlood
		default:
			if first {
				orDiscard(s.Log).Warn("too many streams on a link, more are refused", "most", most)
			}
			c.shut(errClosed, refusalLine(jsonrpc.CauseOverloaded.String()), time.Now().Add(lastTimeout))
		}
	}
}

// SetStreams replaces Streams for new streams.
func (s *Server) SetStreams(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Streams = most
}

// most returns the bound on the streams of a link.
func (s *Server) most() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Streams <= 0 {
		return 4096
	}
	return s.Streams
}

// stream begins to serve one stream, and calls over at its end.
func (s *Server) stream(ctx context.Context, c *conn, over func()) {
	h, err := s.greet(c)
	if err == nil && !h.bytes && s.Through == nil {
		s.Handle(ctx, h, c, func(err error) {
			c.CloseCause(err)
			over()
		})
		return
	}
	defer over()
	switch {
	case err == errControl:
	case errors.Is(err, jsonrpc.ErrClosed): // the proxy has closed the stream
		c.shut(errClosed, nil, longAgo)
	case err != nil:
		s.refuse(c, h, err)
	case h.bytes:
		c.host = false // it has no closing line
		defer c.Close()
		s.Bytes(&byteStream{conn: c})
	default:
		if err := s.relay(ctx, h, c); err != nil {
			c.CloseCause(err)
		}
	}
}

func (s *Server) refuse(c *conn, h Hello, err error) {
	level := slog.LevelDebug
	if c.stream.link.refused.CompareAndSwap(false, true) { // one line for each link
		level = slog.LevelWarn
	}
	orDiscard(s.Log).Log(context.Background(), level, "hello refused", "upstream", shorten(h.Upstream), "err", err)
	c.shut(errClosed, refusalLine(err.Error()), time.Now().Add(lastTimeout))
}

// errControl means that a stream has become the control stream.
var errControl = errors.New("control stream")

// greet reads the hello and accepts it, or returns the reason to refuse it.
func (s *Server) greet(c *conn) (Hello, error) {
	c.stream.y.SetReadDeadline(time.Now().Add(s.helloTimeout()))
	line, err := readHello(c.stream)
	if err != nil {
		return Hello{}, err
	}
	c.stream.y.SetReadDeadline(time.Time{})
	switch {
	case isControl(line):
		return Hello{}, s.control(c.stream, line)
	case !c.stream.link.begun():
		return Hello{}, errNoControl
	case isBytes(line) && s.Bytes != nil:
		return Hello{bytes: true}, c.out.WriteLines([]byte(okLine))
	}
	h, err := parseHello(line)
	if err != nil {
		return Hello{}, err
	}
	if s.Known != nil && !s.Known(h.Upstream) {
		return h, errUnknown
	}
	return h, c.out.WriteLines([]byte(okLine))
}

// readHello reads the first line of s, and not a byte more.
func readHello(s *stream) ([]byte, error) {
	buf, n := make([]byte, maxHello), 0
	for n < len(buf) {
		k, err := s.Read(buf[n:])
		if errors.Is(err, yamux.ErrTimeout) {
			return nil, errLateHello
		}
		if err != nil {
			return nil, err
		}
		n += k
		switch i := bytes.IndexByte(buf[:n], '\n'); {
		case i == n-1:
			return buf[:i], nil
		case i >= 0:
			return nil, errHasty
		}
	}
	return nil, errLongHello
}

// control makes a stream the control stream of its link, if the hello is valid. It returns
// errControl, or the reason to refuse the hello.
func (s *Server) control(on *stream, hello []byte) error {
	l := on.link
	k := newControl(l, on.y)
	v, err := pickVersion(hello)
	if err != nil {
		l.controls.Go(func() { k.refuse(err) })
		return errControl
	}
	if !l.begin(k.bye) {
		return errTwoControl
	}
	if l.proxy = proxyID(hello); l.proxy != "" && s.Linked != nil {
		s.Linked(l.proxy)
	}
	l.controls.Go(func() { k.end(s.talk(k, v)) })
	return errControl
}

// talk accepts the link, and announces upstreams until it ends.
func (s *Server) talk(k *control, v int) error {
	if err := k.out.WriteLines(pickedLine(v)); err != nil {
		return err
	}
	orDiscard(s.Log).Info("link up")
	k.live(s.Heartbeat, &s.announced)
	if s.Rejected == nil {
		return k.read(nil, nil)
	}
	defer s.Rejected(k.link.event, nil)
	return k.read(nil, func(all []Rejection) { s.Rejected(k.link.event, all) })
}

// Announce replaces the upstreams that are announced to proxies, now and in future links.
// It returns an error, and changes nothing, if no proxy would accept them.
func (s *Server) Announce(upstreams []Upstream) error {
	line, err := announcementLine(upstreams)
	if err != nil {
		return err
	}
	s.announced.put(line)
	return nil
}

// announceFirst announces Upstreams, unless something was announced before.
func (s *Server) announceFirst() error {
	return s.announced.begin(func() ([]byte, error) { return announcementLine(s.Upstreams) })
}
