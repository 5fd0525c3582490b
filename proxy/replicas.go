package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/cluster"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
)

// replicas are this proxy and the others behind its address. Nil is a proxy that is alone.
type replicas struct {
	*cluster.Cluster
	required bool // readiness waits for another one
	log      *slog.Logger
	passed   func(observe.Forwarded, observe.End) // nil for nobody
	happened func(observe.Event)                  // nil for nobody
	listened bool                                 // the ports are open; set by listen

	ctx     context.Context // of the membership
	cancel  context.CancelFunc
	run     func() // until ctx ends; once
	running gate
}

// newReplicas returns the membership that cfg describes, nil for none. front has the sessions, and serves
// what other replicas pass on. The error is a [config.Problems].
func newReplicas(cfg *config.Config, front *front, o Options) (*replicas, error) {
	if cfg.Cluster.KeyFile == "" {
		return nil, nil
	}
	keys := newChecker(cfg)
	if keys.replicas(cfg.Cluster); len(keys.problems) > 0 {
		return nil, keys.problems
	}
	c, err := cluster.New(cluster.Options{
		KeyFile: cfg.Cluster.KeyFile, Join: cfg.Cluster.Join, Listen: cfg.Cluster.Listen, Advertise: cfg.Cluster.Advertise,
		Version: Version(), Digest: digestOf(cfg), Handler: front.links.shared(front), ConnContext: frontend.FromReplica,
		Happened: func(c cluster.Change) {
			if o.Hooks.Happened != nil {
				o.Hooks.Happened(replicaEvent(c))
			}
		},
		Log: o.Log,
	})
	if err != nil {
		return nil, config.Problems{{Source: cfg.File, Key: "cluster", Text: err.Error()}}
	}
	r := &replicas{Cluster: c, required: cfg.Cluster.Required, log: o.Log, passed: o.Hooks.Forwarded, happened: o.Hooks.Happened}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.run = sync.OnceFunc(func() {
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { front.Keep(r.ctx) })
		c.Run(r.ctx)
	})
	return r, nil
}

// digestOf returns a digest of what replicas should have in common: what clients see.
func digestOf(cfg *config.Config) string {
	text, _ := json.Marshal([]any{cfg.Upstreams, cfg.Links, cfg.Prefix, cfg.Policies, cfg.Auth, cfg.Limits})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// replicaEvent returns the event of what happened to another replica.
func replicaEvent(c cluster.Change) observe.Event {
	who := "replica " + c.Instance + " (" + c.Address + ")"
	if c.What == cluster.Joined || c.What == cluster.Left {
		e := observe.Event{EventLine: observe.EventLine{
			ID: c.Event, Time: c.At, Kind: observe.ReplicaJoined, Replica: c.Instance, What: who + " joined",
		}}
		if c.What == cluster.Left {
			e.Kind, e.What, e.Began = observe.ReplicaLeft, who+" left", c.Since
		}
		return e
	}
	e := observe.EventOf(observe.ReplicaDied, "", &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Event: c.Event, Err: c.Err})
	e.Time, e.Replica, e.What, e.Began = c.At, c.Instance, who+" died", c.Since
	if c.What == cluster.Lost {
		e.Kind, e.What, e.Error = observe.ReplicaLost, "the link to "+who+" was lost", jsonrpc.CauseOf(c.Err)
	}
	return e
}

// Owner implements [frontend.Replicas].
func (r *replicas) Owner(id string) (via http.RoundTripper, at frontend.Where) {
	via, where := r.Cluster.Owner(id)
	switch where {
	case cluster.Here:
		at = frontend.Here
	case cluster.There:
		at = frontend.There
	case cluster.Away:
		at = frontend.Away
	case cluster.Gone:
		at = frontend.Gone
	default:
		at = frontend.Nowhere
	}
	return via, at
}

// Others implements [frontend.Replicas].
func (r *replicas) Others() (all []frontend.Other) {
	for _, o := range r.Cluster.Others() {
		all = append(all, frontend.Other{Instance: o.Instance, Since: o.Since, Ready: o.State == cluster.Ready, Via: o.Via})
	}
	return all
}

// Passed implements [frontend.Replicas].
func (r *replicas) Passed(method string, took time.Duration, err error) {
	if r.passed == nil {
		return
	}
	switch method {
	case http.MethodGet, http.MethodPost, http.MethodDelete:
	default:
		method = observe.Other
	}
	end := observe.End{At: time.Now(), Took: took, Outcome: observe.OK}
	switch {
	case errors.Is(err, context.Canceled):
		end.Outcome = observe.Cancelled
	case err != nil:
		closed := jsonrpc.EndOf(err, jsonrpc.CauseLinkLost)
		end.Outcome, end.Cause, end.Event = observe.Closed, closed.Cause.Kind.String(), closed.Event
	}
	r.passed(observe.Forwarded{Method: method}, end)
}

// Became implements [frontend.Replicas].
func (r *replicas) Became(what frontend.Became, instance string, n int) {
	became := [...]struct {
		kind observe.EventKind
		what string
	}{
		frontend.Taken:   {observe.SessionsMoved, "moved here from"},
		frontend.Adopted: {observe.SessionsAdopted, "continued here after the death of"},
		frontend.Yielded: {observe.SessionsYielded, "ended here, since they had been continued by"},
		frontend.Missing: {observe.SessionsLost, "lost with"},
	}[what]
	e := observe.Event{Sessions: n, EventLine: observe.EventLine{
		ID: jsonrpc.NewEvent(), Time: time.Now(), Kind: became.kind, Replica: instance,
		What: fmt.Sprintf("%d sessions %s replica %s", n, became.what, instance),
	}}
	if n == 1 {
		e.What = fmt.Sprintf("1 session %s replica %s", became.what, instance)
	}
	r.log.Info("sessions and another replica", "event", e.ID, "what", e.What)
	if r.happened != nil {
		r.happened(e)
	}
}

// Serves implements [frontend.Replicas].
func (r *replicas) Serves(sessions int) { r.SetSessions(sessions) }

// listen opens the ports.
func (r *replicas) listen() error {
	if r == nil {
		return nil
	}
	err := r.Listen()
	r.listened = err == nil
	return err
}

// start makes this process a member until leave, and waits until it has looked for the others: their sessions would be
// unknown to it, and its own to them.
func (r *replicas) start() {
	if r != nil && r.listened {
		r.running.run(r.run)
		<-r.Introduced()
	}
}

// adopt tells the others that the configuration has changed.
func (r *replicas) adopt(cfg *config.Config) {
	if r != nil {
		r.SetDigest(digestOf(cfg))
	}
}

// drain tells the others that this process leaves soon.
func (r *replicas) drain() {
	if r != nil {
		r.Drain()
	}
}

// goodbye tells the others that no session is left here. That many were moved to them.
func (r *replicas) goodbye(moved int) {
	if r == nil {
		return
	}
	if moved > 0 {
		r.log.Info("sessions moved to other replicas", "sessions", moved)
	}
	if r.listened {
		r.Goodbye()
	}
}

// leave ends the membership, and waits for it. It closes the ports even if start was not called.
func (r *replicas) leave() {
	if r == nil {
		return
	}
	r.cancel()
	if r.listened {
		r.run()
	}
	r.running.wait()
}

// members returns all replicas, this one first.
func (r *replicas) members(moves observe.Moves) (all []observe.Replica) {
	if r == nil {
		return nil
	}
	members := r.Members()
	for _, m := range members {
		all = append(all, observe.Replica{
			Instance: m.Instance, Self: m.Self, Address: m.Address, State: string(m.State), Version: m.Version, Sessions: m.Sessions,
			Linked: m.Linked, Unreachable: m.Down, Differs: m.Digest != members[0].Digest,
		})
	}
	all[0].Moves = &moves
	return all
}

// checks returns what readiness waits for.
func (r *replicas) checks() []ops.Check {
	if r == nil || !r.required {
		return nil
	}
	c := ops.Check{Name: "cluster"}
	if len(r.Members()) < 2 {
		c.Why = "no other replica was found"
	}
	return []ops.Check{c}
}

// replicaFindings returns what is wrong or suspicious about what a configuration names for replicas.
func replicaFindings(ctx context.Context, of config.Cluster) (all []ops.Finding) {
	if of.KeyFile == "" {
		return nil
	}
	info, err := os.Stat(of.KeyFile) // an error is one of the problems of Check
	if err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o007 != 0 {
		all = append(all, ops.Finding{
			Level: ops.LevelWarning, Code: "key-mode", Do: "make it readable for the user or the group of the proxy alone (mode 600 or 640)",
			What: fmt.Sprintf("cluster.keyFile %s: every user of this machine may use it (mode %o), and whoever has the key is a replica", of.KeyFile, info.Mode().Perm()),
		})
	}
	for _, name := range of.Join {
		if err := cluster.CheckJoin(ctx, name); err != nil {
			all = append(all, ops.Finding{
				Level: ops.LevelWarning, Code: "join", Do: "compare it with the name of the headless Service, or of the machines; a replica that finds nobody serves alone",
				What: "cluster.join: " + err.Error(),
			})
		}
	}
	return all
}
