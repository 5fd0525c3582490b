package auth

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

const (
	// rememberFor is how long a verified token is not verified again. What an issuer has
	// changed, other than a key, goes for old clients after that.
	rememberFor = 5 * time.Minute

	// maxRemembered bounds how many tokens are remembered: only those that an issuer has
	// signed for us. When it is reached any is forgotten, and costs a verification.
	maxRemembered = 4096
)

// A tokenCache holds who has which token, by hash, since a signature takes much longer to
// verify.
type tokenCache struct {
	mu  sync.RWMutex // guards all
	all map[[sha256.Size]byte]*cachedToken
}

// A cachedToken is a token that was good.
type cachedToken struct {
	who   *identity.Identity
	key   *jwt.PublicKey // with which it is good
	until time.Time
	only  string // the resource that it is for; "" for all
}

// get returns who has a token; nil if it must be verified.
func (m *tokenCache) get(sum [sha256.Size]byte, public string, r *http.Request) *identity.Identity {
	m.mu.RLock()
	found := m.all[sum]
	m.mu.RUnlock()
	if found == nil || found.key.Gone() || !time.Now().Before(found.until) {
		return nil
	}
	if found.only != "" {
		if path, ok := strings.CutPrefix(found.only, public); !ok || path != resourcePath(r.URL.Path) {
			return nil
		}
	}
	return found.who
}

func (m *tokenCache) put(sum [sha256.Size]byte, one *cachedToken) {
	if limit := time.Now().Add(rememberFor); one.until.After(limit) {
		one.until = limit
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = make(map[[sha256.Size]byte]*cachedToken)
	}
	for old := range m.all {
		if len(m.all) < maxRemembered {
			break
		}
		delete(m.all, old)
	}
	m.all[sum] = one
}
