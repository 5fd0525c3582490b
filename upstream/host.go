package upstream

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream/shared"
)

// sharedKey is the key of a server that many streams share.
const sharedKey = "shared"

// A Host runs upstreams for the streams that attach to them. Its exported fields must not
// change once it is used, except through Replace.
type Host struct {
	Upstreams map[string]Upstream // by name
	Log       *slog.Logger        // nil discards
	Limits    jsonrpc.Limits      // of one message from an upstream

	// Bridge serves streams of the era that an upstream does not speak. Nil
	// refuses them.
	Bridge Bridge

	// ClientsOperate is whether all clients are operators of the Host: then the error
	// about a Command that did not start has its last line on stderr.
	ClientsOperate bool

	Hooks observe.Hooks // those of upstreams, requests and events are called

	once     sync.Once      // init
	wg       sync.WaitGroup // streams, probes of eras, spares, and log lines of failures
	stopping context.Context
	stop     context.CancelFunc // cancels stopping
	servers  shared.Servers     // servers that many streams share
	restarts restarts
	spares   spares
	failures failureLog

	mu      sync.Mutex // guards the fields below and Upstreams; held while begin adds to wg
	eras    map[string]*eraFinder
	streams map[*stream]struct{} // with a server
}

// init initializes the unexported fields.
func (h *Host) init() {
	h.stopping, h.stop = context.WithCancel(context.Background())
	h.servers.Log, h.servers.MaxMessage, h.servers.Ambiguous = h.Log, h.Limits.MaxMessage(), h.unattributed
	if h.Hooks.Happened != nil {
		h.servers.Slow = h.slow
	}
	h.restarts.hooks = &h.Hooks
	h.spares.log, h.spares.limits, h.spares.wg, h.spares.pools = h.logger(), h.Limits, &h.wg, make(map[string]*sparePool)
	h.spares.forced, h.spares.force = context.WithCancel(context.Background())
	h.failures = failureLog{log: h.logger(), wg: &h.wg, hooks: &h.Hooks, losses: make(map[string]*sessionLosses), notAsked: make(map[string]askFailure)}
	h.eras, h.streams = make(map[string]*eraFinder), make(map[*stream]struct{})
}

// Known reports whether there is an upstream of that name.
func (h *Host) Known(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.Upstreams[name]
	return ok
}

// Replace sets Upstreams; the map must not change any more. Streams on upstreams named in
// changed, which were removed or replaced, end with the cause "upstream changed". Other
// streams go on. Replace does not wait for the ends.
func (h *Host) Replace(upstreams map[string]Upstream, changed []string) {
	h.once.Do(h.init)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Upstreams = upstreams
	for s := range h.streams {
		if slices.Contains(changed, s.name) && s.id.key != sharedKey {
			h.wg.Go(func() { s.end(jsonrpc.CauseChanged, nil) })
		}
	}
	h.servers.End(changed, jsonrpc.CauseChanged)
	h.restarts.reset(changed)
	h.spares.follow(upstreams)
	h.failures.forget(changed)
	for _, name := range changed {
		delete(h.eras, name)
	}
}

// EndIdle ends the servers of the modern era that have no streams. Without it they end a
// while later.
func (h *Host) EndIdle() {
	h.once.Do(h.init)
	h.servers.EndIdle()
}

// Status returns the servers that are in use or remembered, by upstream, key and era.
func (h *Host) Status() []Status {
	h.once.Do(h.init)
	all := h.restarts.status()
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, st := range all {
		if f := h.eras[st.Upstream]; f != nil {
			all[i].Speaks = f.known()
		}
		if st.Key == sharedKey {
			all[i].Unattributed = h.servers.Unattributed(st.Upstream, st.Era)
		}
	}
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Upstream, b.Upstream), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Era, b.Era))
	})
	return all
}

// HasRun reports whether a server of an upstream has ever answered.
func (h *Host) HasRun(upstream string) bool {
	h.restarts.mu.Lock()
	defer h.restarts.mu.Unlock()
	return h.restarts.upstreams[upstream].answered > 0
}

// Stop ends the shared servers, which outlive their streams, and the spares, by force when ctx is done. It
// returns when every process and goroutine of the host is gone. Other streams are closed by
// their owners, and Stop waits for that. Attach and Open fail from now on.
func (h *Host) Stop(ctx context.Context) {
	h.once.Do(h.init)
	h.mu.Lock()
	h.stop()
	h.spares.stop()
	h.mu.Unlock()
	defer context.AfterFunc(ctx, h.spares.force)()
	h.failures.flush()
	h.servers.Stop(ctx)
	h.wg.Wait()
}

func (h *Host) logger() *slog.Logger { return cmp.Or(h.Log, slog.New(slog.DiscardHandler)) }
