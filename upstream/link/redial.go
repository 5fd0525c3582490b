package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// goodLife is how long a link must have lived for its loss to be news, and
	// for the back-off to begin anew.
	goodLife = 10 * time.Second

	// warnAgain is how often a lasting failure is worth a warning.
	warnAgain = 5 * time.Minute

	// maxLinks bounds the links at once, or those whose handlers have not
	// returned. More that come in are closed; none more is dialled.
	maxLinks = 64
)

// newBackOff returns the waits between two dials: 250 ms to 30 s, with jitter,
// so that many ends that lost one peer do not come back at once.
func newBackOff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = 250 * time.Millisecond
	b.Multiplier = 2
	b.MaxInterval = 20 * time.Second // half as much more, with jitter
	return b
}

// Redial keeps up a link to a host that listens: it dials, serves the link, and
// when that ends, or cannot be dialled, it dials again, after a while, until ctx
// ends. It logs when the link comes and goes.
func (c *Client) Redial(ctx context.Context, dial func(context.Context) (net.Conn, error)) error {
	return redial(ctx, orDiscard(c.Log), dial, c.serve)
}

// Redial keeps up a link to a proxy that listens, as [Client.Redial] does. A new
// link does not wait for the handlers of the old one.
func (s *Server) Redial(ctx context.Context, dial func(context.Context) (net.Conn, error)) error {
	return redial(ctx, orDiscard(s.Log), dial, s.serve)
}

// Accept serves links from hosts that dial l, of which the latest is used,
// until ctx ends or l is closed. It closes l and waits for all links.
func (c *Client) Accept(ctx context.Context, l net.Listener) error {
	return accept(ctx, orDiscard(c.Log), l, c.serve)
}

// Accept serves links from proxies that dial l, up to 64 at once, until ctx ends
// or l is closed. It closes l and waits for all links.
func (s *Server) Accept(ctx context.Context, l net.Listener) error {
	return accept(ctx, orDiscard(s.Log), l, s.serve)
}

// A serveFunc owns carrier until it returns. It calls ended once, when the link
// has ended.
type serveFunc func(ctx context.Context, carrier net.Conn, ended func(up bool, err error)) error

func redial(ctx context.Context, log *slog.Logger, dial func(context.Context) (net.Conn, error), serve serveFunc) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	r := reporter{log: log}
	slots := make(chan struct{}, maxLinks)
	wait := newBackOff()
	for ctx.Err() == nil {
		start := time.Now()
		carrier, err := dial(ctx)
		if err != nil {
			r.failed(ctx, "link cannot be dialled", err)
		} else {
			slots <- struct{}{}
			ended := make(chan bool, 1)
			wg.Go(func() {
				defer func() { <-slots }()
				serve(ctx, carrier, func(up bool, err error) {
					r.ended(ctx, up, err, time.Since(start))
					ended <- up
				})
			})
			if <-ended && time.Since(start) > goodLife {
				wait.Reset()
			}
		}
		pause(ctx, wait.NextBackOff())
	}
	return context.Cause(ctx)
}

func accept(ctx context.Context, log *slog.Logger, l net.Listener, serve serveFunc) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	r := reporter{log: log}
	slots := make(chan struct{}, maxLinks)
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
		case err != nil: // no descriptors left, for example: that passes
			r.failed(ctx, "link cannot be accepted", err)
			pause(ctx, newBackOff().NextBackOff())
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			carrier.Close()
			r.failed(ctx, "link refused", fmt.Errorf("there are %d", maxLinks))
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			start := time.Now()
			serve(ctx, carrier, func(up bool, err error) { r.ended(ctx, up, err, time.Since(start)) })
		})
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// A reporter logs the ends of links: a warning for the first of a row of
// failures, and every few minutes while it lasts.
type reporter struct {
	log *slog.Logger

	mu     sync.Mutex // guards warned
	warned time.Time
}

// ended logs the end of a link.
func (r *reporter) ended(ctx context.Context, up bool, err error, lived time.Duration) {
	switch {
	case ctx.Err() != nil:
		r.log.Debug("link ended", "err", err, "dur", lived)
	case up && lived > goodLife:
		r.mu.Lock()
		r.warned = time.Time{}
		r.mu.Unlock()
		r.failed(ctx, "link lost", err, "dur", lived)
	case up:
		r.failed(ctx, "link lost", err, "dur", lived)
	default:
		r.failed(ctx, "link failed", err)
	}
}

// failed logs a failure.
func (r *reporter) failed(ctx context.Context, what string, err error, more ...any) {
	if ctx.Err() != nil {
		return
	}
	level := slog.LevelDebug
	r.mu.Lock()
	if r.warned.IsZero() || time.Since(r.warned) > warnAgain {
		r.warned, level = time.Now(), slog.LevelWarn
	}
	r.mu.Unlock()
	r.log.Log(ctx, level, what, append([]any{"err", err}, more...)...)
}
