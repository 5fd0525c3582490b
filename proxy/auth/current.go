package auth

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// Current authenticates clients by the [Clients] of the current configuration. What a client has opened ends with its
// proof: when its static token is replaced or withdrawn, when its issuer withdraws the key or is removed, or when a new
// configuration needs a token.
//
// [Current.Run] runs one goroutine, and one for each issuer.
type Current struct {
	mu        sync.Mutex // guards the fields below
	clients   *Clients
	tokenless proof         // of clients that needed no token
	replaced  chan struct{} // closed by the next Replace
}

// NewCurrent returns a Current that uses c; nil needs no credentials.
func NewCurrent(c *Clients) *Current {
	now := &Current{tokenless: newProof(), replaced: make(chan struct{})}
	now.Replace(c)
	return now
}

// Replace makes c current. Tokens and issuers that it shares with the Clients before stay as they are. A nil c needs no
// credentials.
func (now *Current) Replace(c *Clients) {
	if c == nil {
		c = new(Clients)
	}
	var dropped []*Token
	defer func() { // without the lock, because one of them may be being read
		for _, t := range dropped {
			t.withdraw()
		}
	}()
	now.mu.Lock()
	defer now.mu.Unlock()
	before := now.clients
	if before == nil {
		before = new(Clients)
	}
	now.clients = c
	for _, t := range before.Tokens {
		if !slices.Contains(c.Tokens, t) {
			dropped = append(dropped, t)
		}
	}
	for _, i := range before.Issuers {
		if !slices.Contains(c.Issuers, i) {
			i.Keys.Withdraw()
		}
	}
	if before.asksToken() != c.asksToken() {
		now.tokenless.withdraw()
		now.tokenless = newProof()
	}
	close(now.replaced)
	now.replaced = make(chan struct{})
}

func (now *Current) current() *Clients {
	now.mu.Lock()
	defer now.mu.Unlock()
	return now.clients
}

// lookEvery is the period of looks at static tokens: it ends what was opened with a replaced token, even without
// requests.
const lookEvery = 5 * time.Second

// Run fetches the keys of issuers, and looks at static tokens, until ctx ends.
func (now *Current) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	running := make(map[*jwt.Issuer]context.CancelFunc)
	defer func() {
		for _, stop := range running {
			stop()
		}
	}()
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		now.mu.Lock()
		c, replaced := now.clients, now.replaced
		now.mu.Unlock()
		for i, stop := range running {
			if !slices.Contains(c.Issuers, i) {
				stop()
				delete(running, i)
			}
		}
		for _, i := range c.Issuers {
			if running[i] == nil {
				fetching, stop := context.WithCancel(ctx)
				running[i] = stop
				wg.Go(func() { i.Keys.Run(fetching) })
			}
		}
		for _, t := range c.Tokens {
			t.look()
		}
		timer.Reset(lookEvery)
		var look <-chan time.Time // never, without tokens
		if len(c.Tokens) > 0 {
			look = timer.C
		}
		select {
		case <-look:
		case <-replaced:
		case <-ctx.Done():
			return
		}
	}
}

// Asks reports whether clients need credentials.
func (now *Current) Asks() bool { return now.current().asks() }

// Identify returns the identity of the sender of r. It may wait for the keys of an issuer.
func (now *Current) Identify(r *http.Request) (*identity.Identity, *identity.Refusal) {
	if c := now.current(); c.asks() {
		return c.Identify(r)
	}
	return identity.Unasked(r.Context())
}

// Good returns a ctx that is done when a client's proof ends; nil if only its Expires ends it.
func (now *Current) Good(who *identity.Identity) context.Context {
	if who.Kind == identity.Token { // without the lock, because a token may be being read
		for _, t := range now.current().Tokens {
			if good := t.good(who); good != nil {
				return good
			}
		}
		return withdrawn
	}
	now.mu.Lock()
	defer now.mu.Unlock()
	switch who.Kind {
	case identity.JWT:
		if who.Good == nil { // we have not verified it
			return withdrawn
		}
		return who.Good
	case identity.Anonymous, identity.User:
		if now.clients.asksToken() {
			return withdrawn
		}
		return now.tokenless.good
	case identity.Certificate: // which another replica may have verified
		if !now.clients.Certificates {
			return withdrawn
		}
	}
	return nil
}

// Challenge is [Clients.Challenge] of the current Clients.
func (now *Current) Challenge(r *http.Request, why *identity.Refusal) string {
	return now.current().Challenge(r, why)
}

// Proofs is [Clients.Proofs] of the current Clients.
func (now *Current) Proofs() identity.Proofs { return now.current().Proofs() }

// Root is [Clients.Root] of the current Clients.
func (now *Current) Root(r *http.Request) string { return now.current().Root(r) }

// Metadata is [Clients.Metadata] of the current Clients.
func (now *Current) Metadata(r *http.Request) ([]byte, bool) { return now.current().Metadata(r) }
