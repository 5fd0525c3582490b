package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"
)

// An authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	a := &authority{pool: x509.NewCertPool()}
	a.cert, a.key = a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	})
	a.pool.AddCert(a.cert)
	return a
}

// sign completes and signs a template.
func (a *authority) sign(t testing.TB, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-24 * time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// certificate is one for 127.0.0.1, or for a client, until notAfter.
func (a *authority) certificate(t testing.TB, notAfter time.Time) []tls.Certificate {
	cert, key := a.sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: notAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}
}

func soon() time.Time { return time.Now().Add(time.Hour) }

// endpoints returns where to listen and where to dial, but for the port.
var carriers = []struct {
	name      string
	endpoints func(t testing.TB) (listen, dial Endpoint)
}{
	{"unix", func(t testing.TB) (listen, dial Endpoint) {
		e := Endpoint{URL: "unix://" + filepath.Join(t.TempDir(), "s")}
		return e, e
	}},
	{"tcp", func(testing.TB) (listen, dial Endpoint) {
		e := Endpoint{URL: "tcp://127.0.0.1:0"}
		return e, e
	}},
	{"tls", func(t testing.TB) (listen, dial Endpoint) {
		ca := newAuthority(t)
		return Endpoint{URL: "tls://127.0.0.1:0", TLS: &tls.Config{Certificates: ca.certificate(t, soon())}},
			Endpoint{URL: "tls://127.0.0.1:0", TLS: &tls.Config{RootCAs: ca.pool}}
	}},
	{"mutual tls", func(t testing.TB) (listen, dial Endpoint) {
		ca := newAuthority(t)
		return Endpoint{URL: "tls://127.0.0.1:0", TLS: &tls.Config{Certificates: ca.certificate(t, soon()), ClientCAs: ca.pool}},
			Endpoint{URL: "tls://127.0.0.1:0", TLS: &tls.Config{RootCAs: ca.pool, Certificates: ca.certificate(t, soon())}}
	}},
	{"ws", func(testing.TB) (listen, dial Endpoint) {
		e := Endpoint{URL: "ws://127.0.0.1:0/link", Token: secret("s3cret")}
		return e, e
	}},
	{"wss", func(t testing.TB) (listen, dial Endpoint) {
		ca := newAuthority(t)
		return Endpoint{URL: "wss://127.0.0.1:0/link", Token: secret("s3cret"), TLS: &tls.Config{Certificates: ca.certificate(t, soon())}},
			Endpoint{URL: "wss://127.0.0.1:0/link", Token: secret("s3cret"), TLS: &tls.Config{RootCAs: ca.pool}}
	}},
}

func secret(token string) func() (string, error) { return func() (string, error) { return token, nil } }

// listenAt listens, and returns dial with the port.
func listenAt(t testing.TB, listen, dial Endpoint) (net.Listener, Endpoint) {
	t.Helper()
	l, err := listen.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		u, err := url.Parse(dial.URL)
		if err != nil {
			t.Fatal(err)
		}
		u.Host = a.String()
		dial.URL = u.String()
	}
	return l, dial
}

// connect returns both ends of a carrier.
func connect(t testing.TB, l net.Listener, dial Endpoint) (near, far net.Conn) {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = handshake(context.Background(), c)
		}
		if err != nil {
			t.Errorf("Accept: %v", err)
		}
		accepted <- c
	}()
	near, err := dial.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return near, await(t, accepted)
}

// onEach runs a test over each carrier.
func onEach(t *testing.T, test func(t *testing.T, l net.Listener, dial Endpoint)) {
	for _, c := range carriers {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			listen, dial := c.endpoints(t)
			l, dial := listenAt(t, listen, dial)
			test(t, l, dial)
		})
	}
}
