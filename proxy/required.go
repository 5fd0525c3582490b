package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// required are the local upstreams that readiness waits for. It starts each once, as for a client. It watches a shared
// server and starts it again after its end; other servers start with their clients.
type required struct {
	// Static after construction.
	host   *upstream.Host
	forced context.Context // when it is done, trials end at once
	into   learnFunc       // the catalog; nil: what servers say is not kept

	mu    sync.Mutex // guards the fields below
	ctx   context.Context
	end   context.CancelFunc // of ctx; nil before start and stop
	wg    sync.WaitGroup     // a goroutine in keep for each
	order []*requiredUpstream
}

type requiredUpstream struct {
	config config.Upstream
	ctx    context.Context    // set when it is started
	cancel context.CancelFunc // of ctx
	why    string             // it is not ready; "" if it is; guarded by required.mu
}

// Pauses between trials that fail, and between looks at a shared server.
const (
	firstPause = time.Second
	mostPause  = 30 * time.Second
	lookPause  = time.Second
)

// adopt applies the upstreams of a configuration. Unchanged ones continue.
func (r *required) adopt(all []config.Upstream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := make(map[string]*requiredUpstream)
	for _, u := range r.order {
		before[u.config.Name] = u
	}
	r.order = nil
	for _, c := range all {
		if !c.Required {
			continue
		}
		u := before[c.Name]
		if u != nil && runsOn(u.config, c) {
			delete(before, c.Name)
		} else {
			u = &requiredUpstream{config: c, why: "has not started yet"}
			r.startLocked(u)
		}
		r.order = append(r.order, u)
	}
	for _, u := range before {
		if u.cancel != nil {
			u.cancel()
		}
	}
}

// start starts them all. The caller calls stop, and then wait.
func (r *required) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end != nil {
		return
	}
	r.ctx, r.end = context.WithCancel(context.Background())
	for _, u := range r.order {
		r.startLocked(u)
	}
}

func (r *required) startLocked(u *requiredUpstream) {
	if r.end == nil || r.ctx.Err() != nil {
		return
	}
	u.ctx, u.cancel = context.WithCancel(r.ctx)
	r.wg.Go(func() { r.keep(u) })
}

// stop ends the trials, and starts no more.
func (r *required) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.end == nil {
		r.ctx, r.end = context.WithCancel(context.Background())
	}
	r.end()
}

func (r *required) wait() { r.wg.Wait() }

// checks returns a check for each of them.
func (r *required) checks() (all []ops.Check) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range r.order {
		all = append(all, ops.Check{Name: "upstream " + u.config.Name, Among: "upstreams", Why: u.why})
	}
	return all
}

func (r *required) set(u *requiredUpstream, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	u.why = why
}

// keep starts an upstream until that succeeds; a shared one for as long as it is required.
func (r *required) keep(u *requiredUpstream) {
	defer u.cancel()
	pause := firstPause
	for u.ctx.Err() == nil {
		why := r.try(u)
		r.set(u, why)
		switch {
		case why != "":
			rest(u.ctx, pause)
			pause = min(2*pause, mostPause)
		case u.config.Shared:
			r.watch(u)
			pause = firstPause
		default:
			return
		}
	}
}

// watch returns when a shared server is gone.
func (r *required) watch(u *requiredUpstream) {
	for rest(u.ctx, lookPause); u.ctx.Err() == nil; rest(u.ctx, lookPause) {
		if why := r.missing(u.config); why != "" {
			r.set(u, why)
			return
		}
	}
}

// missing returns why no server of a shared upstream runs, "" if one does, or rests.
func (r *required) missing(u config.Upstream) string {
	why := "does not run"
	if u.IdleStop > 0 {
		why = ""
	}
	for _, s := range r.host.Status() {
		switch {
		case s.Upstream != u.Name:
		case s.State == upstream.StateStarting || s.State == upstream.StateRunning:
			return ""
		case s.Cause != "":
			why = s.Cause
		}
	}
	return why
}

// try starts an upstream as for a client that leaves when it has seen the lists. It returns in a few words why that
// failed, "" if the upstream answered initialize.
func (r *required) try(u *requiredUpstream) string {
	ctx, cancel := context.WithTimeout(u.ctx, u.config.StartTimeout)
	defer cancel()
	var stream *attached
	client, _, err := r.into.start(u.ctx, u.config.Name, func() (client *Client, err error) {
		stream, client, err = r.greet(ctx, u.config.Name)
		return client, err
	})
	if client != nil {
		client.Close()
		<-stream.ended
	}
	switch {
	case err == nil:
		return ""
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return jsonrpc.CauseStartTimeout.String()
	}
	if _, refused := errors.AsType[*AnswerError](err); refused {
		err = &jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused}
	}
	end := jsonrpc.EndOf(err, jsonrpc.CauseStartFailed)
	if r.host.ClientsOperate { // end.Words may have a line of stderr, and probes are open to everybody
		return end.Cause.String()
	}
	return end.Words()
}

// greet attaches a stream and initializes. After a failure the stream has ended.
func (r *required) greet(ctx context.Context, name string) (*attached, *Client, error) {
	near, far := jsonrpc.Pipe()
	stream := &attached{PipeConn: near, ended: make(chan struct{})}
	go r.host.Attach(r.forced, name, requiredKey, mcp.Legacy, far, stream.over)
	client, err := newClient(ctx, stream)
	if err == nil {
		return stream, client, nil
	}
	<-stream.ended
	if _, refused := errors.AsType[*AnswerError](err); !refused {
		err = stream.err // has the cause
	}
	return nil, nil, err
}

// requiredKey is the session key of the trials, different from those of clients.
var requiredKey = mcp.ConnectionKey("required", "")

// A learnFunc is [session.Router.LearnFrom].
type learnFunc func(ctx context.Context, upstream string, start func() (json.RawMessage, lists.AskFunc, error)) (*lists.Entry, error)

// start starts an upstream for a client that only looks, and keeps what it says; nil keeps nothing. If somebody else
// is doing that already, start waits, and returns what that one found. The caller closes the client.
func (keep learnFunc) start(ctx context.Context, upstream string, start func() (*Client, error)) (client *Client, other *lists.Entry, err error) {
	if keep == nil {
		client, err = start()
		return client, nil, err
	}
	started, failed := false, error(nil)
	other, err = keep(ctx, upstream, func() (json.RawMessage, lists.AskFunc, error) {
		started = true
		if client, failed = start(); failed != nil {
			return nil, nil, failed
		}
		return client.Hello, client.ask, nil
	})
	if started {
		return client, nil, failed // and not the failure of a list
	}
	if refused, ok := errors.AsType[*lists.AnswerError](err); ok {
		err = answerError(refused.Wire)
	}
	return nil, other, err
}
