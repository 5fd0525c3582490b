package link

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

const (
	// acceptBacklog is how many streams may wait to be accepted, at both ends
	// alike; one more is reset. The accept loop does no work, so that only a
	// burst of openings can come near.
	acceptBacklog = 1024

	// writeTimeout is how long the carrier may refuse to take a frame; then
	// the link ends.
	writeTimeout = 60 * time.Second

	// closeTimeout is how long a stream that this side closed waits for the
	// other side to close it too; then it is reset.
	closeTimeout = 5 * time.Second
)

// A link is one yamux session on one carrier, and the goroutines that open and
// close streams on it.
type link struct {
	// Static after construction.
	y       *yamux.Session
	carrier net.Conn

	wg sync.WaitGroup // what spawn started

	mu     sync.Mutex // guards the fields below
	closed bool       // spawn starts nothing more
	err    error      // why the link ended, the first cause
}

// newLink starts a session with yamux.Client or yamux.Server. It owns carrier.
func newLink(carrier net.Conn, end func(io.ReadWriteCloser, *yamux.Config) (*yamux.Session, error), config *yamux.Config) (*link, error) {
	y, err := end(carrier, config)
	if err != nil {
		carrier.Close()
		return nil, fmt.Errorf("start link: %w", err)
	}
	return &link{y: y, carrier: carrier}, nil
}

func newConfig(log *slog.Logger) *yamux.Config {
	config := yamux.DefaultConfig()
	config.AcceptBacklog = acceptBacklog
	config.EnableKeepAlive = false // its pings wait behind the data of a busy carrier
	config.ConnectionWriteTimeout = writeTimeout
	config.StreamOpenTimeout = 0 // the hello has a deadline
	config.StreamCloseTimeout = closeTimeout
	config.LogOutput = nil
	config.Logger = chatter{log}
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

// settle waits for what spawn started, and lets it start nothing more.
func (l *link) settle() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.wg.Wait()
}

// fail ends the link, and all its streams with it, because of err. It closes
// the carrier alone and leaves the rest to yamux, whose reader then finds the
// end: yamux's own Close would let every blocked reader of a stream spin until
// that happens.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.carrier.Close()
}

// close ends the link, waits for all its goroutines and returns the cause of
// the end, which is err unless there was an earlier one.
func (l *link) close(err error) error {
	l.fail(err)
	<-l.y.CloseChan()
	l.y.Close() // waits for yamux's goroutines
	l.settle()
	l.mu.Lock()
	defer l.mu.Unlock()
	return jsonrpc.Closed(l.err)
}

// causeLost is what both ends say of a stream whose link is gone.
const causeLost = "link lost"

// chatter makes a yamux.Logger of a slog.Logger. Whatever matters of what yamux
// says also ends a stream or the link, so all of it is for debugging.
type chatter struct{ log *slog.Logger }

func (c chatter) Print(v ...any)                 { c.say(fmt.Sprint(v...)) }
func (c chatter) Println(v ...any)               { c.say(fmt.Sprintln(v...)) }
func (c chatter) Printf(format string, v ...any) { c.say(fmt.Sprintf(format, v...)) }
func (c chatter) say(text string)                { c.log.Debug("yamux", "err", strings.TrimSpace(text)) }

// orDiscard makes a nil Logger one that discards.
func orDiscard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}
