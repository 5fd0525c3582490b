package remote

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// TestHTTP2 runs many calls over one connection.
func TestHTTP2(t *testing.T) {
	f := newFake(t)
	h := httptest.NewUnstartedServer(f)
	h.EnableHTTP2 = true
	h.StartTLS()
	defer h.Close()
	f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		if r.ProtoMajor != 2 {
			t.Errorf("the protocol is %s", r.Proto)
		}
		stream(w, sseResult(m, `{}`))
	})
	s, _ := server(t, h.URL)
	s.TLS = h.Client().Transport.(*http.Transport).TLSClientConfig
	c := shaken(t, s)
	for i := range 50 {
		c.request(int64(i+1), "tools/call", "")
	}
	for range 50 {
		if m := c.recv(); m.Result == nil {
			t.Errorf("got %s", m.Append(nil))
		}
	}
	c.close()
}

// TestHTTP2WriteTimeout has a server that does not read one request. The
// connection stays up.
func TestHTTP2WriteTimeout(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	release := make(chan struct{})
	f.any = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.ContentLength < 1<<20 {
			return false
		}
		<-release
		return true
	}
	h := httptest.NewUnstartedServer(f)
	h.EnableHTTP2 = true
	h.StartTLS()
	defer h.Close()
	defer close(release)
	s, _ := server(t, h.URL)
	s.TLS = h.Client().Transport.(*http.Transport).TLSClientConfig
	s.WriteTimeout = time.Second // enough for the second request on a busy machine
	c := shaken(t, s)
	c.request(1, "tools/call", `{"x":"`+strings.Repeat("x", 15<<20)+`"}`)
	wantError(t, c.recv(), 1, jsonrpc.ReasonClosed, "write timeout", jsonrpc.InFlight)
	c.request(2, "ping", "")
	wantResult(t, c.recv(), 2, `{}`)
	c.close()
}

func TestClientCertificate(t *testing.T) {
	f := newFake(t)
	h := httptest.NewUnstartedServer(f)
	h.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	h.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	h.StartTLS()
	defer h.Close()
	roots := h.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	s, _ := server(t, h.URL)
	s.TLS = &tls.Config{RootCAs: roots, Certificates: h.TLS.Certificates}
	c := shaken(t, s)
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
	c.close()

	s, _ = server(t, h.URL)
	s.TLS = &tls.Config{RootCAs: roots}
	c = dial(t, s)
	c.request(0, "initialize", initParams)
	// In TLS 1.3 the server refuses a certificate when the client has begun to write,
	// and net/http may see that fail before it reads why.
	causes := []string{"TLS handshake failed", "connection reset", "connection lost"}
	if end := c.end(); !slices.Contains(causes, end.Cause.String()) || end.Delivered {
		t.Errorf("the end is %+v", end)
	}
}

// TestProxy sends requests through an HTTP proxy, as the environment may want.
func TestProxy(t *testing.T) {
	f := newFake(t)
	through := make(chan string, 100)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		through <- r.Method
		r.RequestURI = ""
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		io.Copy(w, resp.Body)
	}))
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer proxy.Close()
	s, _ := server(t, f.URL)
	s.prepare()
	transport := s.transport.client.Transport.(onceTransport).Transport
	if transport.Proxy == nil { // which reads the environment once for a process, and not for loopback
		t.Fatal("no proxies")
	}
	at, _ := url.Parse(proxy.URL)
	transport.Proxy = http.ProxyURL(at)
	c := shaken(t, s)
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
	c.close()
	if len(through) < 4 {
		t.Errorf("%d requests through the proxy", len(through))
	}
}
