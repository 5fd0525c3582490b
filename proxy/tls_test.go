package proxy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// An authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{}
	a.cert, a.key = a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) sign(t *testing.T, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// pair returns a certificate for 127.0.0.1, and for a client, and its key.
func (a *authority) pair(t *testing.T) (cert, key []byte) {
	t.Helper()
	c, k := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "ci"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pemOf("CERTIFICATE", c.Raw), pemOf("PRIVATE KEY", der)
}

// client returns the TLS of a client that trusts a, with a certificate of by; nil: with none.
func (a *authority) client(t *testing.T, by *authority) *tls.Config {
	c := &tls.Config{RootCAs: x509.NewCertPool()}
	c.RootCAs.AddCert(a.cert)
	if by != nil {
		own, err := tls.X509KeyPair(by.pair(t))
		if err != nil {
			t.Fatal(err)
		}
		// Certificates would be left out if the server names other authorities.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }
	}
	return c
}

func put(t *testing.T, path string, text []byte) string {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A secured is a proxy that serves with TLS.
type secured struct {
	*Proxy
	t    *testing.T
	at   string // HOST:PORT
	logs bytes.Buffer
}

func newSecured(t *testing.T, cfg config.Config) *secured {
	t.Helper()
	s := &secured{t: t}
	cfg.Listen = []string{"127.0.0.1:0"}
	var err error
	if s.Proxy, err = New(&cfg, Options{Log: slog.New(slog.NewTextHandler(&s.logs, nil))}); err != nil {
		t.Fatal(err)
	}
	at, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	s.at = at[0].String()
	over := make(chan error, 1)
	go func() { over <- s.Serve() }()
	t.Cleanup(func() {
		s.Close()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return s
}

// shake begins a connection, and returns the number of the certificate it sees.
func (s *secured) shake(client *tls.Config) (serial string, err error) {
	s.t.Helper()
	s.web.tls.mu.Lock()
	s.web.tls.looked = time.Time{}
	s.web.tls.mu.Unlock()
	c, err := tls.Dial("tcp", s.at, client)
	if err != nil {
		return "", err
	}
	defer c.Close()
	// In TLS 1.3 a client is done before the server has looked at its certificate.
	fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	if _, err := io.ReadAll(c); err != nil {
		return "", err
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

// rejected reports whether the server ended the connection because of the client's certificate.
func rejected(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok && strings.Contains(err.Error(), "tls:")
}

// logged returns how many lines have a part.
func (s *secured) logged(part string) int {
	s.web.tls.mu.Lock() // under which they are written
	defer s.web.tls.mu.Unlock()
	return strings.Count(s.logs.String(), part)
}

// TestTLS: Streamable HTTP by HTTP/2 and HTTP/1.1, and a WebSocket, which stays while
// the certificate changes for new connections. Bad files change nothing, and are one
// line in the log.
func TestTLS(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	cert, key := ca.pair(t)
	files := config.ListenTLS{Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key)}
	s := newSecured(t, config.Config{Frontend: config.Frontend{TLS: files}})

	for _, proto := range []int{1, 2} {
		web := &http.Transport{TLSClientConfig: ca.client(t, nil), ForceAttemptHTTP2: proto == 2}
		resp, err := (&http.Client{Transport: web}).Post("https://"+s.at+"/mcp", "application/json",
			strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		web.CloseIdleConnections()
		if resp.ProtoMajor != proto || resp.StatusCode != 200 || !strings.Contains(string(body), `"id":1`) {
			t.Errorf("%s %d %s", resp.Proto, resp.StatusCode, body)
		}
	}
	ws, err := wsconn.Config{}.Dial(t.Context(), "wss://"+s.at+"/ws", nil, ca.client(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	ping := func(id int64) {
		t.Helper()
		ws.Send(jsonrpc.NewRequest(jsonrpc.IntID(id), "ping", nil))
		if m, err := ws.Recv(); err != nil || m.Result == nil {
			t.Errorf("%v, %v", m, err)
		}
	}
	ping(1)

	first, err := s.shake(ca.client(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	put(t, files.Cert, []byte("no certificate"))
	for range 3 {
		if again, err := s.shake(ca.client(t, nil)); again != first {
			t.Errorf("bad files: %s, %v", again, err)
		}
	}
	if n := s.logged("keeping the previous ones"); n != 1 {
		t.Errorf("bad files are %d lines, want 1", n)
	}
	cert, key = ca.pair(t)
	put(t, files.Cert, cert)
	if again, err := s.shake(ca.client(t, nil)); again != first { // with the key of another
		t.Errorf("half of the files: %s, %v", again, err)
	}
	put(t, files.Key, key)
	if next, err := s.shake(ca.client(t, nil)); err != nil || next == first {
		t.Errorf("new files: %s, %v", next, err)
	}
	if s.logged("keeping the previous ones") != 1 || s.logged("can be used again") != 1 || s.logged("PRIVATE") != 0 {
		t.Error(s.logs.String())
	}
	ping(2)
	if old, err := net.Dial("tcp", s.at); err == nil {
		tls11 := tls.Client(old, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10})
		if tls11.Handshake() == nil {
			t.Error("TLS 1.1 is served")
		}
		old.Close()
	}
}

// TestTLSFilesOfKubernetes: a mounted secret is changed by a link to another directory.
func TestTLSFilesOfKubernetes(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	make := func(name string) {
		cert, key := ca.pair(t)
		os.Mkdir(filepath.Join(dir, name), 0o700)
		put(t, filepath.Join(dir, name, "tls.crt"), cert)
		put(t, filepath.Join(dir, name, "tls.key"), key)
		os.Symlink(name, filepath.Join(dir, "next"))
		if err := os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	make("one")
	for _, f := range []string{"tls.crt", "tls.key"} {
		os.Symlink(filepath.Join("..data", f), filepath.Join(dir, f))
	}
	s := newSecured(t, config.Config{Frontend: config.Frontend{TLS: config.ListenTLS{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}}})
	first, err := s.shake(ca.client(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	make("two")
	if next, err := s.shake(ca.client(t, nil)); err != nil || next == first {
		t.Errorf("still %s, %v", next, err)
	}
	if s.logged("cannot be used") != 0 {
		t.Error(s.logs.String())
	}
}

// TestClientCertificates: certificates are required if nothing else authenticates clients, and always
// verified. Authorities change with their file.
func TestClientCertificates(t *testing.T) {
	ours, theirs, other, dir := newAuthority(t), newAuthority(t), newAuthority(t), t.TempDir()
	cert, key := ours.pair(t)
	clientCA := filepath.Join(dir, "ca")
	files := config.ListenTLS{Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key), ClientCA: clientCA}
	token := put(t, filepath.Join(dir, "token"), []byte("secret"))

	for _, optional := range []bool{false, true} {
		put(t, clientCA, pemOf("CERTIFICATE", theirs.cert.Raw))
		cfg := config.Config{Frontend: config.Frontend{TLS: files}}
		if optional {
			cfg.TokenFile = token
		}
		s := newSecured(t, cfg)
		want := func(what string, by *authority, welcome bool) {
			t.Helper()
			if _, err := s.shake(ours.client(t, by)); welcome && err != nil || !welcome && !rejected(err) {
				t.Errorf("optional %v, %s: %v", optional, what, err)
			}
		}
		want("no certificate", nil, optional)
		want("a good one", theirs, true)
		want("one of another authority", other, false)
		back := ours.client(t, theirs)
		back.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		if _, err := s.shake(back); err != nil {
			t.Error(err)
		}
		put(t, clientCA, pemOf("CERTIFICATE", other.cert.Raw))
		want("one of the new authority", other, true)
		want("one that was good", theirs, false)
		if _, err := s.shake(back); !rejected(err) {
			t.Errorf("one that was good comes back: %v", err)
		}
		put(t, clientCA, []byte("no certificate"))
		want("no authorities now", other, true)
		want("no authorities now, and it was not good", theirs, false)
	}
}

// TestReloadOfTokensBesideCertificates: with the first token that a reload brings, clients may come without a
// certificate, and with the last one that it takes away they may not any more.
func TestReloadOfTokensBesideCertificates(t *testing.T) {
	ours, theirs, dir := newAuthority(t), newAuthority(t), t.TempDir()
	cert, key := ours.pair(t)
	cfg := config.Config{Frontend: config.Frontend{Listen: []string{"127.0.0.1:0"}, TLS: config.ListenTLS{
		Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key),
		ClientCA: put(t, filepath.Join(dir, "ca"), pemOf("CERTIFICATE", theirs.cert.Raw)),
	}}}
	s := newSecured(t, cfg)
	for _, token := range []string{"", put(t, filepath.Join(dir, "token"), []byte("secret")), ""} {
		cfg.TokenFile = token
		if err := s.Reload(&cfg); err != nil {
			t.Fatal(err)
		}
		if _, err := s.shake(ours.client(t, nil)); token != "" && err != nil || token == "" && !rejected(err) {
			t.Errorf("token %q, no certificate: %v", token, err)
		}
		if _, err := s.shake(ours.client(t, theirs)); err != nil {
			t.Errorf("token %q, a certificate: %v", token, err)
		}
	}
}

// TestBadTLSFiles: what cannot be served with is said at the start, with the file's name.
func TestBadTLSFiles(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	cert, key := ca.pair(t)
	_, otherKey := ca.pair(t)
	good := config.ListenTLS{Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key)}
	put(t, filepath.Join(dir, "other"), otherKey)
	for want, change := range map[string]func(*config.ListenTLS){
		"none: ":                           func(f *config.ListenTLS) { f.Cert = filepath.Join(dir, "none") },
		"cert: does not match its key:":    func(f *config.ListenTLS) { f.Key = filepath.Join(dir, "other") },
		"key: holds no certificate in PEM": func(f *config.ListenTLS) { f.ClientCA = f.Key },
	} {
		files := good
		change(&files)
		_, err := New(&config.Config{Frontend: config.Frontend{TLS: files}}, Options{})
		if _, ok := errors.AsType[config.Problems](err); !ok || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A Unix socket has no TLS, because it needs none.
func TestNoTLSOnASocket(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	cert, key := ca.pair(t)
	t.Chdir(dir)
	p := newProxy(t, config.Config{Frontend: config.Frontend{Listen: []string{"unix://s"}, TLS: config.ListenTLS{Cert: put(t, "cert", cert), Key: put(t, "key", key)}}})
	if _, err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- p.Serve() }()
	c, err := net.Dial("unix", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	if text, _ := io.ReadAll(c); !strings.HasPrefix(string(text), "HTTP/1.1 200 OK") {
		t.Errorf("%s", text)
	}
	p.Close()
	<-over
}

// A strict server serves HTTPS to clients with certificates, of authorities that may change. Each request
// has a connection of its own.
type strict struct {
	*httptest.Server
	next atomic.Pointer[tls.Config]
	seen chan string // numbers of clients' certificates
}

func newStrict(t *testing.T) *strict {
	s := &strict{seen: make(chan string, 100)}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.seen <- r.TLS.PeerCertificates[0].SerialNumber.String()
		w.WriteHeader(http.StatusForbidden)
	}))
	s.Config.SetKeepAlivesEnabled(false)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.next.Load(), nil }}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// use makes the server show a certificate of by, and ask for those of an authority.
func (s *strict) use(t *testing.T, by, clients *authority) {
	t.Helper()
	own, err := tls.X509KeyPair(by.pair(t))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(clients.cert)
	s.next.Store(&tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
}

// TestTLSFilesOfUpstreams: certificate, key and authority of an upstream are those that its files have when a
// connection is made, for HTTP, a WebSocket and a link.
func TestTLSFilesOfUpstreams(t *testing.T) {
	theirs, ours, other, dir := newAuthority(t), newAuthority(t), newAuthority(t), t.TempDir()
	files := config.TLS{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	put(t, files.CA, pemOf("CERTIFICATE", theirs.cert.Raw))
	var mine string // the number of our certificate
	issue := func(by *authority) {
		cert, key := by.pair(t)
		put(t, files.Cert, cert)
		put(t, files.Key, key)
		block, _ := pem.Decode(cert)
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		mine = c.SerialNumber.String()
	}
	issue(ours)
	s := newStrict(t)
	s.use(t, theirs, ours)
	at := strings.TrimPrefix(s.URL, "https")
	web, ws := config.Upstream{Name: "web", Remote: config.Remote{URL: "https" + at, TLS: files}}, config.Upstream{Name: "ws", Remote: config.Remote{URL: "wss" + at, TLS: files}}
	far := config.Link{Name: "far", Dial: "wss" + at + "/link", TLS: files, Heartbeat: time.Minute}
	p := newProxy(t, config.Config{Upstreams: []config.Upstream{web, ws}, Links: []config.Link{far}})
	defer p.Close()

	want := func(what string, welcome bool) {
		t.Helper()
		for _, u := range []config.Upstream{web, ws} {
			_, err := p.host.remote(u.Name).Probe(t.Context())
			wantSeen(t, what+", "+u.Name, s.seen, mine, welcome)
			if end, _ := errors.AsType[*jsonrpc.ClosedError](err); welcome && end.Cause != jsonrpc.HTTPCause(403) || !welcome && end.Cause != jsonrpc.CauseTLS {
				t.Errorf("%s, %s: %v", what, u.Name, err)
			}
		}
		_, err := p.links.all[0].endpoint.Dial(t.Context())
		wantSeen(t, what+", link", s.seen, mine, welcome)
		if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok == welcome {
			t.Errorf("%s: %v (%v)", what, err, untrusted)
		}
	}
	want("at first", true)
	issue(ours)
	want("with a new certificate", true)
	s.use(t, other, ours)
	want("with a server of another authority", false)
	put(t, files.CA, pemOf("CERTIFICATE", other.cert.Raw))
	want("with that authority", true)
	put(t, files.CA, []byte("none"))
	want("with a bad file", true)
	s.use(t, theirs, ours)
	want("with a server of the old authority", false)
}

// A link whose other end does not accept our certificate says that TLS has failed, whatever it is carried by.
func TestCertificateOfLinkRefused(t *testing.T) {
	ca := newAuthority(t)
	s := newStrict(t)
	s.use(t, ca, ca)
	for _, scheme := range []string{"tls", "wss"} {
		at := link.Endpoint{URL: scheme + strings.TrimPrefix(s.URL, "https"), TLS: ca.client(t, newAuthority(t))}
		client := link.Client{}
		var failed error
		ctx, stop := context.WithCancel(t.Context())
		client.Failed = func(err error) { failed = err; stop() }
		client.Redial(ctx, at.Dial)
		if end := dialFailure(failed); end.Cause != jsonrpc.CauseTLS {
			t.Errorf("%s: %v (%v), want %v", scheme, end.Cause, failed, jsonrpc.CauseTLS)
		}
	}
}

// wantSeen checks which certificates a server has seen, if any.
func wantSeen(t *testing.T, what string, seen <-chan string, mine string, welcome bool) {
	t.Helper()
	if got := len(seen) > 0; got != welcome {
		t.Errorf("%s: the server has seen us %v, want %v", what, got, welcome)
	}
	for len(seen) > 0 {
		if got := <-seen; got != mine {
			t.Errorf("%s: the server has seen %s, want %s", what, got, mine)
		}
	}
}

// TestVerifiedServers: with authorities of our own, certificates of servers are verified as crypto/tls does, also those of an
// intermediate, and at an IP address, which is not sent as the name of the server.
func TestVerifiedServers(t *testing.T) {
	root, other := newAuthority(t), newAuthority(t)
	between := &authority{}
	between.cert, between.key = root.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: "between"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	leaf := func(by *authority, c x509.Certificate, chain ...*authority) tls.Certificate {
		c.Subject = pkix.Name{CommonName: "server"}
		cert, key := by.sign(t, &c)
		made := tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
		for _, a := range chain {
			made.Certificate = append(made.Certificate, a.cert.Raw)
		}
		return made
	}
	loopback, usage := []net.IP{net.IPv4(127, 0, 0, 1)}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	files := config.TLS{CA: put(t, filepath.Join(t.TempDir(), "ca"), pemOf("CERTIFICATE", root.cert.Raw))}
	for name, tt := range map[string]struct {
		cert    tls.Certificate
		host    string
		trusted bool
	}{
		"by IP":              {leaf(root, x509.Certificate{IPAddresses: loopback}), "127.0.0.1", true},
		"by name":            {leaf(root, x509.Certificate{DNSNames: []string{"localhost"}}), "localhost", true},
		"by an intermediate": {leaf(between, x509.Certificate{IPAddresses: loopback}, between), "127.0.0.1", true},
		"another IP":         {leaf(root, x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 2)}}), "127.0.0.1", false},
		"another name":       {leaf(root, x509.Certificate{DNSNames: []string{"example.com"}}), "localhost", false},
		"no intermediate":    {leaf(between, x509.Certificate{IPAddresses: loopback}), "127.0.0.1", false},
		"another authority":  {leaf(other, x509.Certificate{IPAddresses: loopback}), "127.0.0.1", false},
		"of a client":        {leaf(root, x509.Certificate{IPAddresses: loopback, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}), "127.0.0.1", false},
		"of a server":        {leaf(root, x509.Certificate{IPAddresses: loopback, ExtKeyUsage: usage}), "127.0.0.1", true},
	} {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.TLS = &tls.Config{Certificates: []tls.Certificate{tt.cert}}
		s.StartTLS()
		at := net.JoinHostPort(tt.host, fmt.Sprint(s.Listener.Addr().(*net.TCPAddr).Port))
		c, err := clientTLS(files, "https://"+at+"/mcp", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp4", at, c)
		if _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); untrusted == tt.trusted || (err == nil) != tt.trusted {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			conn.Close()
		}
		s.Close()
	}
}

// TestTLSFilesOfHost: a host that listens shows the certificate that its files have.
func TestTLSFilesOfHost(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	cert, key := ca.pair(t)
	files := config.TLS{Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key)}
	h, err := NewHost(&config.Config{}, config.HostLink{Listen: "tls://127.0.0.1:0", TLS: files}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	at, err := h.Listen()
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- h.Serve() }()
	defer func() { h.Close(); <-over }()
	shown := func() string {
		t.Helper()
		c, err := tls.Dial("tcp", strings.TrimPrefix(at, "tls://"), ca.client(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	first := shown()
	cert, key = ca.pair(t)
	put(t, files.Cert, cert)
	put(t, files.Key, key)
	for end := time.Now().Add(10 * time.Second); shown() == first; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the old certificate is shown")
		}
	}
}
