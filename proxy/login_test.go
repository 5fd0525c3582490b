package proxy

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// TestIssuerClient asks an authorization server that speaks HTTP/2, too.
func TestIssuerClient(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	// The default transport puts HTTP/2 into its own TLS configuration when it is first used.
	http.DefaultTransport.(*http.Transport).Clone()
	client, err := issuerClient(config.TLS{CA: file})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); string(text) != "HTTP/1.1" || err != nil {
		t.Errorf("%s, %v", text, err)
	}
}
