package auth

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// byCertificate says who has the certificate of a connection, which was verified in the
// handshake. Both are nil if there is none.
func byCertificate(state *tls.ConnectionState) (*identity.Identity, *identity.Refusal) {
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil, nil
	}
	chain := state.VerifiedChains[0]
	leaf, authority := chain[0], chain[len(chain)-1]
	name := cmp.Or(leaf.Subject.CommonName, alternative(leaf), leaf.Subject.String())
	switch {
	case !isName(name):
		return nil, &identity.Refusal{Status: http.StatusForbidden, Text: "the client certificate has no name"}
	case time.Now().After(leaf.NotAfter): // since the handshake: the connection may be kept for long
		return nil, &identity.Refusal{Status: http.StatusForbidden, Text: "the client certificate has expired"}
	}
	return &identity.Identity{
		Principal: identity.Principal{Kind: identity.Certificate, Issuer: authorityName(authority.Subject), Name: name},
		Expires:   leaf.NotAfter,
	}, nil
}

// alternative returns a name of a certificate without a common name, as SPIFFE has them.
func alternative(c *x509.Certificate) string {
	switch {
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.EmailAddresses) > 0:
		return c.EmailAddresses[0]
	}
	return ""
}

func authorityName(subject pkix.Name) string { return cmp.Or(subject.CommonName, subject.String()) }
