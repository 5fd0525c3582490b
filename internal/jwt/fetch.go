package jwt

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

const (
	maxDocument  = 256 << 10 // bytes of a key set, and of metadata
	maxRedirects = 3
)

// newClient returns a client that follows redirects only within an origin: keys at another one would be somebody
// else's.
func newClient() *http.Client {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		Protocols: new(http.Protocols),
	}
	transport.Protocols.SetHTTP1(true) // on HTTP/2 net/http repeats a request whose stream is reset, without a bound
	return &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		first := via[0].URL
		switch {
		case r.URL.Scheme != first.Scheme || r.URL.Host != first.Host:
			return errors.New("it redirects to another origin")
		case len(via) > maxRedirects:
			return errors.New("it redirects too often")
		}
		return nil
	}}
}

// fetch returns the current keys of the issuer.
func (k *Keys) fetch(ctx context.Context) ([]*PublicKey, error) {
	if k.file != nil {
		var set []*PublicKey
		text, err := k.file.Read()
		if err == nil {
			set, err = parseSet([]byte(text))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k.file.Path, err)
		}
		return set, nil
	}
	at := cmp.Or(k.url, k.at)
	if at == "" {
		var err error
		if at, err = k.discover(ctx); err != nil {
			return nil, err
		}
	}
	text, err := k.get(ctx, at)
	if err != nil {
		k.at = "" // the keys may have moved
		return nil, err
	}
	k.at = at
	return parseSet(text)
}

// parseSet reads a JWK set (RFC 7517, section 5). It skips keys that cannot sign a token, as that section demands, and
// keys for encryption.
func parseSet(text []byte) (set []*PublicKey, err error) {
	var raw struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(text, &raw) != nil || raw.Keys == nil {
		return nil, errors.New("is not a JWK set")
	}
	for _, one := range *raw.Keys {
		var jwk jose.JSONWebKey
		if json.Unmarshal(one, &jwk) != nil || !jwk.Valid() || jwk.Use != "" && jwk.Use != "sig" {
			continue
		}
		public := jwk.Public().Key // nil for a symmetric key
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			continue
		}
		good, withdraw := context.WithCancel(context.Background())
		set = append(set, &PublicKey{
			id: jwk.KeyID, alg: jose.SignatureAlgorithm(jwk.Algorithm), key: public, print: sha256.Sum256(der),
			good: good, withdraw: withdraw,
		})
	}
	return set, nil
}

// CheckFile returns why a file of keys cannot be used, nil if it can.
func CheckFile(path string) error {
	set, err := NewKeys("", "", path, nil).fetch(context.Background())
	if err == nil && len(set) == 0 {
		err = fmt.Errorf("%s: has no key that can sign tokens", path)
	}
	return err
}

// discover returns the URL of the keys from the issuer's metadata, which are at the well-known URLs
// (basic/authorization, "Authorization Server Metadata Discovery").
func (k *Keys) discover(ctx context.Context) (string, error) {
	issuer, err := url.Parse(k.issuer)
	if err != nil || issuer.Host == "" {
		return "", errors.New("the issuer is not a URL, so its keys cannot be discovered")
	}
	root, path := issuer.Scheme+"://"+issuer.Host, strings.TrimSuffix(issuer.EscapedPath(), "/")
	places := slices.Compact([]string{
		root + "/.well-known/oauth-authorization-server" + path,
		root + "/.well-known/openid-configuration" + path,
		root + path + "/.well-known/openid-configuration",
	})
	var why []string
	for _, place := range places {
		at, err := k.metadata(ctx, issuer, place)
		if err == nil {
			return at, nil
		}
		why = append(why, err.Error())
	}
	return "", errors.New(strings.Join(why, "; "))
}

func (k *Keys) metadata(ctx context.Context, issuer *url.URL, place string) (string, error) {
	text, err := k.get(ctx, place)
	if err != nil {
		return "", err
	}
	var found struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return "", fmt.Errorf("%s: invalid metadata", place)
	}
	at, err := url.Parse(found.Keys)
	switch {
	case found.Issuer != k.issuer: // RFC 8414, section 3.3
		return "", fmt.Errorf("%s: the metadata of another issuer, %q", place, found.Issuer)
	case err != nil || at.Host == "" || at.Scheme != "https" && at.Scheme != issuer.Scheme:
		return "", fmt.Errorf("%s: jwks_uri is missing or invalid", place)
	}
	return found.Keys, nil
}

func (k *Keys) get(ctx context.Context, from string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	resp, err := k.client.Do(r)
	if err != nil {
		return nil, err // names the URL
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: HTTP %d", from, resp.StatusCode)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", from, err)
	case len(text) > maxDocument:
		return nil, fmt.Errorf("%s: more than %d bytes", from, maxDocument)
	}
	return text, nil
}
