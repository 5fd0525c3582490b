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

// A Key signs assertions of who we are.
type Key struct{ signer jose.Signer }

// ParseKey reads a private key: RSA, EC or Ed25519, as PEM (PKCS #8, PKCS #1, SEC 1) or as
// a JWK, whose kid and alg are used. The error has nothing of the text.
func ParseKey(text []byte) (*Key, error) {
	key, err := parsePrivate(text)
	if err != nil {
		return nil, err
	}
	alg, err := algorithmOf(key.Key)
	if err != nil {
		return nil, err
	}
	if key.Algorithm != "" { // RS256 is not the only one of an RSA key
		alg = jose.SignatureAlgorithm(key.Algorithm)
		if !fits(key.Public().Key, alg) {
			return nil, errors.New("its alg does not fit its kty")
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, errors.New("cannot sign with it")
	}
	return &Key{signer}, nil
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
			return key, errors.New("holds an encrypted private key, which nobody here can decrypt")
		}
	}
	if json.Unmarshal(text, &key) != nil || !key.Valid() || key.IsPublic() {
		return key, errNoKey
	}
	return key, nil
}

// parseDER returns a private key in any of the forms that PEM files have, nil for others.
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

// minRSA is the least number of bits (RFC 7518, section 3.3).
const minRSA = 2048

// algorithmOf returns how to sign with a private key, if it does not say so itself.
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
	return "", errors.New("holds a key that is none of RSA, EC (P-256, P-384, P-521) and Ed25519")
}

// curves are the curves of keys, and what these sign with.
var curves = map[elliptic.Curve]jose.SignatureAlgorithm{
	elliptic.P256(): jose.ES256, elliptic.P384(): jose.ES384, elliptic.P521(): jose.ES512,
}

// fits reports whether a signature of alg can be by that key. A token says the first, and
// its issuer has the second.
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

// assertionLife is how long an assertion is good for. It is sent at once.
const assertionLife = 2 * time.Minute

// Assertion returns a token with which a client proves who it is to an authorization
// server (RFC 7523, section 3: private_key_jwt). It is good for one use within two
// minutes. The audience is the server's issuer.
func (k *Key) Assertion(clientID, audience string) (string, error) {
	now := time.Now()
	claims, err := json.Marshal(map[string]any{
		"iss": clientID, "sub": clientID, "aud": audience, "jti": rand.Text(),
		"iat": now.Unix(), "exp": now.Add(assertionLife).Unix(),
	})
	if err != nil { // strings and numbers alone
		return "", err
	}
	signed, err := k.signer.Sign(claims)
	if err != nil {
		return "", errors.New("sign assertion: the key does not work")
	}
	return signed.CompactSerialize()
}
