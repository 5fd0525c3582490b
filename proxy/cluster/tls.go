package cluster

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"slices"
	"sync"
	"time"
)

// Certificates never expire: a key ends with its line in the key file, and clocks may differ.
var (
	validFrom  = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	validUntil = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) // RFC 5280, 4.1.2.5: no good end
)

// An authority signs the certificates of replicas. All that have a key make the same one.
type authority struct {
	private     ed25519.PrivateKey
	certificate *x509.Certificate
}

func newAuthority(seed []byte) (authority, error) {
	private := ed25519.NewKeyFromSeed(seed)
	der, err := certify(&x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mcp-proxy replicas"}, KeyUsage: x509.KeyUsageCertSign,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}, nil, private, private)
	if err != nil {
		return authority{}, err
	}
	certificate, err := x509.ParseCertificate(der)
	return authority{private, certificate}, err
}

// identify certifies the key pair of a process, with its instance as name.
func (a authority) identify(instance string, private ed25519.PrivateKey) (tls.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := certify(&x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), DNSNames: []string{instance}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, private, a.private)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, err
}

// certify signs a certificate; with no parent, its own. Ed25519 signatures are deterministic.
func certify(c, parent *x509.Certificate, of, by ed25519.PrivateKey) ([]byte, error) {
	c.NotBefore, c.NotAfter = validFrom, validUntil
	if parent == nil {
		parent = c
	}
	return x509.CreateCertificate(rand.Reader, c, parent, of.Public(), by)
}

// config returns what both ends of a link have in common.
func (s *keySet) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.own}, RootCAs: s.pool, ClientCAs: s.pool,
		ClientAuth: tls.RequireAndVerifyClientCert, SessionTicketsDisabled: true, // a ticket would outlive its key
	}
}

// trusts reports whether a verified peer's authority is one of s.
func (s *keySet) trusts(root *x509.Certificate) bool {
	return slices.ContainsFunc(s.all, func(k key) bool { return k.authority.certificate.Equal(root) })
}

// carriers are the connections of all links, in both directions. Each ends at once when its peer has died, or when the
// key is taken away that vouched for it.
type carriers struct {
	keys *keys

	mu   sync.Mutex // guards open, and peer and root of each
	open map[*carrier]struct{}
}

// A carrier is the connection below TLS.
type carrier struct {
	net.Conn
	all  *carriers
	peer string            // its instance; "" before the handshake
	root *x509.Certificate // nil before the handshake
}

// Why a certificate is refused that has a trusted authority.
var (
	errWithdrawn = errors.New("the key of its certificate was taken away")
	errNameless  = errors.New("its certificate is not that of one replica")
)

// server returns the end of a link that another member dialled.
func (s *carriers) server(c net.Conn) net.Conn {
	config := s.keys.current.Load().config()
	return tls.Server(s.track(c, config), config)
}

// client returns the end of a link at the member that dialled it. The handshake fails if the peer is not instance.
func (s *carriers) client(c net.Conn, instance string) net.Conn {
	config := s.keys.current.Load().config()
	config.ServerName = instance
	return tls.Client(s.track(c, config), config)
}

func (s *carriers) track(conn net.Conn, config *tls.Config) *carrier {
	c := &carrier{Conn: conn, all: s}
	config.VerifyConnection = func(state tls.ConnectionState) error { return s.vouch(c, state) }
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[c] = struct{}{}
	return c
}

// vouch records the authority of a peer. It has been verified with the keys at the beginning of the handshake, and is
// compared with those of now, because withdraw closes only what was recorded.
func (s *carriers) vouch(c *carrier, state tls.ConnectionState) error {
	names := state.PeerCertificates[0].DNSNames
	if len(names) != 1 {
		return errNameless
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, chain := range state.VerifiedChains {
		if root := chain[len(chain)-1]; s.keys.current.Load().trusts(root) {
			c.peer, c.root = names[0], root
			return nil
		}
	}
	return errWithdrawn
}

// withdraw closes the carriers of peers whose authority is no longer trusted.
func (s *carriers) withdraw() {
	set := s.keys.current.Load()
	s.closeIf(func(c *carrier) bool { return c.root != nil && !set.trusts(c.root) })
}

// died closes the carriers of a member, so that nobody waits for a heartbeat.
func (s *carriers) died(instance string) {
	s.closeIf(func(c *carrier) bool { return c.peer == instance })
}

func (s *carriers) closeIf(ended func(*carrier) bool) {
	var all []*carrier
	s.mu.Lock()
	for c := range s.open {
		if ended(c) {
			all = append(all, c)
		}
	}
	s.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// Close implements net.Conn.
func (c *carrier) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}
