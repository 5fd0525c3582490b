package proxy

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// A Host offers the upstreams of a configuration to proxies elsewhere. NewHost makes one.
type Host struct {
	// Static after construction.
	half     *hosting
	others   *anonymousLog
	at       config.HostLink
	endpoint link.Endpoint
	linked   context.Context // of all links
	hangUp   context.CancelFunc

	operators *operators

	reloading sync.Mutex   // held by Reload
	listener  net.Listener // set by Listen; nil for a Host that dials
	in        gate         // Serve
	accepting atomic.Bool  // Serve accepts at the listener
}

// NewHost returns the host that cfg describes, with links to proxies as at says. Nothing runs
// before Serve, and nothing after Shutdown or Close. The error is [config.Problems].
func NewHost(cfg *config.Config, at config.HostLink, o Options) (*Host, error) {
	o.setDefaults()
	o.observe(cfg)
	warnOfUpstreams(cfg, o.Log)
	endpoint, err := endpointOf(at, o.Log)
	if err != nil {
		return nil, err
	}
	h := &Host{at: at, endpoint: endpoint, others: o.anonymous}
	if h.half, err = newHosting(cfg, o, false); err != nil {
		return nil, err
	}
	if at.Listen != "" { // unauthenticated peers can connect
		h.half.server.Log = o.anonymous.log
	}
	h.half.server.Heartbeat = heartbeatOf(at.Heartbeat)
	h.operators = newOperators(cfg, o, &ops.Server{Snapshot: h.Snapshot, Ready: h.ready, Calls: h.Calls, Explain: h.Explain})
	h.half.tap = h.operators.server.Taps.Conn
	h.linked, h.hangUp = context.WithCancel(context.Background())
	return h, nil
}

// endpointOf returns the end of the link, and reads its files.
func endpointOf(at config.HostLink, log *slog.Logger) (link.Endpoint, error) {
	e := link.Endpoint{URL: at.Listen + at.Dial, Token: secretfile.Token(at.TokenFile)}
	if _, err := secretfile.ReadToken(at.TokenFile); err != nil {
		return e, config.Problems{{Source: "--token-file", Text: err.Error()}}
	}
	var err error
	if at.Listen != "" {
		e.TLS, err = listenTLS(at.TLS, log)
	} else {
		e.TLS, err = clientTLS(at.TLS, at.Dial, log)
	}
	if err != nil {
		return e, config.Problems{{Source: "--tls-ca, --tls-cert, --tls-key", Text: err.Error()}}
	}
	return e, nil
}

// Listen listens for proxies, and at the configured addresses for operators. It returns the URL
// to dial, "" for a Host that dials. The program then calls Serve.
func (h *Host) Listen() (string, error) {
	if h.at.Listen == "" {
		return "", listenError("admin.listen", h.operators.open())
	}
	var err error
	if h.listener, err = h.endpoint.Listen(); err != nil {
		return "", err
	}
	if err := listenError("admin.listen", h.operators.open()); err != nil {
		h.listener.Close()
		return "", err
	}
	return dialURL(h.endpoint, h.listener), nil
}

// dialURL returns the URL for proxies that dial l, whose port the system may have chosen.
func dialURL(at link.Endpoint, l net.Listener) string {
	u, err := url.Parse(at.URL)
	if err != nil || l.Addr().Network() == "unix" {
		return at.String()
	}
	return (&url.URL{Scheme: u.Scheme, Host: l.Addr().String(), Path: u.Path}).String()
}

// Serve serves proxies until Shutdown or until its listener fails.
func (h *Host) Serve() error {
	if !h.in.enter() {
		return nil
	}
	defer h.in.leave()
	h.half.start()
	h.operators.start()
	if h.listener != nil {
		h.accepting.Store(true)
		defer h.accepting.Store(false)
		return h.half.server.Accept(h.linked, h.listener)
	}
	return h.half.server.Redial(h.linked, withHint(h.endpoint.Dial, h.dialHint))
}

// dialHint says what to do when the proxy refuses a link. At another path even the right token is not that of a host.
func (h *Host) dialHint(status int) string {
	u, err := url.Parse(h.at.Dial)
	switch {
	case err == nil && !strings.HasSuffix(u.Path, "/link"):
		return "hosts dial a proxy at the path /link"
	case status == http.StatusNotFound:
		return "a proxy has /link only with accept: true in one of its links"
	case status == http.StatusForbidden:
		return "the proxy may not allow the Host of this URL: see its allowedHosts"
	case status == http.StatusUnauthorized && h.at.TokenFile == "":
		return "the proxy asks for a token: give --token-file with the token in links.NAME.tokenFile of the proxy"
	case status == http.StatusUnauthorized:
		return "the proxy rejected our token: that in --token-file must be the one in links.NAME.tokenFile of the proxy"
	}
	return ""
}

// Reload applies the upstreams of cfg. After an error, which is [config.Problems], nothing has
// changed.
func (h *Host) Reload(cfg *config.Config) error {
	h.reloading.Lock()
	defer h.reloading.Unlock()
	warnOfUpstreams(cfg, h.half.log)
	next, err := h.half.plan(cfg)
	if err != nil {
		return err
	}
	closeCredentials(h.half.adopt(cfg, next)...)
	return nil
}

// ready returns the checks of readiness.
func (h *Host) ready() []ops.Check {
	all := []ops.Check{h.operators.drain()}
	if h.at.Listen != "" {
		all = append(all, listening(h.accepting.Load()))
	}
	return append(all, h.half.required.checks()...)
}

// Unready makes readiness fail from now on, and changes nothing else.
func (h *Host) Unready() { h.operators.draining.Store(true) }

// Shutdown ends the host within the same budget as [Proxy.Shutdown]: requests in flight finish,
// the links end, and the upstreams have the rest of the time to stop. Proxies that stop at the
// same time still get their last answers.
func (h *Host) Shutdown(ctx context.Context) error {
	h.Unready()
	h.half.required.stop()
	b := newBudget(ctx, h.half.longestStop(), 0, h.half.force)
	h.half.finish(b.drain)
	h.hangUp()
	if h.listener != nil {
		h.listener.Close()
	}
	h.in.wait()
	h.half.stop()
	h.operators.close()
	h.others.end()
	return b.over()
}

// Close is Shutdown without any time. It returns nil.
func (h *Host) Close() error { return closeNow(h.Shutdown) }
