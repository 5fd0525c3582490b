package proxy

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/traces"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/proxy/stdio"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// A Proxy serves clients from the upstreams of a configuration. New makes one.
type Proxy struct {
	// Static after construction.
	log    *slog.Logger
	others *anonymousLog
	stdio  bool // as in Options
	router *session.Router
	front  *front
	web    *web        // listeners for clients on HTTP
	host   *hosting    // the servers that run here
	local  *link.Local // to host
	links  *links      // to hosts elsewhere

	replicas *replicas // other proxies behind the same address; nil for none

	operators *operators
	traces    *traces.Traces // nil for none

	linked context.Context // of all links
	hangUp context.CancelFunc
	once   sync.Once // start; Shutdown uses it up

	serving context.Context // of clients on stdio and in this program
	cut     context.CancelFunc
	inside  gate // sessions of these clients

	reloading sync.Mutex                    // held by Reload
	config    atomic.Pointer[config.Config] // the current one
}

// New returns the proxy that cfg describes. Nothing runs before the first call of
// Handler, Serve, ServeStdio or Client, and nothing after Shutdown or Close. If cfg is wrong
// the error is [config.Problems].
func New(cfg *config.Config, o Options) (*Proxy, error) {
	o.setDefaults()
	o.observe(cfg)
	recorded, err := newTraces(cfg, &o)
	if err != nil {
		return nil, err
	}
	warnOfUpstreams(cfg, o.Log)
	if err := checkServing(cfg); err != nil && !o.Stdio {
		return nil, err
	}
	p := &Proxy{log: o.Log, others: o.anonymous, stdio: o.Stdio, traces: recorded}
	p.config.Store(cfg)
	p.router = newRouter(cfg, o, p.dial)
	p.router.Catalog.Log, p.router.Catalog.Store = o.Log, openStore(cfg, o)
	if p.router.Policies, err = policiesOf(cfg); err != nil {
		return nil, err
	}
	hosted := o
	hosted.Hooks.CallBegan, hosted.Hooks.CallEnded = nil, nil // sessions call these
	if p.host, err = newHosting(cfg, hosted, true); err != nil {
		return nil, err
	}
	p.router.Starting, p.host.required.into = p.host.isStarting, p.router.LearnFrom
	p.host.listed = p.router.Catalog.Mirrors
	p.host.prover.returned = func(upstream string) { p.router.Returned(upstream) }
	p.linked, p.hangUp = context.WithCancel(context.Background())
	p.local = &link.Local{Handle: p.host.attach, Known: p.host.host.Known, Log: o.Log, Linked: p.linked, Forced: p.host.forced}
	p.local.SetStreams(p.host.streams(len(cfg.Upstreams)))
	if p.links, err = newLinks(cfg, p.router, o); err != nil {
		return nil, err
	}
	if o.Stdio && len(p.links.accepting()) > 0 {
		return nil, config.Problems{{
			Source: cfg.File, Key: "links", Text: "accept needs mcp-proxy serve: nothing listens here for a host that dials",
		}}
	}
	p.router.Update(p.links.setLocked()) // nothing runs yet
	if p.front, err = newFront(cfg, p.router, p.known, p.links, o); err != nil {
		return nil, err
	}
	p.front.Names = p.names
	if !o.Stdio {
		if p.replicas, err = newReplicas(cfg, p.front, o); err != nil {
			return nil, err
		}
	}
	if p.replicas != nil {
		p.front.Replicas, p.links.replicas = p.replicas, p.replicas.reachable
	}
	if p.web, err = newWeb(cfg, p.front, o); err != nil && !o.Stdio {
		return nil, err
	}
	p.web.opened = o.Listeners
	o.history.Behind = p.links.leadsTo
	p.operators = newOperators(cfg, o, &ops.Server{Snapshot: p.Snapshot, Ready: p.ready, Calls: p.Calls, Explain: p.Explain})
	p.router.Tap = p.operators.server.Taps.Conn
	p.front.connectPage = newConnectPage(cfg, p)
	p.serving, p.cut = context.WithCancel(context.Background())
	return p, nil
}

func newRouter(cfg *config.Config, o Options, dial session.DialFunc) *session.Router {
	r := &session.Router{
		Dial:    dial,
		Naming:  catalog.Naming(strings.TrimPrefix(cfg.Prefix, "auto")),
		Version: Version(),
		ID:      rand.Text(),
		Limits: session.Limits{
			InFlight:    cfg.Limits.InFlight,
			MaxMessage:  int(cfg.Limits.Message),
			ListTimeout: cfg.ListTimeout,
			Drain:       atLeast(cfg.Drain),
			MaxStart:    o.Patience,
		},
		CatalogAge: cfg.CatalogAge,
		Log:        o.Log, AnonymousLog: o.anonymous.log,
		Hooks: o.Hooks,
	}
	r.Several.Store(several(cfg))
	return r
}

// several reports whether clients may be different principals, or different users by their headers.
func several(cfg *config.Config) bool {
	onUnix := func(address string) bool { return strings.HasPrefix(address, "unix:") } // each user is a principal
	byHeader := func(u config.Upstream) bool {
		return slices.ContainsFunc(forwardOf(u), func(f session.Forward) bool { return f.Identity })
	}
	return slices.ContainsFunc(cfg.Upstreams, byHeader) || len(cfg.Auth.Tokens) > 0 || len(cfg.Auth.JWT) > 0 || cfg.TLS.ClientCA != "" || slices.ContainsFunc(cfg.Listen, onUnix)
}

// atLeast replaces a configured 0s, which the parts would take for their default.
func atLeast(d time.Duration) time.Duration { return max(d, time.Nanosecond) }

// start starts the links and everything that runs beside them, once. Shutdown ends them.
func (p *Proxy) start() {
	p.once.Do(func() {
		if p.traces != nil {
			p.traces.Start()
		}
		p.links.start(p.linked)
		p.host.start()
		p.operators.start()
	})
}

// dial opens a stream to an upstream, here or elsewhere.
func (p *Proxy) dial(ctx context.Context, name, key string, era mcp.Era) (jsonrpc.Conn, error) {
	hello := link.Hello{Upstream: name, Key: key, Era: string(era)}
	p.router.Changing.RLock()
	f := p.links.owner(name)
	if f == nil {
		defer p.router.Changing.RUnlock()
		return p.local.Open(ctx, hello)
	}
	p.router.Changing.RUnlock() // the stream may wait
	return p.links.open(ctx, f, hello)
}

// known reports whether there is an upstream of that name, here or elsewhere, of which a
// client may use anything. Nil is for some client.
func (p *Proxy) known(who *identity.Identity, name string) bool {
	return (p.host.host.Known(name) || p.links.owner(name) != nil) && (who == nil || p.router.Policies.For(who).Sees(name))
}

// names returns the upstreams, here and elsewhere, of which a client may use anything.
func (p *Proxy) names(who *identity.Identity) (all []string) {
	for _, o := range p.links.offered() {
		if p.known(who, o.Name) {
			all = append(all, o.Name)
		}
	}
	return all
}

// Handler returns the handler of all paths: /mcp, /ws, /sse with /message, /mcp/NAME and
// /ws/NAME for one upstream, /healthz, /link for hosts that dial, and a page for browsers at /.
// A program calls Shutdown before it ends the server of the handler. The TLS of that server
// decides which clients have certificates. Unlike Serve, the handler does not know the users
// of Unix sockets.
func (p *Proxy) Handler() http.Handler {
	p.start()
	p.front.start(p.linked)
	return p.front
}

// A ListenError says that an address of a key other than listen cannot be used.
type ListenError struct {
	Key string // admin.listen or cluster.listen
	Err error
}

func (e *ListenError) Error() string { return e.Err.Error() }

func (e *ListenError) Unwrap() error { return e.Err }

// listenError returns a [ListenError], or nil for no error.
func listenError(key string, err error) error {
	if err == nil {
		return nil
	}
	return &ListenError{key, err}
}

// Listen listens at all addresses of the configuration, including those for operators, or at
// none. It returns the addresses for clients, whose ports the system may have chosen. The
// program then calls Serve.
func (p *Proxy) Listen() ([]net.Addr, error) {
	if err := p.web.listen(); err != nil {
		return nil, err
	}
	if err := listenError("admin.listen", p.operators.open()); err != nil {
		p.web.closeListeners()
		return nil, err
	}
	if err := listenError("cluster.listen", p.replicas.listen()); err != nil {
		p.operators.close()
		p.web.closeListeners()
		return nil, err
	}
	var at []net.Addr
	for _, l := range p.web.listeners {
		at = append(at, l.Addr())
	}
	return at, nil
}

// Serve serves [Proxy.Handler] where Listen listens. It returns nil after Shutdown, or the first
// error of a listener; the other listeners continue. In the background it asks upstreams for the
// lists that no earlier run has kept, one at a time.
func (p *Proxy) Serve() error {
	p.start()
	p.front.start(p.linked)
	p.inside.run(func() { p.router.LearnUnknown(p.serving) })
	p.replicas.start()
	return p.web.serve()
}

// ServeStdio serves one client on in and out, which it closes, until the client disconnects
// or ctx ends. It returns the cause of the end. From then on a write to a broken stdout or
// stderr does not kill the program.
//
// With [Options.Stdio] the end of ctx also ends the upstreams by force, within a second.
func (p *Proxy) ServeStdio(ctx context.Context, in, out *os.File) error {
	p.start()
	client := stdio.New(in, out, p.front.Limits)
	if !p.inside.enter() {
		client.Close()
		return jsonrpc.ErrClosed
	}
	defer p.inside.leave()
	if p.stdio { // give the session time to hang up before force
		context.AfterFunc(ctx, func() { time.AfterFunc(hangUpTime, p.host.force) })
		defer func() { context.AfterFunc(ctx, p.host.force) }()
	}
	session, cut := context.WithCancel(ctx)
	defer cut()
	defer context.AfterFunc(p.serving, cut)()
	return p.router.Serve(session, identity.TheOperator, "", client)
}

// Reload applies the upstreams, links, authentication and policies of cfg, and notifies
// clients. Everything else stays as it was at the start. After an error, which is
// [config.Problems], nothing has changed.
func (p *Proxy) Reload(cfg *config.Config) error {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	warnOfUpstreams(cfg, p.log)
	links, err := p.links.plan(cfg)
	if err != nil {
		return err
	}
	proofs, err := p.planProofs(cfg)
	if err != nil {
		return err
	}
	if _, err := policiesOf(cfg); err != nil {
		return err
	}
	servers, err := p.host.plan(cfg)
	if err != nil {
		return err
	}
	ended := p.adopt(cfg, links, proofs, servers)
	p.web.tls.adopt(cfg) // it may wait for files; who comes without a certificate in between needs a token
	p.router.Returned(servers.changed...)
	closeCredentials(ended...)
	return nil
}

// adopt applies what was planned at one moment: requests that began before that reach nothing that is new, and later
// ones nothing that has changed. It returns what [hosting.adopt] does.
func (p *Proxy) adopt(cfg *config.Config, links []*remoteLink, proofs *proofs, servers *serverPlan) []*remote.Server {
	p.router.Changing.Lock()
	defer p.router.Changing.Unlock()
	p.local.SetStreams(p.host.streams(len(cfg.Upstreams) + len(servers.changed))) // the changed ones are still ending
	p.admit(cfg, proofs)
	p.host.bridge.Changed(servers.changed) // before sessions hang up as if their clients had left: suspended calls wait for these
	p.links.adopt(cfg, links)
	return p.host.adopt(cfg, servers) // last: what was allowed before has been hung up
}

// planProofs returns what will authenticate clients. The error is [config.Problems].
func (p *Proxy) planProofs(cfg *config.Config) (*proofs, error) {
	if err := checkClients(cfg); err != nil && !p.stdio {
		return nil, err
	}
	next := p.front.proofs.plan(cfg)
	if err := p.front.mayListen(next); err != nil {
		return nil, config.Problems{{Source: cfg.File, Key: "auth", Text: err.Error()}}
	}
	return next, nil
}

// admit applies the authentication and policies of cfg.
func (p *Proxy) admit(cfg *config.Config, next *proofs) {
	now := *p.config.Load()
	if several(cfg) {
		p.router.Several.Store(true)
	}
	p.front.adopt(next)
	if !reflect.DeepEqual(now.Policies, cfg.Policies) {
		_ = p.router.ReplacePolicies(rulesOf(cfg)) // policiesOf has refused mistakes
	}
	now.Upstreams, now.Links, now.TokenFile, now.Auth, now.Policies = cfg.Upstreams, cfg.Links, cfg.TokenFile, cfg.Auth, cfg.Policies
	p.config.Store(&now)
	p.replicas.adopt(&now)
}

// ready returns the checks of readiness.
func (p *Proxy) ready() []ops.Check {
	all := []ops.Check{p.operators.drain()}
	if p.web != nil && len(p.web.listeners) > 0 {
		all = append(all, listening(p.web.allUp()))
	}
	all = append(all, p.replicas.checks()...)
	all = append(all, p.host.required.checks()...)
	return append(all, p.links.required()...)
}

// Unready makes readiness fail from now on and changes nothing else, so that a load balancer
// notices the drain while the proxy still serves.
func (p *Proxy) Unready() {
	p.operators.draining.Store(true)
	p.replicas.drain()
}

// Shutdown ends the proxy, within the deadline of ctx if it has one. It refuses new requests
// and sessions, and lets those in flight finish. The rest of the time belongs to the
// upstreams, which stop by themselves. Shortly before the deadline, and soon after a
// cancellation of ctx, everything else ends by force. The error is [ErrForced] if ctx was
// cancelled before the end, else nil.
func (p *Proxy) Shutdown(ctx context.Context) error {
	p.once.Do(func() {}) // nothing starts from now on
	p.Unready()
	p.host.required.stop()
	b := newBudget(ctx, p.host.longestStop(), hangUpTime, p.host.force)
	p.front.leave()
	moved := p.front.Move(b.drain)
	p.router.Shutdown(b.drain)
	p.replicas.goodbye(moved())
	p.front.Linger(b.drain)
	p.links.awaitHangUp(b.drain)
	p.cut() // fail requests that missed the deadline
	p.front.Close()
	p.links.part()
	p.replicas.leave()
	p.inside.wait()
	p.hangUp()
	p.links.in.wait()
	p.front.keys.wait()
	p.local.Wait()
	p.host.stop()
	p.web.linger(ctx)
	p.web.close()
	p.operators.close()
	flush(ctx, p.traces)
	p.others.end()
	return b.over()
}

// Close is Shutdown without any time. It returns nil.
func (p *Proxy) Close() error { return closeNow(p.Shutdown) }
