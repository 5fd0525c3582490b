package jwt

import (
	"cmp"
	"context"
	"crypto"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

const (
	// refreshEvery is how long a key is good for after its issuer has withdrawn it.
	refreshEvery = 5 * time.Minute

	// lookEvery is how often a file of keys is looked at.
	lookEvery = 5 * time.Second

	// missEvery is how often a token may cost a fetch, since anybody can make up tokens.
	missEvery = time.Minute

	// fetchTime bounds all requests of one fetch together.
	fetchTime = 10 * time.Second
)

// A Source says where the keys of an issuer are.
type Source struct {
	Issuer string // its metadata says where (RFC 8414 or OpenID Connect Discovery),
	URL    string // unless this does,
	File   string // or this is the file with them, a JWK set
}

// Keys are those of one issuer. Run fetches them, in the background. While that fails, the
// keys that are known stay good.
//
// A token with a key that nobody knows makes Run fetch at once, since issuers rotate keys,
// some under the same id. All such tokens wait for the same fetch. If that brings no new
// key, the next one may come after a minute, whoever asks.
type Keys struct {
	// Static after construction.
	source Source
	file   *secretfile.File // nil unless source has a File
	client *http.Client
	log    *slog.Logger
	wanted chan struct{} // holds one: a fetch is wanted at once; never closed

	// Owned by Run.
	at       string // where the keys are, if that was discovered
	failures int    // since the last success

	mu     sync.Mutex // guards the fields below
	set    []*PublicKey
	known  bool          // there was a set, and it may be empty
	ending bool          // Run has ended
	coming chan struct{} // closed when the fetch that is wanted or under way has ended; nil when there is none
	missed time.Time     // when a token last made Run fetch in vain
}

// NewKeys returns keys that Run has yet to fetch.
func NewKeys(s Source, log *slog.Logger) *Keys {
	k := &Keys{source: s, log: log, wanted: make(chan struct{}, 1), coming: make(chan struct{})}
	if s.File != "" {
		k.file = &secretfile.File{Path: s.File}
	}
	k.client = newClient()
	return k
}

// A PublicKey is one that an issuer signs with.
type PublicKey struct {
	id    string // its kid; "" if it has none
	alg   jose.SignatureAlgorithm
	key   crypto.PublicKey
	print [32]byte // of key
	gone  atomic.Bool
}

// Gone reports whether the issuer has withdrawn the key. What it has signed is not good any
// more.
func (k *PublicKey) Gone() bool { return k.gone.Load() }

// fits reports whether a token with these headers can be signed with k.
func (k *PublicKey) fits(h header) bool {
	return (h.KeyID == "" || h.KeyID == k.id) && (k.alg == "" || k.alg == h.Algorithm) && fits(k.key, h.Algorithm)
}

// Run fetches the keys, first at once and then again and again, until ctx ends.
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

// refresh makes the set what the issuer says. One line in the log says when that begins to
// fail and one when it is over.
func (k *Keys) refresh(ctx context.Context) {
	k.begin()
	fetching, cancel := context.WithTimeout(ctx, fetchTime)
	set, err := k.fetch(fetching)
	cancel()
	log := k.log.With("issuer", k.source.Issuer)
	switch {
	case ctx.Err() != nil: // it failed for that
	case err != nil && k.failures == 0:
		log.Error("keys of an issuer cannot be read, those that are known stay good", "known", len(k.current()), "err", err)
	case err == nil && k.failures > 0:
		log.Info("keys of an issuer can be read again")
	}
	if k.failures++; err == nil {
		k.failures = 0
	}
	k.adopt(set, err == nil)
}

// pause returns how long to wait after a fetch. After failures it grows to a minute; several
// programs do not ask all at the same time.
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

// begin says that a fetch is under way.
func (k *Keys) begin() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.coming == nil {
		k.coming = make(chan struct{})
	}
	select {
	case <-k.wanted: // this fetch will do
	default:
	}
}

// adopt ends a fetch. A key that was known before stays the same key, so that tokens it has
// signed need not be verified again.
func (k *Keys) adopt(set []*PublicKey, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ok {
		old := k.set
		k.set, k.known = nil, true
		for _, key := range set {
			known := key.among(old)
			k.set = append(k.set, cmp.Or(known, key))
			if known == nil {
				k.missed = time.Time{} // it was worth it, and the next rotation may follow soon
			}
		}
		for _, key := range old {
			if key.among(k.set) == nil {
				key.gone.Store(true)
			}
		}
	}
	close(k.coming)
	k.coming = nil
}

// among returns the key of a set that is equal to k, nil if there is none.
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

// maxTried bounds how many keys are tried for one token.
const maxTried = 8

// find returns the keys with which a token may be signed. The error is [ErrUnavailable]:
// there was no set of keys so far.
func (k *Keys) find(h header) (found []*PublicKey, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known && k.coming == nil {
		return nil, ErrUnavailable
	}
	for _, key := range k.set {
		if key.fits(h) && len(found) < maxTried {
			found = append(found, key)
		}
	}
	return found, nil
}

// miss is for a token that no known key has signed. It returns what to wait for before it makes
// sense to look again: the end of a fetch. Nil says that none may come for such a token now.
func (k *Keys) miss() <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.coming != nil || k.ending || time.Since(k.missed) < missEvery {
		return k.coming
	}
	k.missed = time.Now()
	k.coming = make(chan struct{})
	k.wanted <- struct{}{} // there is room: begin has taken what was there, or Run
	return k.coming
}
