package proxy

import (
	"log/slog"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
	"github.com/mcp-proxy/mcp-proxy/upstream/replay"
)

// A remoteServer is a remote server, and what proves to it who we are.
type remoteServer struct {
	*remote.Server
	credentials credentials // nil: none
}

// Close closes what is kept for sessions. All must have been closed.
func (r *remoteServer) Close() {
	r.Server.Close()
	r.closeCredentials()
}

// closeCredentials ends what the credentials do by themselves: no session begins any more.
func (r *remoteServer) closeCredentials() {
	if r != nil && r.credentials != nil {
		r.credentials.Close()
	}
}

// upstreamOf returns how the host reaches an upstream, and the remote server if it
// is one.
func upstreamOf(u config.Upstream, limits jsonrpc.Limits, p *prover) (upstream.Upstream, *remoteServer, error) {
	up := upstream.Upstream{Era: mcp.Era(u.Era), StartTimeout: u.StartTimeout, Shared: u.Shared, Roots: u.Roots}
	switch {
	case u.Command != "":
		up.Command = commandOf(u)
		return up, nil, nil
	case u.Replay != "":
		r := replayOf(u, limits)
		up.Dial, up.DialModern, up.Probe, up.Relates = r.Dial, r.DialModern, r.Probe, true
		return up, nil, nil
	}
	r := &remoteServer{Server: remoteOf(u, limits, p.log)}
	var err error
	if r.TLS, err = clientTLS(u.TLS); err != nil {
		return up, nil, err
	}
	if r.credentials, err = p.upstream(u); err != nil {
		return up, nil, err
	}
	if r.credentials != nil {
		r.Credentials = r.credentials
	}
	up.Dial, up.DialModern, up.Probe = r.Dial, r.DialModern, r.Probe
	up.Relates = strings.HasPrefix(u.URL, "http")
	return up, r, nil
}

func remoteOf(u config.Upstream, limits jsonrpc.Limits, log *slog.Logger) *remote.Server {
	return &remote.Server{
		Name: u.Name, URL: u.URL, SSE: u.Type == "sse", Headers: u.Headers, HeadersFrom: u.HeadersFrom,
		MaxConcurrent: u.MaxConcurrent, WriteTimeout: u.WriteTimeout, StopGrace: u.StopGrace, Limits: limits, Log: log,
	}
}

func replayOf(u config.Upstream, limits jsonrpc.Limits) *replay.Server {
	return &replay.Server{Name: u.Name, File: u.Replay, Limits: limits}
}

func commandOf(u config.Upstream) *process.Command {
	c := &process.Command{
		Path: u.Command, Args: u.Args, Dir: u.Cwd, InheritEnv: u.InheritEnv,
		WriteTimeout: u.WriteTimeout, StopGrace: u.StopGrace,
	}
	for name, value := range u.Env {
		c.Env = append(c.Env, name+"="+value)
	}
	return c
}

// serverLimitsOf are those of messages from servers, whose ids may be as long as names.
func serverLimitsOf(cfg *config.Config) jsonrpc.Limits {
	limits := limitsOf(cfg)
	limits.ID = mcp.MaxRouted
	return limits
}

func limitsOf(cfg *config.Config) jsonrpc.Limits {
	return jsonrpc.Limits{Message: int(cfg.Limits.Message), Depth: cfg.Limits.Depth}
}
