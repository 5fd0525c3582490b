package cluster

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

const (
	minKey  = 32 // bytes
	maxKeys = 16 // in a file
)

// What is derived from a key, as HKDF's infos. They are part of the protocol between replicas.
const (
	infoGossip    = "mcp-proxy cluster gossip"
	infoMAC       = "mcp-proxy cluster id"
	infoAuthority = "mcp-proxy cluster authority"
)

// A key is what is derived from one line of the key file.
type key struct {
	gossip    []byte // encrypts what membership sends (AES-256)
	mac       []byte // signs ids
	authority authority
}

func newKey(secret []byte) (key, error) {
	var derived [3][]byte
	for i, info := range []string{infoGossip, infoMAC, infoAuthority} {
		var err error
		if derived[i], err = hkdf.Key(sha256.New, secret, nil, info, 32); err != nil {
			return key{}, err
		}
	}
	a, err := newAuthority(derived[2])
	return key{gossip: derived[0], mac: derived[1], authority: a}, err
}

// A keySet is the content of the key file.
type keySet struct {
	all  []key // at least one. The first signs, all verify
	pool *x509.CertPool
	own  tls.Certificate // signed by the first
}

// gossip returns the keys of membership, the signing one first.
func (s *keySet) gossip() [][]byte {
	var all [][]byte
	for _, k := range s.all {
		all = append(all, k.gossip)
	}
	return all
}

// keys are the keys of the file, which is read again when it changes.
type keys struct {
	// Static after construction.
	file     *secretfile.File
	instance string             // of this process
	private  ed25519.PrivateKey // of this process, which each set certifies

	text    string // as last read; owned by the caller of refresh
	current atomic.Pointer[keySet]
}

// CheckKeys returns what is wrong with a file of keys; nil for nothing. The error names the file, and the line, and
// contains nothing of it.
func CheckKeys(file string) error {
	_, err := newKeys(file, "check")
	return err
}

// newKeys reads the file. Its errors name the file, and the line, and contain nothing of it.
func newKeys(file, instance string) (*keys, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	k := &keys{file: &secretfile.File{Path: file}, instance: instance, private: private}
	_, err = k.refresh()
	return k, err
}

// refresh reads the file if it has changed, and reports whether the keys are others now. After an error they are the
// ones before: a file that is being written, or of which a volume is missing, must not split the cluster. A key is
// withdrawn by taking away its line.
func (k *keys) refresh() (changed bool, err error) {
	text, err := k.file.Read()
	if err != nil {
		return false, fmt.Errorf("%s: %w", k.file.Path, err)
	}
	if k.current.Load() != nil && text == k.text {
		return false, nil
	}
	set, err := parseKeys(text)
	if err == nil {
		set.own, err = set.all[0].authority.identify(k.instance, k.private)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", k.file.Path, err)
	}
	k.text = text
	k.current.Store(set)
	return true, nil
}

// parseKeys reads a key file: a key in each line, except empty ones and those that begin with #.
func parseKeys(text string) (*keySet, error) {
	set := &keySet{pool: x509.NewCertPool()}
	var secrets [][]byte
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		secret, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if !slices.ContainsFunc(secrets, func(other []byte) bool { return bytes.Equal(other, secret) }) {
			secrets = append(secrets, secret)
		}
	}
	switch {
	case len(secrets) == 0:
		return nil, errors.New("has no key")
	case len(secrets) > maxKeys:
		return nil, fmt.Errorf("has more than %d keys", maxKeys)
	}
	for _, secret := range secrets {
		k, err := newKey(secret)
		if err != nil {
			return nil, err
		}
		set.all = append(set.all, k)
		set.pool.AddCert(k.authority.certificate)
	}
	return set, nil
}

// parseKey decodes hex or base64 of any alphabet, padded or not. What could be both is hex.
func parseKey(line string) ([]byte, error) {
	secret, err := hex.DecodeString(line)
	if err != nil {
		plain := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(line, "="))
		if secret, err = base64.RawStdEncoding.DecodeString(plain); err != nil {
			return nil, errors.New("is neither hex nor base64")
		}
	}
	if len(secret) < minKey {
		return nil, fmt.Errorf("the key has %d bytes, want %d or more", len(secret), minKey)
	}
	return secret, nil
}
