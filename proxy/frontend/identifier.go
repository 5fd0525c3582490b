package frontend

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// An Identifier identifies clients. It is called for each request, concurrently.
type Identifier interface {
	// Asks reports whether clients need credentials.
	Asks() bool

	// Identify returns the identity of the client of r, or why r is refused: exactly one is nil. It
	// does not answer r.
	Identify(r *http.Request) (*identity.Identity, *identity.Refusal)

	// Good returns a ctx that ends when a client's proof is withdrawn, so that what the client has
	// opened must end; nil if only its Expires ends it.
	Good(who *identity.Identity) context.Context

	// Challenge returns the WWW-Authenticate header (RFC 6750, section 3) for a response that
	// refuses r; "" for none. The refusal may come from a policy instead of Identify.
	Challenge(r *http.Request, why *identity.Refusal) string

	// Metadata returns the JSON document at a path at or below [identity.MetadataPath] (RFC 9728),
	// and false if there is none.
	Metadata(r *http.Request) ([]byte, bool)

	// Proofs returns how clients authenticate.
	Proofs() identity.Proofs

	// Root returns the URL of the path "/", without the slash, as the sender of r knows it.
	Root(r *http.Request) string
}

// noIdentifier is the Identifier that needs no credentials.
type noIdentifier struct{}

func (noIdentifier) Asks() bool { return false }

func (noIdentifier) Identify(r *http.Request) (*identity.Identity, *identity.Refusal) {
	return identity.Unasked(r.Context())
}

func (noIdentifier) Good(*identity.Identity) context.Context { return nil }

func (noIdentifier) Challenge(*http.Request, *identity.Refusal) string { return "" }

func (noIdentifier) Metadata(*http.Request) ([]byte, bool) { return nil, false }

func (noIdentifier) Proofs() identity.Proofs { return identity.Proofs{} }

func (noIdentifier) Root(r *http.Request) string { return "http://" + r.Host }

func (g *Guard) clients() Identifier {
	if g.Clients == nil {
		return noIdentifier{}
	}
	return g.Clients
}

// Refuse answers r with a refusal.
func (g *Guard) Refuse(w http.ResponseWriter, r *http.Request, why *identity.Refusal) {
	if g.Refused != nil {
		g.Refused(why)
	}
	err := invalidRequest(why.Text)
	switch why.Status {
	case http.StatusServiceUnavailable:
		err = overloaded("Service unavailable: " + why.Text)
	case http.StatusTooManyRequests:
		err = overloaded("Refused for now: " + why.Text)
	}
	g.writeRefused(w, r, why, jsonrpc.NewError(jsonrpc.ID{}, err).Text())
}

// writeRefused answers r with the status and the challenge of a refusal. body is the error.
func (g *Guard) writeRefused(w http.ResponseWriter, r *http.Request, why *identity.Refusal, body []byte) {
	if challenge := g.clients().Challenge(r, why); challenge != "" {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	switch why.Status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", retryAfter)
	case http.StatusTooManyRequests:
		w.Header().Set("Retry-After", strconv.FormatInt(max(1, int64((why.RetryAfter+time.Second-1)/time.Second)), 10))
	}
	writeJSON(w, why.Status, body)
}

// asksMetadata reports whether r asks for the metadata for authentication, which needs no
// credentials. If the proxy needs none anywhere, the path has no meaning.
func (g *Guard) asksMetadata(r *http.Request) bool {
	rest, ok := strings.CutPrefix(r.URL.Path, identity.MetadataPath)
	return ok && (rest == "" || rest[0] == '/') && g.clients().Asks()
}

// serveMetadata serves everybody with the right Host, and pages of any origin.
func (g *Guard) serveMetadata(w http.ResponseWriter, r *http.Request) {
	if g.Admit(w, r) != nil {
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		if text, ok := g.clients().Metadata(r); ok {
			writeJSON(w, http.StatusOK, text)
		} else {
			bound(w)
			http.NotFound(w, r)
		}
	case http.MethodOptions:
		h.Set("Access-Control-Allow-Methods", "GET, HEAD")
		h.Set("Access-Control-Allow-Headers", corsHeaders)
		h.Set("Access-Control-Max-Age", corsMaxAge)
		writeStatus(w, http.StatusNoContent)
	default:
		notAllowed(w, "GET, HEAD, OPTIONS")
	}
}

// errExpired and errWithdrawn are the causes when the proof of a client ends.
var (
	errExpired   = &jsonrpc.ClosedError{Cause: jsonrpc.CauseTokenExpired, Delivered: true}
	errWithdrawn = &jsonrpc.ClosedError{Cause: jsonrpc.CauseTokenWithdrawn, Delivered: true}
)

// expiryLook is the longest time between two looks at the wall clock, which says when a proof
// expires. It can jump ahead of all timers, as these stand still while the machine is suspended.
const expiryLook = 10 * time.Second

// whileGood returns a ctx for a stream of the client who. It also ends when the client's proof
// does, with the cause errExpired or errWithdrawn. It needs no goroutine.
func (g *Guard) whileGood(ctx context.Context, who *identity.Identity) (context.Context, context.CancelFunc) {
	good := g.clients().Good(who)
	if who.Expires.IsZero() && good == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	release := []func(){func() { cancel(context.Canceled) }}
	if good != nil {
		stop := context.AfterFunc(good, func() { cancel(errWithdrawn) })
		release = append(release, func() { stop() })
	}
	if !who.Expires.IsZero() {
		var timer *time.Timer
		timer = time.AfterFunc(orNever(0), func() { // not before timer is set
			switch left := time.Until(who.Expires); {
			case left <= 0:
				cancel(errExpired)
			case ctx.Err() == nil:
				timer.Reset(min(left, expiryLook))
			}
		})
		timer.Reset(min(time.Until(who.Expires), expiryLook))
		release = append(release, func() { timer.Stop() })
	}
	return ctx, func() {
		for _, fn := range release {
			fn()
		}
	}
}

// onEnd calls fn if the proof of who ends before ctx, and before stop is called.
func (g *Guard) onEnd(ctx context.Context, who *identity.Identity, fn func(why *jsonrpc.ClosedError)) (stop func()) {
	if who.Expires.IsZero() { // needs no other context, which each WebSocket would have
		stop := g.onWithdrawal(who, func() {
			if ctx.Err() == nil {
				fn(errWithdrawn)
			}
		})
		return func() { stop() }
	}
	good, release := g.whileGood(ctx, who)
	forgo := context.AfterFunc(good, func() {
		if why := proofEnd(good); why != nil {
			fn(why)
		}
	})
	return func() {
		forgo()
		release()
	}
}

// onWithdrawal calls fn when the proof of a client is withdrawn, unless stop was called before.
func (g *Guard) onWithdrawal(who *identity.Identity, fn func()) (stop func() bool) {
	good := g.clients().Good(who)
	if good == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(good, fn)
}

// proofEnd returns the cause if the end of a proof has ended ctx; else nil.
func proofEnd(ctx context.Context) *jsonrpc.ClosedError {
	switch context.Cause(ctx) {
	case errExpired:
		return errExpired
	case errWithdrawn:
		return errWithdrawn
	}
	return nil
}
