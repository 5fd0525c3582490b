package link

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// linkHello is how long the hello of a link and its answer may take.
	linkHello = 10 * time.Second

	// acceptBacklog is how many streams may wait to be accepted, at either end; further
	// ones are reset. The accept loop does no work, so that only a burst comes close.
	acceptBacklog = 1024

	// maxOpening is how many streams a proxy opens at a time on one link. It is less than
	// a host's backlog, and than maxRefusals.
	maxOpening = 256

	// maxLarge is how many lines over 64 KiB are read at a time on one link, since partial
	// lines are in memory. Further ones wait for at most largeTimeout, and each then has
	// the same time to arrive. If one is late, its stream ends.
	maxLarge     = 16
	largeTimeout = time.Minute

	// writeTimeout is how long writing a frame to the carrier may take; then the link
	// ends.
	writeTimeout = 60 * time.Second

	// closeTimeout is how long a stream that this side closed waits for the
	// other side to close it, too; then it is reset.
	closeTimeout = 5 * time.Second

	// byeTimeout is how long a proxy that ends its link waits until the last messages on
	// its streams have arrived.
	byeTimeout = time.Second

	// tellTimeout is how long a link that ends for a fault of the other side,
	// or is replaced, may take to send the reason.
	tellTimeout = 200 * time.Millisecond
)

// A link is one yamux session on one carrier, and the goroutines that open and
// close streams on it.
type link struct {
	// Static after construction.
	y       *yamux.Session
	carrier *socket
	event   string // of its end, for its streams and the log
	up      func() // called once the hello is answered; may be nil

	proxy string // its id; "" for none. Written by the stream that becomes control

	wg       sync.WaitGroup // goroutines of spawn and leave
	opening  chan struct{}  // an element for each stream that the proxy is opening
	large    chan struct{}  // an element for each large line that is being read
	within   time.Duration  // largeTimeout, but in tests
	leaving  sync.WaitGroup // goroutines of leave that have not sent the last message
	controls sync.WaitGroup // goroutines that run as long as the link
	refused  atomic.Bool    // a refused hello was logged
	losing   sync.Once      // lose
	dead     atomic.Bool    // lose was called: nothing may wait for a stream

	mu      sync.Mutex           // guards the fields below
	closed  bool                 // spawn starts nothing more
	bye     func(error)          // tells the other side the cause of the end; nil before the hello, and without one
	streams map[*stream]struct{} // unfinished ones, without the control stream
	err     error                // the first cause of the end
}

// newLink starts a session with yamux.Client or yamux.Server. It owns carrier.
func newLink(
	carrier net.Conn, end func(io.ReadWriteCloser, *yamux.Config) (*yamux.Session, error), config *yamux.Config,
) (*link, error) {
	l := &link{
		carrier: newSocket(carrier), event: jsonrpc.NewEvent(), opening: make(chan struct{}, maxOpening),
		large: make(chan struct{}, maxLarge), within: largeTimeout, streams: make(map[*stream]struct{}),
	}
	var err error
	if l.y, err = end(yamuxCarrier{l.carrier, l.lose}, config); err != nil {
		l.carrier.Close()
		return nil, fmt.Errorf("start link: %w", err)
	}
	return l, nil
}

func newConfig(log *slog.Logger) *yamux.Config {
	config := yamux.DefaultConfig()
	config.AcceptBacklog = acceptBacklog
	config.EnableKeepAlive = false // its pings wait behind the data of a busy carrier
	config.ConnectionWriteTimeout = writeTimeout
	config.StreamOpenTimeout = 0 // the hello has a deadline
	config.StreamCloseTimeout = closeTimeout
	config.LogOutput = nil
	config.Logger = yamuxLogger{log}
	return config
}

// spawn runs fn in a goroutine that close waits for. On a closed link it returns false and
// runs nothing.
func (l *link) spawn(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.wg.Go(fn)
	}
	return !l.closed
}

// leave is spawn for the end of a stream: last sends the last messages, and rest waits for
// the other side.
func (l *link) leave(last, rest func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.leaving.Add(1)
		l.wg.Go(func() {
			last()
			l.leaving.Done()
			rest()
		})
	}
	return !l.closed
}

// quiet keeps spawn and leave from starting anything more.
func (l *link) quiet() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// begin records that the hello was answered, and the function that tells the other side the
// cause of the end. It returns false if there was a hello before.
func (l *link) begin(bye func(error)) bool {
	l.mu.Lock()
	first := l.bye == nil
	if first {
		l.bye = bye
	}
	l.mu.Unlock()
	if first && l.up != nil {
		l.up()
	}
	return first
}

// begun reports whether there has been a hello on the control stream.
func (l *link) begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bye != nil
}

// over reports whether the link has ended, or is about to.
func (l *link) over() bool { return l.cause() != nil || l.ending() }

// ending reports whether yamux's session has ended, or is about to: further errors are
// consequences.
func (l *link) ending() bool { return l.dead.Load() || l.y.IsClosed() }

// cause returns the cause of the link's end, nil while it lives.
func (l *link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// part ends the link because of err. It first sends the last messages of closed streams and
// the cause, and waits for at most while until the other side hangs up. Without a control
// stream it cannot send the cause, and ends the link at once.
func (l *link) part(err error, while time.Duration) {
	if l.begun() {
		cut := time.AfterFunc(while, func() { l.fail(err) })
		defer cut.Stop()
		l.quiet()
		l.leaving.Wait()
		l.record(err)
		l.bye(err) // set once
		<-l.y.CloseChan()
	}
	l.fail(err)
}

// fail ends the link and all its streams because of err. It closes only the carrier: yamux's
// reader then finds the end and does the rest.
func (l *link) fail(err error) {
	l.record(err)
	l.lose()
	l.carrier.Close()
}

// lost returns the end of a stream whose link ended because of err.
func (l *link) lost(err error) *jsonrpc.ClosedError {
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true, Event: l.event, Err: err}
}

// lose interrupts all reads and writes on streams before yamux knows that the link has
// ended: Session.Close locks the streams one after another, and until then each stream's
// reader spins, sometimes with the lock held. Thousands of them would share the
// processors, 10 ms each, for minutes.
func (l *link) lose() {
	l.losing.Do(func() { // concurrent callers wait
		l.dead.Store(true)
		l.mu.Lock()
		defer l.mu.Unlock()
		for s := range l.streams {
			s.interrupt()
		}
	})
}

// enter adds a stream.
func (l *link) enter(s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams[s] = struct{}{}
}

// finished removes a stream.
func (l *link) finished(s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, s)
}

// unfinished returns the number of streams.
func (l *link) unfinished() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams)
}

// record sets the cause of the end, unless there is one.
func (l *link) record(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// close ends the link, waits for all its goroutines and returns the cause of the end: err
// unless there was an earlier one.
func (l *link) close(err error) error {
	l.fail(err)
	<-l.y.CloseChan()
	l.y.Close() // waits for yamux's goroutines
	l.quiet()
	l.wg.Wait()
	l.controls.Wait()
	return jsonrpc.Closed(l.cause())
}

// A yamuxLogger logs what yamux reports at level debug: everything that matters also ends a
// stream or the link.
type yamuxLogger struct{ log *slog.Logger }

func (c yamuxLogger) Print(v ...any)                 { c.say(fmt.Sprint(v...)) }
func (c yamuxLogger) Println(v ...any)               { c.say(fmt.Sprintln(v...)) }
func (c yamuxLogger) Printf(format string, v ...any) { c.say(fmt.Sprintf(format, v...)) }
func (c yamuxLogger) say(text string)                { c.log.Debug("yamux", "err", strings.TrimSpace(text)) }

// orDiscard returns log, or a Logger that discards if it is nil.
func orDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

// errTooMany is why a stream was refused.
var errTooMany = errors.New("too many streams")

// admit reports whether one more stream is allowed beside n of at most most; zero is no
// bound. The first refused one sets full, and the caller logs it. The caller resets full when
// half of the streams have gone, so that there is one log line for many refusals.
func admit(n, most int, full *bool) (ok, first bool) {
	if most <= 0 || n < most {
		return true, false
	}
	first, *full = !*full, true
	return false, first
}
