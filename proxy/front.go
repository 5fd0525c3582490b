package proxy

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/auth"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
)

// A front is the front end for clients on HTTP, with /link besides, while hosts may
// dial us.
type front struct {
	*frontend.HTTP
	links       *links
	proofs      *proofs
	connectPage *ops.ConnectPage // nil: there is none

	once    sync.Once
	keys    gate        // of proofs
	leaving atomic.Bool // each response is the last on its connection
}

// newFront returns the front end to the sessions of a router. The error says that nobody
// may listen so.
func newFront(cfg *config.Config, router *session.Router, known func(who *identity.Identity, upstream string) bool, ls *links, o Options) (*front, error) {
	f := &front{links: ls, proofs: newProofs(cfg, o.Log)}
	f.HTTP = &frontend.HTTP{
		Serve:          router.Serve,
		ServePrincipal: router.ServePrincipal,
		Admit:          admitOf(router.Policies, o.anonymous.log),
		Known:          known,
		Guard: frontend.Guard{
			AllowedHosts: allowedHosts(cfg), AllowedOrigins: cfg.AllowedOrigins,
			Listen: cfg.Listen, Insecure: cfg.Insecure,
		},
		Limits:      limitsOf(cfg),
		Sessions:    cfg.Limits.Sessions,
		SessionIdle: cfg.SessionIdle,
		SessionGone: cfg.SessionGone,
		Traces:      router.Hooks.Follow != nil,
		Log:         o.Log,
	}
	if tell := router.Hooks.Refused; tell != nil {
		f.Guard.Refused = func(why *identity.Refusal) { tell(observe.Refusal{Reason: why.Reason()}) }
	}
	f.Guard.Clients = f.proofs.current
	return f, f.Guard.Check() // config has refused that; nobody may come past it
}

// mayListen reports whether the addresses at which we listen are safe with other proofs.
func (f *front) mayListen(next proofPlan) error {
	g := f.Guard
	g.Clients = auth.NewCurrent(next.clients)
	return g.Check()
}

// allowedHosts are those of the configuration, and the name by which clients reach us.
func allowedHosts(cfg *config.Config) []string {
	public, err := url.Parse(cfg.PublicURL)
	if err != nil || public.Hostname() == "" {
		return cfg.AllowedHosts
	}
	return append(slices.Clip(cfg.AllowedHosts), public.Hostname())
}

// start looks after what clients prove themselves with until ctx ends. Whoever ends it
// waits for f.keys.
func (f *front) start(ctx context.Context) {
	f.once.Do(func() { f.keys.run(func() { f.proofs.current.Run(ctx) }) })
}

// leave drains, and sends clients away behind what they are answered: to another proxy, if
// there are several.
func (f *front) leave() {
	f.leaving.Store(true)
	f.Drain()
}

// ServeHTTP implements [http.Handler].
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.leaving.Load() {
		w.Header().Set("Connection", "close")
	}
	switch {
	case f.connectPage.Has(r):
		f.connectPage.ServeHTTP(w, r)
		return
	case r.URL.Path != "/link" || len(f.links.accepting()) == 0:
		f.HTTP.ServeHTTP(w, r)
		return
	}
	if err := f.Guard.Admit(w, r); err != nil {
		f.links.refused(r, err)
		return
	}
	f.links.ServeHTTP(w, r)
}
