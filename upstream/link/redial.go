package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

const (
	// goodLife is how long a link must have lived to reset the back-off. After a shorter life, but for
	// fairLife at least, the pause is not longer than that was, so that a link which a bad network
	// keeps breaking is up for half of the time.
	goodLife = 10 * time.Second
	fairLife = time.Second

	// replacedPause is how long a host waits that another one has replaced: if they share a
	// token by mistake, each of them works for that long.
	replacedPause = 30 * time.Second

	// warnAgain is the time between two warnings of a lasting failure.
	warnAgain = 5 * time.Minute

	// maxLinks bounds the links, including those whose handlers have not returned. One
	// more that is accepted evicts one that is not up, or is closed if there is none. No
	// more are dialled.
	maxLinks = 64
)

// maxPause is the longest pause between dials.
const maxPause = 30 * time.Second

// newBackOff returns the pauses between dials: 250 ms to maxPause, with jitter, so that many
// ends that lost the same peer do not dial at the same time.
func newBackOff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 250 * time.Millisecond
	b.Multiplier = 2
	b.MaxInterval = maxPause * 2 / 3 // without jitter
	return b
}

// A watcher is notified of the life of a link.
type watcher struct {
	up    func()                                 // called when the hello is answered; may be nil
	ended func(up bool, event string, err error) // called once at the end, perhaps long before all handlers have returned
}

var unwatched = watcher{ended: func(bool, string, error) {}}

func redial(
	ctx context.Context, r *endReporter, dial func(context.Context) (net.Conn, error),
	serve func(context.Context, net.Conn, watcher) error,
) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxLinks)
	wait := newBackOff()
	r.dials = true
	most := maxPause
	for ; ctx.Err() == nil; pause(ctx, min(wait.NextBackOff(), most)) {
		most = maxPause
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		start := time.Now()
		carrier, err := dial(ctx)
		if err != nil {
			<-slots
			r.ended(ctx, false, "", err, 0)
			continue
		}
		type end struct{ up, replaced bool }
		ended := make(chan end, 1)
		wg.Go(func() {
			defer func() { <-slots }()
			_ = serve(ctx, carrier, watcher{ended: func(up bool, event string, err error) {
				r.ended(ctx, up, event, err, time.Since(start))
				ended <- end{up, errors.Is(err, errTakenOver)}
			}})
		})
		switch e, life := <-ended, time.Since(start); {
		case e.replaced:
			pause(ctx, replacedPause)
		case e.up && life > goodLife:
			wait.Reset()
		case e.up && life >= fairLife:
			most = life
		}
	}
	return context.Cause(ctx)
}

func accept(
	ctx context.Context, r *endReporter, l net.Listener, serve func(context.Context, net.Conn, watcher) error,
) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxLinks)
	var pending pendingCarriers
	for {
		carrier, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				carrier.Close()
			}
			return context.Cause(ctx)
		case errors.Is(err, net.ErrClosed):
			return err
		case isRefused(err):
			r.ended(ctx, false, "", err, 0)
			continue
		case err != nil: // temporary, for example too many descriptors
			r.ended(ctx, false, "", fmt.Errorf("accept: %w", err), 0)
			pause(ctx, newBackOff().NextBackOff())
			continue
		}
		if !enter(ctx, slots, &pending) {
			carrier.Close()
			r.ended(ctx, false, "", errManyLinks, 0)
			continue
		}
		pending.add(carrier)
		wg.Go(func() {
			defer func() { <-slots }()
			defer pending.remove(carrier)
			start := time.Now()
			_ = serve(ctx, carrier, watcher{
				up:    func() { pending.remove(carrier) },
				ended: func(up bool, event string, err error) { r.ended(ctx, up, event, err, time.Since(start)) },
			})
		})
	}
}

// enter takes a slot. If there is none, it evicts the link that has been without a hello for
// longest. It returns false if all links are up.
func enter(ctx context.Context, slots chan<- struct{}, pending *pendingCarriers) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
	}
	if !pending.evict() {
		return false
	}
	select {
	case slots <- struct{}{}: // a link without a hello ends at once
		return true
	case <-ctx.Done():
		return false
	}
}

// pendingCarriers has the carriers of links that are not up, at most maxLinks: connections
// without a hello must not keep others out.
type pendingCarriers struct {
	mu       sync.Mutex // guards carriers
	carriers []net.Conn // the oldest first
}

func (l *pendingCarriers) add(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.carriers = append(l.carriers, c)
}

func (l *pendingCarriers) remove(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.carriers = slices.DeleteFunc(l.carriers, func(other net.Conn) bool { return other == c })
}

// evict closes the oldest carrier. It reports whether there was one.
func (l *pendingCarriers) evict() bool {
	l.mu.Lock()
	var oldest net.Conn
	if len(l.carriers) > 0 {
		oldest = l.carriers[0]
		l.carriers = slices.Delete(l.carriers, 0, 1)
	}
	l.mu.Unlock()
	if oldest != nil {
		oldest.Close()
	}
	return oldest != nil
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

var errManyLinks = fmt.Errorf("there are %d already", maxLinks)

// An endReporter logs the ends of links. It warns of the first of several failures, and
// again every warnAgain. If we dial, it also warns when a link does not come up for another reason
// than before: nothing else says why.
type endReporter struct {
	log   *slog.Logger
	host  bool // of a host: there a link that the other side ended is no failure
	dials bool // set by redial; if others dial us, any of them could fill the log

	failed func(error)                                        // called for a link that did not come up; may be nil
	lost   func(event string, err error, lived time.Duration) // called for a link that was up and failed; may be nil

	mu     sync.Mutex // guards the fields below
	warned time.Time
	why    map[string]bool // the reasons since then
}

// ended logs the end of a link with its event, or of an attempt at one.
func (r *endReporter) ended(ctx context.Context, up bool, event string, err error, lived time.Duration) {
	level := slog.LevelDebug
	switch {
	case ctx.Err() != nil:
	case r.host && errors.Is(err, errLeft) && !errors.Is(err, errTakenOver):
		level = slog.LevelInfo
		if up { // that nobody answers for a while follows from it, too
			r.isNewFailure(up, err)
		}
	case r.isNewFailure(up, err):
		level = slog.LevelWarn
	}
	if up {
		r.log.Log(ctx, level, "link lost", "event", event, "err", err, "dur", lived)
		if level == slog.LevelWarn && r.lost != nil {
			r.lost(event, err, lived)
		}
		return
	}
	r.log.Log(ctx, level, "link failed", "err", err)
	if r.failed != nil {
		r.failed(err)
	}
}

// isNewFailure reports whether to warn of a failure: always after a link was up, which was
// logged, and otherwise after warnAgain, or of another reason.
func (r *endReporter) isNewFailure(up bool, err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	why := reason(err)
	switch {
	case up:
		r.warned, r.why = time.Now(), map[string]bool{why: true, unanswered: true}
	case time.Since(r.warned) > warnAgain:
		r.warned, r.why = time.Now(), map[string]bool{why: true}
	case r.dials && !r.why[why]:
		r.why[why] = true
	default:
		return false
	}
	return true
}

// unanswered is the reason of all dials that nobody answers. After a loss it is no news.
const unanswered = ""

// reason returns a text that is the same for two failures of a kind: ports and times in it differ.
func reason(err error) string {
	if isUnanswered(err) {
		return unanswered
	}
	if status, ok := errors.AsType[*wsconn.StatusError](err); ok {
		return status.Error()
	}
	return strings.Map(func(c rune) rune {
		if '0' <= c && c <= '9' {
			return -1
		}
		return c
	}, err.Error())
}

// isUnanswered reports whether a process or a network is away, for which there are many errors, also those of a proxy in
// front of it. That we may not connect, or have no descriptors, is something else.
func isUnanswered(err error) bool {
	if status, ok := errors.AsType[*wsconn.StatusError](err); ok {
		return status.Code == http.StatusBadGateway || status.Code == http.StatusServiceUnavailable || status.Code == http.StatusGatewayTimeout
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		return !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE)
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return true
	}
	late, ok := errors.AsType[net.Error](err)
	return ok && late.Timeout() || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
