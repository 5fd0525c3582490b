package jwt

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"

	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

const (
	refreshEvery = 5 * time.Minute  // how long a withdrawn key may stay in use
	lookEvery    = 5 * time.Second  // between looks at a file of keys
	missEvery    = time.Minute      // between fetches because of unknown keys: anybody can make up tokens
	fetchTime    = 10 * time.Second // of a fetch, with all its requests
	maxTried     = 8                // keys that are tried for one token
)

// Keys are the keys of one issuer. Run fetches them in the background. If a fetch fails, the known keys stay valid.
//
// A token with an unknown key makes Run fetch at once, because issuers rotate keys, some under the same id. All such
// tokens wait for the same fetch. If it brings no new key, the next such fetch is at least a minute later.
type Keys struct {
	// Static after construction.
	issuer string
	url    string           // of the key set; "": discovered
	file   *secretfile.File // with the key set; nil: at a URL
	client *http.Client
	log    *slog.Logger
	wanted chan struct{} // holds one: fetch at once; never closed

	// Owned by Run.
	at       string // the discovered URL of the keys
	failures int    // since the last success

	mu     sync.Mutex // guards the fields below
	set    []*PublicKey
	over   bool          // Withdraw was called
	known  bool          // a set was fetched, which may be empty
	ended  int           // how many fetches have ended
	ending bool          // Run has ended
	coming chan struct{} // closed when the fetch that is wanted or in progress ends; nil if there is none
	missed time.Time     // when a token last caused a fetch without result
}

// NewKeys returns the keys of an issuer, which Run will fetch: from a file with a JWK set, or from a URL. If both are
// empty, the URL is in the issuer's metadata (RFC 8414 or OpenID Connect Discovery).
func NewKeys(issuer, url, file string, log *slog.Logger) *Keys {
	k := &Keys{
		issuer: issuer, url: url, log: log, client: newClient(), wanted: make(chan struct{}, 1), coming: make(chan struct{}),
	}
	if file != "" {
		k.file = &secretfile.File{Path: file}
	}
	return k
}

// A PublicKey verifies the signatures of an issuer.
type PublicKey struct {
	id    string // its kid; "" if it has none
	alg   jose.SignatureAlgorithm
	key   crypto.PublicKey
	print [32]byte // of key

	good     context.Context
	withdraw context.CancelFunc
}

// Good returns a ctx that is done when the key is withdrawn: its signatures are no longer valid.
func (k *PublicKey) Good() context.Context { return k.good }

// A header is what we read of a JOSE header.
type header struct {
	Algorithm jose.SignatureAlgorithm `json:"alg"`
	KeyID     string                  `json:"kid"`
	Type      string                  `json:"typ"`
	Critical  json.RawMessage         `json:"crit"`
	Plain     json.RawMessage         `json:"b64"`
}

// fits reports whether a token with this header can be signed with k.
func (k *PublicKey) fits(h header) bool {
	return (h.KeyID == "" || h.KeyID == k.id) && (k.alg == "" || k.alg == h.Algorithm) && fits(k.key, h.Algorithm)
}

// Run fetches the keys at once, and then again and again until ctx ends.
func (k *Keys) Run(ctx context.Context) {
	defer k.end()
	for ctx.Err() == nil {
		k.refresh(ctx)
		timer := time.NewTimer(k.pause())
		select {
		case <-timer.C:
		case <-k.wanted:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// refresh fetches the keys. It logs the first failure, and the first success after failures.
func (k *Keys) refresh(ctx context.Context) {
	k.begin()
	fetching, cancel := context.WithTimeout(ctx, fetchTime)
	set, err := k.fetch(fetching)
	cancel()
	log := k.log.With("issuer", k.issuer)
	switch {
	case ctx.Err() != nil: // we are stopping
	case err != nil && k.failures == 0:
		log.Error("cannot read the keys of an issuer; using the known ones", "known", len(k.current()), "err", err)
	case err == nil && k.failures > 0:
		log.Info("the keys of an issuer can be read again")
	}
	if k.failures++; err == nil {
		k.failures = 0
	}
	k.adopt(set, err == nil)
}

// pause returns how long to wait after a fetch. It grows to a minute after failures. It is random, so that programs do
// not all fetch at the same time.
func (k *Keys) pause() time.Duration {
	every := refreshEvery
	if k.file != nil {
		every = lookEvery
	}
	if k.failures > 0 {
		every = min(every, time.Second<<min(k.failures-1, 6), time.Minute)
	}
	return every - rand.N(every/10)
}

func (k *Keys) current() []*PublicKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.set
}

// begin notes that a fetch begins.
func (k *Keys) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.coming == nil {
		k.coming = make(chan struct{})
	}
	select {
	case <-k.wanted: // by this fetch
	default:
	}
}

// adopt ends a fetch. A known key keeps its PublicKey, so that its tokens need not be verified again.
func (k *Keys) adopt(set []*PublicKey, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ok && !k.over {
		old := k.set
		k.set, k.known = nil, true
		for _, key := range set {
			known := key.among(old)
			k.set = append(k.set, cmp.Or(known, key))
			if known == nil {
				k.missed = time.Time{} // the next rotation may follow soon
			}
		}
		for _, key := range old {
			if key.among(k.set) == nil {
				key.withdraw()
			}
		}
	}
	k.ended++
	close(k.coming)
	k.coming = nil
}

// Withdraw withdraws all keys: the issuer is no longer trusted.
func (k *Keys) Withdraw() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.set {
		key.withdraw()
	}
	k.set, k.over = nil, true
}

// among returns the key of a set that equals k, nil if there is none.
func (k *PublicKey) among(set []*PublicKey) *PublicKey {
	for _, other := range set {
		if other.id == k.id && other.alg == k.alg && other.print == k.print {
			return other
		}
	}
	return nil
}

func (k *Keys) end() {
	k.client.CloseIdleConnections()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ending = true
	if k.coming != nil {
		close(k.coming)
		k.coming = nil
	}
}

// ErrUnavailable means that the keys of a token's issuer could not be fetched so far. The token may be valid.
var ErrUnavailable = errors.New("the keys of the token's issuer are unknown")

// find returns the keys that may have signed a token, and how many fetches had ended then. It fails with
// [ErrUnavailable] if no set was fetched yet.
func (k *Keys) find(h header) (found []*PublicKey, ended int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known && k.coming == nil {
		return nil, 0, ErrUnavailable
	}
	for _, key := range k.set {
		if key.fits(h) && len(found) < maxTried {
			found = append(found, key)
		}
	}
	return found, k.ended, nil
}

// miss notes a token that none of the keys has signed that were known when so many fetches had ended. It returns a
// channel that is closed when a fetch ends, to look again then. It returns nil if such a token may not cause a fetch
// now.
func (k *Keys) miss(ended int) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ended != ended { // A fetch now would bring no new key, and delay that for the next rotation.
		again := make(chan struct{})
		close(again)
		return again
	}
	if k.coming != nil || k.ending || time.Since(k.missed) < missEvery {
		return k.coming
	}
	k.missed = time.Now()
	k.coming = make(chan struct{})
	k.wanted <- struct{}{} // there is room: begin or Run has taken the last one
	return k.coming
}
