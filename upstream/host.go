package upstream

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// A Host runs upstreams for the streams that attach to them. Its exported fields
// must not change after the first Attach.
type Host struct {
	Upstreams map[string]Upstream // by name
	Log       *slog.Logger        // nil discards
	Limits    jsonrpc.Limits      // of one message from an upstream

	spawner spawner
	wg      sync.WaitGroup // Attach, and the spawner's thread

	mu     sync.Mutex // guards the field below and the claims in it
	claims map[claimID]*claim
}

// Attach serves one stream: it starts the upstream of that name for the claim
// that key has on it, and passes messages until either ends. It owns c.
//
// Request ids on c must be unique for the life of the stream. When the upstream
// ends, c is closed with a [*jsonrpc.ClosedError], which is also returned; the
// next Attach with the same key starts it again, unless it failed too often: then
// Attach fails at once until its back-off is over. When c is closed, what is in
// flight is cancelled and the upstream stopped, which takes up to three times its
// StopGrace; the error is then an [jsonrpc.ErrClosed]. Cancelling ctx stops it all
// within a second.
//
// Attach returns when everything that it started is gone.
func (h *Host) Attach(ctx context.Context, upstream, key string, c jsonrpc.Conn) error {
	h.wg.Add(1)
	defer h.wg.Done()
	log := h.logger().With("upstream", upstream, "session", short(key))
	up, ok := h.Upstreams[upstream]
	if !ok {
		return refuse(c, errors.New("no upstream of that name"))
	}
	if ctx.Err() != nil {
		return refuse(c, context.Cause(ctx))
	}
	cl, ready := h.attach(claimID{upstream, key})
	defer h.detach(cl)
	if !ready {
		log.Debug("upstream waits before its next start")
		return refuse(c, errors.New("waiting before the next start"))
	}
	s := &stream{
		ctx: ctx, host: h, claim: cl, upstream: upstream, up: &up, c: c, log: log,
		stderr: stderrLog{log: log}, stderrEnd: make(chan struct{}), ended: make(chan struct{}),
	}
	p, err := h.startProcess(up.Command, &s.wg, s.stdinFailed)
	if err != nil {
		inARow := h.ended(cl, startFailed, 0)
		defer tellFailure(log.With("cause", causeStartFailed, "err", err), startFailed, inARow)
		return refuse(c, err)
	}
	s.p = p
	log.Debug("upstream started", "pid", p.cmd.Process.Pid)
	h.setCurrent(s)
	return s.serve()
}

// short returns enough of a key to tell clients apart in a log, and too little to
// be one.
func short(key string) string { return key[:min(len(key), 8)] }

// refuse ends a stream of which nothing was read.
func refuse(c jsonrpc.Conn, err error) error {
	end := &jsonrpc.ClosedError{Cause: causeStartFailed, Err: err}
	jsonrpc.CloseWith(c, end)
	return end
}

// Wait waits until every process and goroutine of the host is gone. No Attach
// may begin meanwhile.
func (h *Host) Wait() { h.wg.Wait() }

func (h *Host) logger() *slog.Logger {
	if h.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return h.Log
}

func (h *Host) setCurrent(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.claim.current = s
}
