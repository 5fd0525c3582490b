package auth

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// byCertificate returns the identity of a connection's certificate, which the handshake has verified. Both results are
// nil if there is none.
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
	case time.Now().After(leaf.NotAfter): // since the handshake, on a long-lived connection
		return nil, &identity.Refusal{Status: http.StatusForbidden, Text: "the client certificate has expired"}
	}
	issuer := cmp.Or(authority.Subject.CommonName, authority.Subject.String())
	return &identity.Identity{
		Principal: identity.Principal{Kind: identity.Certificate, Issuer: issuer, Name: name}, Expires: leaf.NotAfter,
	}, nil
}

// alternative returns the name of a certificate without a common name, as of SPIFFE.
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
