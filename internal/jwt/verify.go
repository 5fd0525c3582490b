package jwt

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

const maxToken = 16 << 10 // bytes of a token

// An Issuer is an authorization server whose tokens we accept. Its fields must not change once it is used.
type Issuer struct {
	Name       string        // the claim iss
	Audience   []string      // a token must be for one of these; a trailing slash makes no difference
	Algorithms []string      // of signatures
	Skew       time.Duration // allowed difference of the clocks
	Principal  string        // the claim that names the client
	Scopes     []string      // that every token needs; [Verify] leaves the check to its caller
	Keys       *Keys
}

// A Token is a verified token. It is valid until Expires, and no longer than its key.
type Token struct {
	Issuer  *Issuer
	Payload []byte         // the signed JSON
	Claims  map[string]any // the same, decoded
	Expires time.Time      // by our clock, including the skew
	Key     *PublicKey
	Only    string // the one resource that the token is for; "" for all
}

// Invalid is why a token is refused. It contains nothing of the token, so its sender may read it.
type Invalid string

func (e Invalid) Error() string { return string(e) }

// Why a token is refused.
const (
	Malformed     Invalid = "the token is not a signed JWT"
	WrongAlg      Invalid = "the token is signed with an algorithm that is not allowed"
	WrongType     Invalid = "the token is not an access token"
	WrongIssuer   Invalid = "the token is from an untrusted issuer"
	UnknownKey    Invalid = "the token is signed with an unknown key"
	BadSignature  Invalid = "the signature of the token is invalid"
	WrongAudience Invalid = "the token is for another audience"
	NoExpiry      Invalid = "the token has no expiry"
	Expired       Invalid = "the token has expired"
	TooEarly      Invalid = "the token is not valid yet"
)

// Verify parses a token in compact serialization and verifies that one of the issuers has signed it, for one of its
// audiences or for the requested resource, which is a URL of ours or "". It may wait for keys until ctx ends. Its error
// is Invalid, [ErrUnavailable] or that of ctx.
func Verify(ctx context.Context, issuers []*Issuer, resource, text string) (*Token, error) {
	h, claims, err := parse(text)
	if err != nil {
		return nil, err
	}
	name, _ := claims["iss"].(string)
	at := slices.IndexFunc(issuers, func(i *Issuer) bool { return i.Name == name })
	if at < 0 {
		return nil, WrongIssuer
	}
	i := issuers[at]
	if !slices.Contains(i.Algorithms, string(h.Algorithm)) {
		return nil, WrongAlg
	}
	key, payload, err := i.verify(ctx, h, text)
	if err != nil {
		return nil, err
	}
	token := &Token{Issuer: i, Payload: payload, Claims: claims, Key: key}
	switch {
	case isFor(claims["aud"], i.Audience):
	case resource != "" && isFor(claims["aud"], []string{resource}):
		token.Only = resource
	default:
		return nil, WrongAudience
	}
	if token.Expires, err = i.times(claims); err != nil {
		return nil, err
	}
	if !givesAccess(claims) {
		return nil, WrongType
	}
	return token, nil
}

// parse reads a token without verifying it. The JSON of the library is case-sensitive, and refuses duplicate members.
func parse(text string) (h header, claims map[string]any, err error) {
	if len(text) > maxToken || strings.Count(text, ".") != 2 { // a JWE has four, and the JSON serialization has none
		return h, nil, Malformed
	}
	first, rest, _ := strings.Cut(text, ".")
	second, _, _ := strings.Cut(rest, ".")
	if !decode(first, &h) || !decode(second, &claims) || claims == nil {
		return h, nil, Malformed
	}
	// We support no critical extension, so the token must be refused (RFC 7515, section 4.1.11; b64: RFC 7797,
	// section 7).
	if h.Critical != nil || h.Plain != nil {
		return h, nil, Malformed
	}
	switch strings.TrimPrefix(strings.ToLower(h.Type), "application/") {
	case "", "jwt", "at+jwt":
		return h, claims, nil
	}
	return h, nil, WrongType // a token for another purpose
}

func decode(segment string, to any) bool {
	text, err := base64.RawURLEncoding.DecodeString(segment)
	return err == nil && utf8.Valid(text) && json.Unmarshal(text, to) == nil
}

// verify returns the key that signed the token, and the payload. If no known key did, the issuer may have rotated its
// keys, and verify waits for a fetch.
func (i *Issuer) verify(ctx context.Context, h header, text string) (*PublicKey, []byte, error) {
	signed, err := jose.ParseSignedCompact(text, []jose.SignatureAlgorithm{h.Algorithm})
	if err != nil {
		return nil, nil, Malformed
	}
	for waits := 0; ; waits++ { // one for a fetch that began too early, and one for its own
		keys, ended, err := i.Keys.find(h)
		if err != nil {
			return nil, nil, err
		}
		for _, key := range keys {
			if payload, err := signed.Verify(key.key); err == nil {
				return key, payload, nil
			}
		}
		wait := i.Keys.miss(ended)
		switch {
		case wait != nil && waits < 2:
		case len(keys) > 0 && h.KeyID != "":
			return nil, nil, BadSignature
		default:
			return nil, nil, UnknownKey
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(fetchTime + time.Second): // Run is gone
			return nil, nil, ErrUnavailable
		}
	}
}

// givesAccess reports whether a token is an access token, and not an ID token or one for the authorization server
// alone. Those would pass where the audience has to be the client's own id (RFC 8725, section 3.12). Not all servers
// say it in the header. Only ID tokens have the hashes (OpenID Connect Core, 3.1.3.6 and 3.3.2.11); the types are
// Keycloak's.
func givesAccess(claims map[string]any) bool {
	for _, hash := range []string{"at_hash", "c_hash", "s_hash"} {
		if claims[hash] != nil {
			return false
		}
	}
	switch claims["typ"] {
	case "ID", "Refresh", "Offline", "Logout":
		return false
	}
	return true
}

// times checks that a token is valid now (RFC 7519, section 4.1), and returns when it expires.
func (i *Issuer) times(claims map[string]any) (expires time.Time, err error) {
	now := time.Now()
	exp, ok := claims["exp"].(float64)
	if !ok {
		return expires, NoExpiry
	}
	if expires = date(exp).Add(i.Skew); !now.Before(expires) {
		return expires, Expired
	}
	for _, name := range []string{"nbf", "iat"} {
		switch from := claims[name].(type) {
		case nil:
		case float64:
			if date(from).After(now.Add(i.Skew)) {
				return expires, TooEarly
			}
		default:
			return expires, Malformed
		}
	}
	return expires, nil
}

// isFor reports whether the claim aud, a string or an array, has one of our names.
func isFor(aud any, us []string) bool {
	names, ok := aud.([]any)
	if !ok {
		names = []any{aud}
	}
	return slices.ContainsFunc(names, func(name any) bool {
		text, ok := name.(string)
		return ok && text != "" && slices.ContainsFunc(us, func(one string) bool {
			return strings.TrimSuffix(text, "/") == strings.TrimSuffix(one, "/")
		})
	})
}

// date returns the time of a NumericDate, at most the year 9999.
func date(seconds float64) time.Time {
	const last = 253402300799
	return time.UnixMilli(int64(1000 * min(max(seconds, -last), last)))
}
