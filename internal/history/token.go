package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// principals are who clients are, as the proxy knows by their tokens. The first ones have the tokens of files, and the
// last one has those of an issuer.
var (
	principals = []string{"anna", "bert", "carl"}
	withTokens = principals[:2]
)

// principalOf returns the principal of a client, whose name ends with its slot.
func principalOf(client string) string {
	slot, _ := strconv.Atoi(client[strings.LastIndexByte(client, '.')+1:])
	return principals[slot%len(principals)]
}

// token returns a token for a new client of a slot.
func (w *world) token(slot int) string {
	if i := slot % len(principals); i < len(withTokens) {
		return withTokens[i] + "-token"
	}
	return w.issuer.token(principals[len(principals)-1])
}

const issuerURL = "http://127.0.0.1/issuer"

// An issuer signs JSON Web Tokens.
type issuer struct {
	public ed25519.PublicKey
	key    ed25519.PrivateKey
	short  atomic.Bool // tokens expire soon
}

func newIssuer() (*issuer, error) {
	public, key, err := ed25519.GenerateKey(nil)
	return &issuer{public: public, key: key}, err
}

// keys is the key set by which the proxy verifies the tokens.
func (i *issuer) keys() string {
	return string(encode(object{"keys": []object{{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": base64url(i.public)}}}))
}

// token returns a token for a principal, which the proxy takes for one hour, or for one second to two.
func (i *issuer) token(principal string) string {
	expires := time.Now().Add(time.Hour)
	if i.short.Load() {
		expires = time.Now()
	}
	text := base64url(encode(object{"alg": "EdDSA", "kid": "k"})) + "." + base64url(encode(object{
		"iss": issuerURL, "aud": "history", "sub": principal, "exp": expires.Unix() + 1}))
	return text + "." + base64url(ed25519.Sign(i.key, []byte(text)))
}

func base64url(text []byte) string { return base64.RawURLEncoding.EncodeToString(text) }
