package proxy

import (
	"log/slog"
	"net/http"
	"net/url"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/auth"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
)

// A front is the front end for clients on HTTP, with /link besides, while hosts may
// dial us.
type front struct {
	*frontend.HTTP
	links *links
}

// newFront returns the front end to the sessions of a router. The error says that nobody
// may listen so.
func newFront(cfg *config.Config, router *session.Router, known func(upstream string) bool, ls *links, log *slog.Logger) (*front, error) {
	h := &frontend.HTTP{
		Serve:          router.Serve,
		ServePrincipal: router.ServePrincipal,
		Admit:          admitOf(router.Policies),
		Known:          known,
		Guard: frontend.Guard{
			Clients: newClients(cfg, log), AllowedHosts: allowedHosts(cfg), AllowedOrigins: cfg.AllowedOrigins,
			Listen: cfg.Listen, Insecure: cfg.Insecure,
		},
		Limits:      limitsOf(cfg),
		Sessions:    cfg.Limits.Sessions,
		SessionIdle: cfg.SessionIdle,
		SessionGone: cfg.SessionGone,
		Log:         log,
	}
	return &front{h, ls}, h.Guard.Check() // config has refused that; nobody may come past it
}

// allowedHosts are those of the configuration, and the name by which clients reach us.
func allowedHosts(cfg *config.Config) []string {
	public, err := url.Parse(cfg.PublicURL)
	if err != nil || public.Hostname() == "" {
		return cfg.AllowedHosts
	}
	return append(slices.Clip(cfg.AllowedHosts), public.Hostname())
}

// newClients returns who says who clients are; nil if they are asked for nothing.
func newClients(cfg *config.Config, log *slog.Logger) frontend.Identifier {
	var tokens []*auth.Token
	if cfg.TokenFile != "" {
		tokens = append(tokens, auth.NewToken("default", secretfile.Token(cfg.TokenFile), log))
	}
	for _, t := range cfg.Auth.Tokens {
		tokens = append(tokens, auth.NewToken(t.Name, secretfile.Token(t.TokenFile), log))
	}
	if tokens == nil {
		return nil
	}
	return &auth.Clients{Tokens: tokens}
}

// ServeHTTP implements [http.Handler].
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/link" || len(f.links.accepting()) == 0 {
		f.HTTP.ServeHTTP(w, r)
		return
	}
	if err := f.Guard.Admit(w, r); err != nil {
		f.links.refused(r, err)
		return
	}
	f.links.ServeHTTP(w, r)
}

// checkToken reports a token that clients are asked for and that cannot be read.
func checkToken(cfg *config.Config) error {
	if _, err := secretfile.ReadToken(cfg.TokenFile); err != nil {
		return config.Problems{{Source: cfg.File, Key: "tokenFile", Text: err.Error()}}
	}
	return nil
}
