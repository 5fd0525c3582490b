package translate

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const (
	// maxLegacyCalls bounds the open calls of one client. Those beyond are refused.
	maxLegacyCalls = 4096

	// flushTime is how long a client may take to read what its upstream had said
	// before it ended.
	flushTime = 5 * time.Second
)

// Causes of an end, as in [jsonrpc.ErrorData].
const (
	causeHostStopped = "host stopped"
	causeLinkLost    = "link lost"
)

// A legacy is one legacy client's stream and the modern stream that is opened for
// it. It holds what a legacy session is: what initialize and setLevel said, what is
// subscribed to, and the calls that wait for an answer or for input.
type legacy struct {
	// Static after construction.
	upstream string
	log      *slog.Logger
	client   jsonrpc.Conn
	modern   jsonrpc.Conn
	toClient *sendQueue
	toModern *sendQueue
	wg       sync.WaitGroup // all goroutines
	timers   timers

	mu        sync.Mutex // guards the fields below
	ended     bool
	hello     *hello // nil before initialize
	level     string // of logging/setLevel
	stamp     []byte // members of _meta that every modern request carries
	minted    int64  // ids on the modern stream
	open      map[int64]modernRequest
	calls     map[jsonrpc.ID]*legacyCall // not settled, by the client's id
	asked     int64                      // ids of questions on the client's stream
	questions map[int64]*question
	lists     listChanges
	resources subscriptions
}

// A modernRequest is a request on the modern stream that is not answered.
type modernRequest struct {
	call   *legacyCall                // that it is sent for; nil for one of this side
	again  bool                       // not for the first time
	listen *listen                    // if it is a listen
	then   func(raw *jsonrpc.Message) // gets the answer to one of this side, with mu held
}

// Legacy serves a legacy client whose upstream speaks modern. It owns client until
// it returns, and closes it with the end of the upstream's stream. The error is the
// cause of the end. All that was started has ended then.
func (t *Translator) Legacy(ctx context.Context, upstream, key string, client jsonrpc.Conn) error {
	l := &legacy{
		upstream: upstream, log: t.logger().With("upstream", upstream), level: unsaidLevel,
		client: client, modern: t.Open(ctx, upstream, key, mcp.Modern),
		open:      make(map[int64]modernRequest),
		calls:     make(map[jsonrpc.ID]*legacyCall),
		questions: make(map[int64]*question),
	}
	l.toClient, l.toModern = newSendQueue(client), newSendQueue(l.modern)
	l.lists.l, l.resources.l, l.resources.wanted = l, l, make(map[string]bool)
	return l.serve(ctx)
}

// clientLeft is an end that the client's side chose.
type clientLeft struct{ error }

// serve runs the stream to its end. The first cause wins.
func (l *legacy) serve(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	flushed := make(chan struct{})
	l.wg.Go(func() { end(l.readModern()) })
	l.wg.Go(func() { end(clientLeft{l.readClient()}) })
	l.wg.Go(l.toModern.run)
	l.wg.Go(func() { l.toClient.run(); close(flushed) })
	<-ctx.Done()

	err := l.endedWith(context.Cause(ctx))
	l.timers.end()
	l.stop()
	l.modern.Close() // whose host cancels what is open there
	l.toModern.end()
	l.toClient.end()
	if left, ok := errors.AsType[clientLeft](err); ok {
		err = left.error
	} else {
		waitFor(flushed, flushTime)
	}
	jsonrpc.CloseWith(l.client, err)
	l.wg.Wait()
	l.timers.wait()
	return err
}

// endedWith returns the end that a cause is, with what the client's side needs to
// know.
func (l *legacy) endedWith(cause error) error {
	switch {
	case errors.As(cause, new(clientLeft)), errors.As(cause, new(*jsonrpc.ClosedError)):
		return cause
	case errors.Is(cause, jsonrpc.ErrClosed):
		return &jsonrpc.ClosedError{Cause: causeLinkLost, Delivered: true, Err: cause}
	}
	return &jsonrpc.ClosedError{Cause: causeHostStopped, Delivered: true, Err: cause}
}

func waitFor(done <-chan struct{}, atMost time.Duration) {
	late := time.NewTimer(atMost)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
}

// stop lets nothing new begin, and withdraws what the client is asked.
func (l *legacy) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, c := range l.calls {
		l.dropLocked(c, "upstream disconnected")
	}
	l.lists.again.stop()
	l.resources.again.stop()
}

// readClient owns Recv of the client's stream. It waits until what its messages
// cause has room, on both sides: neither depends on it.
func (l *legacy) readClient() error {
	return readAll(l.client, func(m *jsonrpc.Message) {
		l.toModern.waitForRoom()
		l.toClient.waitForRoom()
		switch {
		case m.IsRequest():
			l.request(m)
		case m.IsNotification():
			l.noticeOfClient(m)
		default:
			l.answeredByClient(m)
		}
	}, nil)
}

// readModern owns Recv of the modern stream. It waits for the client alone: what it
// says to the upstream itself, retries and listens, is bounded by the calls that are
// open.
func (l *legacy) readModern() error {
	return readAll(l.modern, func(m *jsonrpc.Message) {
		l.toClient.waitForRoom()
		switch {
		case m.IsRequest(): // modern servers ask in results
			l.log.Debug("request of a modern upstream", "method", m.Method)
		case m.IsNotification():
			l.noticeOfServer(m)
		default:
			l.answered(m)
		}
	}, l.unusable)
}

// readAll hands the messages of a Conn to fn until it ends, and those that cannot be
// used to bad, if that is not nil.
func readAll(c jsonrpc.Conn, fn func(*jsonrpc.Message), bad func(*jsonrpc.InvalidError)) error {
	var batch []*jsonrpc.Message
	for {
		var end error
		batch, end = jsonrpc.RecvAll(c, batch[:0])
		for _, m := range batch {
			if m.Batch == nil {
				fn(m)
			}
			for _, e := range m.Batch {
				fn(e)
			}
		}
		clear(batch)
		unusable, ok := errors.AsType[*jsonrpc.InvalidError](end)
		switch {
		case ok && bad != nil:
			bad(unusable)
		case !ok && end != nil:
			return jsonrpc.Closed(end)
		}
	}
}

// afterLocked runs fn with mu held, d from now, unless it is stopped or the stream ends
// first. One that is stopped too late still runs: fn must look whether it is wanted.
func (l *legacy) afterLocked(d time.Duration, fn func()) *timer {
	return l.timers.after(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.ended {
			fn()
		}
	})
}

// mintLocked enters a request on the modern stream.
func (l *legacy) mintLocked(r modernRequest) int64 {
	l.minted++
	l.open[l.minted] = r
	return l.minted
}

// askLocked sends a request of this side. params must be an object without _meta.
func (l *legacy) askLocked(method string, params json.RawMessage, r modernRequest) int64 {
	n := l.mintLocked(r)
	text, _, err := stamped(params, l.stamp, n)
	if err != nil { // it is this side that wrote them
		text = params
	}
	l.toModern.put(jsonrpc.NewRequest(jsonrpc.IntID(n), method, text))
	return n
}

// cancelLocked tells the upstream that nobody waits for a request any more.
func (l *legacy) cancelLocked(n int64, reason string) {
	delete(l.open, n)
	l.toModern.put(mcp.Cancellation(jsonrpc.IntID(n), reason))
}
