package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

// newSigner reads a private key: RSA, EC or Ed25519, as PEM (PKCS #8, PKCS #1, SEC 1) or as a JWK, whose kid and alg it
// uses. Its error contains nothing of the text.
func newSigner(text []byte) (jose.Signer, error) {
	key, err := parsePrivate(text)
	if err != nil {
		return nil, err
	}
	alg, err := algorithmOf(key.Key)
	if err != nil {
		return nil, err
	}
	if key.Algorithm != "" { // an RSA key can have others than RS256
		alg = jose.SignatureAlgorithm(key.Algorithm)
		if !fits(key.Public().Key, alg) {
			return nil, errors.New("its alg does not fit its kty")
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, errors.New("cannot sign with this key")
	}
	return signer, nil
}

var errNoKey = errors.New("holds no private key as PEM (PKCS #8, PKCS #1, SEC 1) or JWK")

func parsePrivate(text []byte) (key jose.JSONWebKey, err error) {
	for rest := text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if key.Key = parseDER(block.Bytes); key.Key != nil {
			return key, nil
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "" {
			return key, errors.New("holds an encrypted private key, which mcp-proxy cannot decrypt")
		}
	}
	if json.Unmarshal(text, &key) != nil || !key.Valid() || key.IsPublic() {
		return key, errNoKey
	}
	return key, nil
}

// parseDER parses a private key in any of the formats of PEM files. It returns nil for others.
func parseDER(der []byte) any {
	if key, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		return key
	}
	if key, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return key
	}
	if key, err := x509.ParseECPrivateKey(der); err == nil {
		return key
	}
	return nil
}

// minRSA is the minimal number of bits (RFC 7518, section 3.3).
const minRSA = 2048

// algorithmOf returns the default algorithm of a private key.
func algorithmOf(private any) (jose.SignatureAlgorithm, error) {
	switch key := private.(type) {
	case *rsa.PrivateKey:
		if key.N.BitLen() < minRSA {
			return "", fmt.Errorf("holds an RSA key of fewer than %d bits", minRSA)
		}
		return jose.RS256, nil
	case *ecdsa.PrivateKey:
		if alg, ok := curves[key.Curve]; ok {
			return alg, nil
		}
	case ed25519.PrivateKey:
		return jose.EdDSA, nil
	}
	return "", errors.New("holds a key of an unsupported type: use RSA, EC (P-256, P-384, P-521) or Ed25519")
}

// curves are the supported curves, and their algorithms.
var curves = map[elliptic.Curve]jose.SignatureAlgorithm{
	elliptic.P256(): jose.ES256, elliptic.P384(): jose.ES384, elliptic.P521(): jose.ES512,
}

// fits reports whether the key can have made a signature of alg. The alg is from the token, the key from its issuer.
func fits(public crypto.PublicKey, alg jose.SignatureAlgorithm) bool {
	switch key := public.(type) {
	case *rsa.PublicKey:
		switch alg {
		case jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512:
			return key.N.BitLen() >= minRSA
		}
	case *ecdsa.PublicKey:
		return curves[key.Curve] == alg
	case ed25519.PublicKey:
		return alg == jose.EdDSA
	}
	return false
}

// assertionLife is the lifetime of an assertion, which is sent at once.
const assertionLife = 2 * time.Minute

// Assertion returns a token that authenticates a client to an authorization server (RFC 7523, section 3:
// private_key_jwt), for one use within two minutes. The key is RSA, EC or Ed25519, as PEM (PKCS #8, PKCS #1, SEC 1) or
// JWK. The audience is the server's issuer. Errors contain nothing of the key.
func Assertion(key []byte, clientID, audience string) (string, error) {
	signer, err := newSigner(key)
	if err != nil {
		return "", err
	}
	now := time.Now()
	claims, err := json.Marshal(map[string]any{
		"iss": clientID, "sub": clientID, "aud": audience, "jti": rand.Text(),
		"iat": now.Unix(), "exp": now.Add(assertionLife).Unix(),
	})
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		return "", errors.New("sign assertion: the key does not work")
	}
	return signed.CompactSerialize()
}
