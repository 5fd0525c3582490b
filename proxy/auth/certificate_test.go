package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// verified is a connection whose certificate was verified up to an authority.
func verified(leaf *x509.Certificate, authority string) *tls.ConnectionState {
	between := &x509.Certificate{Subject: pkix.Name{CommonName: "between"}}
	root := &x509.Certificate{Subject: pkix.Name{CommonName: authority}}
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf, between, root}}}
}

func TestCertificate(t *testing.T) {
	spiffe, _ := url.Parse("spiffe://example/ci")
	ends := time.Now().Add(time.Hour)
	tests := map[string]struct {
		leaf *x509.Certificate
		want string
	}{
		"common name":   {&x509.Certificate{Subject: pkix.Name{CommonName: "ci", Organization: []string{"x"}}, DNSNames: []string{"y"}, NotAfter: ends}, "ci"},
		"URI":           {&x509.Certificate{URIs: []*url.URL{spiffe}, DNSNames: []string{"y"}, NotAfter: ends}, "spiffe://example/ci"},
		"DNS":           {&x509.Certificate{DNSNames: []string{"ci.example", "y"}, NotAfter: ends}, "ci.example"},
		"mail":          {&x509.Certificate{EmailAddresses: []string{"ci@example"}, NotAfter: ends}, "ci@example"},
		"subject":       {&x509.Certificate{Subject: pkix.Name{Organization: []string{"x"}}, NotAfter: ends}, "O=x"},
		"no name":       {&x509.Certificate{}, ""},
		"control":       {&x509.Certificate{Subject: pkix.Name{CommonName: "a\nb"}}, ""},
		"expired since": {&x509.Certificate{Subject: pkix.Name{CommonName: "ci"}, NotAfter: time.Now().Add(-time.Second)}, ""},
		"not verified":  {nil, ""},
	}
	c := &Clients{Certificates: true}
	for name, tt := range tests {
		r := request("/mcp", "ignored: nobody asked for a token")
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "ci"}}}}
		if tt.leaf != nil {
			r.TLS = verified(tt.leaf, "root")
		}
		who, why := c.Identify(r)
		switch {
		case tt.want == "" && (why == nil || why.Status != http.StatusForbidden):
			t.Errorf("%s: %v, %v", name, who, why)
		case tt.want != "" && (why != nil || who.Principal != identity.Principal{Kind: identity.Certificate, Issuer: "root", Name: tt.want} || who.Expires != ends):
			t.Errorf("%s: %v, %v", name, who, why)
		}
	}
}

// TestPrecedence: a bearer token comes before a certificate. A wrong proof is refused whatever else a request has.
func TestPrecedence(t *testing.T) {
	a := newAuthority(t, issuer)
	tokens, issuers := []*Token{fixed("default", "secret")}, []*jwt.Issuer{a.issuer()}
	run(t, &Clients{Issuers: issuers})
	cert := verified(&x509.Certificate{Subject: pkix.Name{CommonName: "ci"}, NotAfter: time.Now().Add(time.Hour)}, "root")
	tests := []struct {
		name  string
		c     *Clients
		token string
		tls   *tls.ConnectionState
		want  string
	}{
		{"token", &Clients{Tokens: tokens, Issuers: issuers, Certificates: true}, "secret", cert, "token:default"},
		{"JWT", &Clients{Tokens: tokens, Issuers: issuers, Certificates: true}, a.token(nil), cert, "jwt:alice@" + issuer},
		{"wrong token", &Clients{Tokens: tokens, Certificates: true}, "wrong", cert, "401"},
		{"wrong JWT", &Clients{Issuers: issuers, Certificates: true}, a.token(object{"exp": 1}), cert, "401"},
		{"certificate", &Clients{Tokens: tokens, Issuers: issuers, Certificates: true}, "", cert, "certificate:ci@root"},
		{"certificate that nobody asked for", &Clients{Tokens: tokens}, "", cert, "401"},
		{"neither", &Clients{Tokens: tokens, Issuers: issuers, Certificates: true}, "", &tls.ConnectionState{}, "401"},
		{"no TLS", &Clients{Certificates: true}, "", nil, "403"},
		{"nothing configured", &Clients{}, "", nil, "403"},
	}
	for _, tt := range tests {
		r := request("/mcp", tt.token)
		r.TLS = tt.tls
		who, why := tt.c.Identify(r)
		got := ""
		if why != nil {
			got = http.StatusText(why.Status)
			got = map[string]string{"Unauthorized": "401", "Forbidden": "403"}[got]
		} else {
			got = who.String()
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestUnixUser: on a Unix socket there are no certificates, and a token is needed if any is configured.
func TestUnixUser(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 2)
	s := &http.Server{ConnContext: identity.WithSocket, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, c := range []*Clients{{Certificates: true}, {Certificates: true, Tokens: []*Token{fixed("default", "secret")}}} {
			if who, why := c.Identify(r); why != nil {
				said <- why.Text
			} else {
				said <- who.String()
			}
		}
	})}
	go s.Serve(l)
	defer s.Close()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.Addr().String())
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://localhost/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if who, _ := identity.UserOf(t.Context()); who != nil {
		t.Errorf("%v on no socket", who)
	}
	want := "user:" + identity.UserName(strconv.Itoa(os.Getuid()))
	if runtime.GOOS != "linux" { // not supported there
		want = "a client certificate is required"
	}
	if got := <-said; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := <-said; got != errMissing.Text {
		t.Errorf("%q", got)
	}
}
