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

// Current says who clients are by the [Clients] of the configuration that counts now. What
// a client has opened ends with its proof: when a static token is replaced or withdrawn,
// when its issuer is removed, or when tokens are asked for that were not before.
//
// Its one goroutine, and one for each issuer, are those of [Current.Run].
type Current struct {
	mu        sync.Mutex // guards the fields below
	clients   *Clients
	issuers   map[*jwt.Issuer]proof // those of clients
	tokenless proof                 // of all who were not asked for a token
	replaced  chan struct{}         // closed by the next Replace
}

// NewCurrent returns one that goes by c; nil asks for nothing.
func NewCurrent(c *Clients) *Current {
	now := &Current{tokenless: newProof(), replaced: make(chan struct{})}
	now.Replace(c)
	return now
}

// Replace makes c count from now on. Tokens and issuers that it shares with what counted
// before go on as they are; c is nil if nothing is asked for.
func (now *Current) Replace(c *Clients) {
	if c == nil {
		c = new(Clients)
	}
	var dropped []*Token
	defer func() { // without the lock: one of them may be being read
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
	issuers := make(map[*jwt.Issuer]proof)
	for _, i := range c.Issuers {
		known, ok := now.issuers[i]
		if !ok {
			known = newProof()
		}
		issuers[i] = known
	}
	for i, proof := range now.issuers {
		if _, ok := issuers[i]; !ok {
			proof.withdraw()
		}
	}
	now.issuers = issuers
	if before.asksToken() != c.asksToken() {
		now.tokenless.withdraw()
		now.tokenless = newProof()
	}
	close(now.replaced)
	now.replaced = make(chan struct{})
}

// Clients returns what counts now.
func (now *Current) Clients() *Clients {
	now.mu.Lock()
	defer now.mu.Unlock()
	return now.clients
}

// lookEvery is how often static tokens are looked at, so that what was opened with one
// that was replaced ends though nobody asks for anything.
const lookEvery = 5 * time.Second

// Run fetches the keys of issuers and looks at static tokens until ctx ends.
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
		var look <-chan time.Time // never, where there is nothing to look at
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

// Asks reports whether clients have to prove who they are.
func (now *Current) Asks() bool { return now.Clients().asks() }

// Identify says who has sent r. It may wait for the keys of an issuer.
func (now *Current) Identify(r *http.Request) (*identity.Identity, *identity.Refusal) {
	if c := now.Clients(); c.asks() {
		return c.Identify(r)
	}
	return identity.Unasked(r.Context())
}

// Good returns a ctx that is done when who may not go on with what it has opened; nil if
// nothing but its Expires says so.
func (now *Current) Good(who *identity.Identity) context.Context {
	if who.Kind == identity.Token { // without the lock: a token may be being read
		for _, t := range now.Clients().Tokens {
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
		for i, proof := range now.issuers {
			if i.Name == who.Issuer {
				return proof.good
			}
		}
		return withdrawn
	case identity.Anonymous, identity.User:
		if now.clients.asksToken() {
			return withdrawn
		}
		return now.tokenless.good
	}
	return nil
}

// Challenge is [Clients.Challenge] of what counts now.
func (now *Current) Challenge(r *http.Request, why *identity.Refusal) string {
	return now.Clients().Challenge(r, why)
}

// Metadata is [Clients.Metadata] of what counts now.
func (now *Current) Metadata(r *http.Request) ([]byte, bool) { return now.Clients().Metadata(r) }
