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
	// acceptBacklog is how many streams may wait to be accepted, at both ends
	// alike; one more is reset. The accept loop does no work, so that only a
	// burst of openings can come near.
	acceptBacklog = 1024

	// maxOpening is how many streams a proxy opens at a time on one link: fewer than
	// a host's backlog, and than it may have to refuse at once.
	maxOpening = 256

	// maxLarge is how many lines over 64 KiB are read at a time on one link: what has come of
	// one is in memory. The others wait, for as long as largeTimeout, and then each has as
	// long to come. One that does not ends its stream.
	maxLarge     = 16
	largeTimeout = time.Minute

	// writeTimeout is how long the carrier may refuse to take a frame; then
	// the link ends.
	writeTimeout = 60 * time.Second

	// closeTimeout is how long a stream that this side closed waits for the
	// other side to close it too; then it is reset.
	closeTimeout = 5 * time.Second

	// byeTimeout is how long a proxy that ends its link waits for the last
	// words on its streams to arrive.
	byeTimeout = time.Second

	// tellTimeout is how long a link that ends for a fault of the other side,
	// or is replaced, may take to say so.
	tellTimeout = 200 * time.Millisecond
)

// A link is one yamux session on one carrier, and the goroutines that open and
// close streams on it.
type link struct {
	// Static after construction.
	y       *yamux.Session
	carrier net.Conn
	socket  *socket // the carrier, unless that is a Ring
	trusted bool    // the other side's messages need not be checked
	event   string  // of its end, which its streams and the log name
	up      func()  // called once the hello is through; may be nil

	proxy string // its id; "" for none. Written by the stream that becomes control

	wg       sync.WaitGroup // what spawn and leave started
	opening  chan struct{}  // has one for each opening that the proxy has begun
	large    chan struct{}  // has one for each large line that is being read
	within   time.Duration  // that such a line has
	leaving  sync.WaitGroup // what leave has still to say
	controls sync.WaitGroup // what goes on as long as the link
	refused  atomic.Bool    // a hello was, of which the log has heard
	losing   sync.Once      // lose
	dead     atomic.Bool    // lose was called: nothing may wait for a stream

	mu      sync.Mutex               // guards the fields below
	closed  bool                     // spawn starts nothing more
	bye     func(error)              // tells the other side of the end; nil before the hello, and without one
	streams map[interrupter]struct{} // those that are not finished, but for the control stream
	err     error                    // why the link ended, the first cause
}

// An interrupter has somebody who waits for it.
type interrupter interface{ interrupt() }

// newLink starts a session with yamux.Client or yamux.Server. It owns carrier.
func newLink(carrier net.Conn, end func(io.ReadWriteCloser, *yamux.Config) (*yamux.Session, error), config *yamux.Config, trusted bool) (*link, error) {
	l := &link{carrier: carrier, trusted: trusted, event: jsonrpc.NewEvent(), opening: make(chan struct{}, maxOpening), large: make(chan struct{}, maxLarge), within: largeTimeout, streams: make(map[interrupter]struct{})}
	if _, ring := carrier.(*ringConn); !ring {
		l.socket = newSocket(carrier)
		l.carrier = l.socket
	}
	var err error
	if l.y, err = end(yamuxCarrier{l.carrier, l.lose}, config); err != nil {
		l.carrier.Close()
		return nil, fmt.Errorf("start link: %w", err)
	}
	return l, nil
}

// silence returns how long nothing has come. In memory nobody dies alone.
func (l *link) silence() time.Duration {
	if l.socket == nil {
		return 0
	}
	return l.socket.silence()
}

// inMemory is what the timeouts are between two ends in one process: there is no
// carrier that could be dead, but processors may be busy, and yamux's timeouts end
// the link, that of writes at once and that of closing now and then (it resets a
// stream which may be closing in that very moment).
const inMemory = time.Hour

// timeout returns d, or what takes its place in one process.
func timeout(d time.Duration, trusted bool) time.Duration {
	if trusted {
		return inMemory
	}
	return d
}

// orElse returns d, or what zero means.
func orElse(d, zero time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return zero
}

func newConfig(log *slog.Logger, trusted bool) *yamux.Config {
	config := yamux.DefaultConfig()
	config.AcceptBacklog = acceptBacklog
	config.EnableKeepAlive = false // its pings wait behind the data of a busy carrier
	config.ConnectionWriteTimeout = timeout(writeTimeout, trusted)
	config.StreamOpenTimeout = 0 // the hello has a deadline
	config.StreamCloseTimeout = timeout(closeTimeout, trusted)
	config.LogOutput = nil
	config.Logger = yamuxLogger{log}
	return config
}

// spawn runs fn in a goroutine that close waits for. It reports whether it did:
// on a closed link there is nothing left to open or close.
func (l *link) spawn(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.wg.Go(fn)
	}
	return !l.closed
}

// leave does the same for the end of a stream: last says the last words, and
// rest waits for the other side.
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

// quiet lets spawn and leave start nothing more.
func (l *link) quiet() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// begin notes that the hello is through, and how to say goodbye. It does not if there
// has been one.
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

// over reports whether the link has ended, or will in a moment.
func (l *link) over() bool { return l.cause() != nil || l.ending() }

// ending reports whether yamux's session has ended, or will in a moment: what fails
// now is a consequence.
func (l *link) ending() bool { return l.dead.Load() || l.y.IsClosed() }

// cause returns why the link has ended; nil while it lives.
func (l *link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// part ends the link because of err when what its streams had to say has
// arrived at the other side, which hangs up then, or after a while at the latest.
// Without a control stream the other side would not know: it ends at once.
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

// fail ends the link, and all its streams with it, because of err. It closes
// the carrier alone and leaves the rest to yamux, whose reader then finds the
// end.
func (l *link) fail(err error) {
	l.record(err)
	l.lose()
	l.carrier.Close()
}

// lost is the end of a stream that the end of its link is.
func (l *link) lost(err error) *jsonrpc.ClosedError {
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true, Event: l.event, Err: err}
}

// lose interrupts whoever waits for a stream, before yamux hears that the link
// has ended: its Session.Close has to lock every stream, one after another, and
// until it has come to one, that stream's reader spins, now and then with the lock
// held. Thousands of them would share the processors, 10 ms each, for minutes.
func (l *link) lose() {
	l.losing.Do(func() { // whoever comes second waits, too
		l.dead.Store(true)
		l.mu.Lock()
		defer l.mu.Unlock()
		for s := range l.streams {
			s.interrupt()
		}
	})
}

// enter adds a stream to those of the link.
func (l *link) enter(s interrupter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams[s] = struct{}{}
}

// finished takes it out again.
func (l *link) finished(s interrupter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, s)
}

// unfinished returns how many streams there are.
func (l *link) unfinished() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams)
}

// record keeps err as the cause of the end, unless there is one.
func (l *link) record(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// close ends the link, waits for all its goroutines and returns the cause of
// the end, which is err unless there was an earlier one.
func (l *link) close(err error) error {
	l.fail(err)
	<-l.y.CloseChan()
	l.y.Close() // waits for yamux's goroutines
	l.quiet()
	l.wg.Wait()
	l.controls.Wait()
	return jsonrpc.Closed(l.cause())
}

// yamuxLogger makes a yamux.Logger of a slog.Logger. Whatever matters of what yamux
// says also ends a stream or the link, so all of it is for debugging.
type yamuxLogger struct{ log *slog.Logger }

func (c yamuxLogger) Print(v ...any)                 { c.say(fmt.Sprint(v...)) }
func (c yamuxLogger) Println(v ...any)               { c.say(fmt.Sprintln(v...)) }
func (c yamuxLogger) Printf(format string, v ...any) { c.say(fmt.Sprintf(format, v...)) }
func (c yamuxLogger) say(text string)                { c.log.Debug("yamux", "err", strings.TrimSpace(text)) }

// orDiscard makes a nil Logger one that discards.
func orDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

// errTooMany is what happened when there was no room for a stream.
var errTooMany = errors.New("too many streams")

// An overload is too many streams. That is one event, and so one line in the log, until half
// of them have gone.
type overload struct {
	told bool // one was refused, which the log knows
}

// admit reports whether there may be one more beside n streams, of most; zero is no
// bound. The first that is refused is to be told.
func (c *overload) admit(n, most int) (ok, first bool) {
	if most <= 0 || n < most {
		return true, false
	}
	first, c.told = !c.told, true
	return false, first
}

// thin notes that there are n streams, of most.
func (c *overload) thin(n, most int) { c.told = c.told && n > most/2 }
