package proxy_test

import (
	"net/http"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// A page of another site reaches nothing, even with requests for which browsers send no
// Origin: images, links, forms. Clients that are no browsers send no such header, and neither
// do old browsers.
func TestCrossSite(t *testing.T) {
	h := newHouse(t, func(cfg *config.Config) {
		cfg.Auth = config.Auth{}
		cfg.AllowedOrigins = []string{"https://app.example"}
		cfg.Links = []config.Link{{Name: "far", Key: "links.far", Accept: true, TokenFile: secretFile(t, "token-of-far")}}
	})
	h.b.token = ""
	for _, path := range []string{"/mcp", "/mcp/u", "/ws", "/ws/u", "/sse", "/message", "/link"} {
		for _, site := range []string{"cross-site", "same-site"} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				resp := h.b.open(method, path, hello, "Sec-Fetch-Site", site)
				resp.Body.Close()
				if resp.StatusCode != http.StatusForbidden {
					t.Errorf("%s %s, %s: %s", method, path, site, resp.Status)
				}
			}
		}
	}
	if n := len(h.proxy.Snapshot().Sessions); n != 0 {
		t.Fatal(n, "sessions are open")
	}
	for _, headers := range [][]string{
		{"Sec-Fetch-Site", "cross-site", "Origin", "https://app.example"}, {"Sec-Fetch-Site", "same-site", "Origin", "http://localhost:5173"},
		{"Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none"}, nil,
	} {
		resp := h.b.open(http.MethodGet, "/sse", "", headers...)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("/sse with %q: %s", headers, resp.Status)
		}
	}
}
