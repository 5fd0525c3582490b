package policy

import (
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// usages are what principals use, of those that have limits.
type usages struct {
	mu    sync.Mutex // guards the fields below, and each usage
	of    map[identity.Principal]*usage
	sweep int // when so many are known, those that say nothing any more are forgotten
}

// A usage is what one principal uses, whatever tokens and connections it has. It is
// forgotten when nothing of it is open and its bucket is full again.
type usage struct {
	bucket    *rate.Limiter // nil if its rate was never limited
	open      int           // requests that are not over
	abandoned map[*Use]bool // of requests that are over, and that servers may still work on
	expires   time.Time     // when the first of these counts no more
	sessions  int
	told      time.Time // when a refusal was last logged
}

// Servers mostly do not answer a request that was cancelled, and nobody knows how long they
// work on it. So it counts for a while, against a multiple of limits.inFlight.
const (
	abandonedTime = 30 * time.Second
	abandonedRoom = 4 // times limits.inFlight, for open and abandoned requests together
)

// A Use is one request that is counted for its principal, open until Abandon or End. A nil Use
// counts nothing.
type Use struct {
	of    *usages
	who   *usage
	until time.Time // of an abandoned one; zero for any other. Guarded by usages.mu
	over  bool      // likewise: it counts no more
}

// Abandon says that nobody waits for the answer any more, and that a server may still work on
// it. The request goes on to count, apart from open ones, until End, but not for long.
func (u *Use) Abandon() {
	if u == nil {
		return
	}
	u.of.mu.Lock()
	defer u.of.mu.Unlock()
	if u.over || !u.until.IsZero() {
		return
	}
	u.who.open--
	u.until = time.Now().Add(abandonedTime)
	if len(u.who.abandoned) == 0 {
		u.who.abandoned, u.who.expires = make(map[*Use]bool), u.until
	}
	u.who.abandoned[u] = true
}

// End says that nobody works on the request any more. It may be called repeatedly.
func (u *Use) End() {
	if u == nil {
		return
	}
	u.of.mu.Lock()
	defer u.of.mu.Unlock()
	u.endLocked()
}

func (u *Use) endLocked() {
	switch {
	case u.over:
	case u.until.IsZero():
		u.who.open--
	default:
		delete(u.who.abandoned, u)
	}
	u.over = true
}

// Over reports whether the request counts no more.
func (u *Use) Over() bool {
	u.of.mu.Lock()
	defer u.of.mu.Unlock()
	return u.over || !u.until.IsZero() && !u.until.After(time.Now())
}

// maxUsages bounds the principals that are busy at one time. More are refused.
const maxUsages = 16384

// leastBurst is how many requests a principal may make at once, however low its rate is: a
// client begins with some.
const leastBurst = 10

// A Refused is why a principal may not do something now. The refusal is for the client.
// Tell reports whether it is worth a line in the log: one a minute is.
type Refused struct {
	*identity.Refusal
	Tell bool
}

// Begin counts a request that begins. If there is no room for it, it says why, and after
// which time it makes sense to try again. Else whoever began it ends its Use, which is nil if
// nothing is counted.
func (g *Grant) Begin() (*Use, *Refused) {
	if g == nil || g.rule.Limits.Rate == 0 && g.rule.Limits.InFlight == 0 {
		return nil, nil
	}
	return g.all.usage.begin(g.Who.Principal, g.rule.Limits)
}

// Notify counts a notification, which takes from the rate as a request does. It returns why
// there is no room for it, nil if there is.
func (g *Grant) Notify() *Refused {
	if g == nil || g.rule.Limits.Rate == 0 {
		return nil
	}
	return g.all.usage.notify(g.Who.Principal, g.rule.Limits)
}

// Admit counts a session that is about to begin. Exactly one of the results is nil: leave
// is called once, when the session is over. Who matches no rule has none.
func (p *Policies) Admit(who *identity.Identity) (leave func(), refusal *identity.Refusal) {
	g := p.For(who)
	switch {
	case g == nil:
		return func() {}, nil
	case g.rule == nothing:
		return nil, &identity.Refusal{Status: http.StatusForbidden, Text: "no policy is about this client"}
	case g.rule.Limits.Sessions == 0:
		return func() {}, nil
	}
	return p.usage.admit(who.Principal, g.rule.Limits.Sessions)
}

func (us *usages) begin(who identity.Principal, l Limits) (*Use, *Refused) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u, now := us.getLocked(who), time.Now()
	if u == nil {
		return nil, tooMany()
	}
	if l.InFlight > 0 {
		if full := u.fullLocked(now, l.InFlight); full != nil {
			return nil, &Refused{full, u.tellLocked(now)}
		}
	}
	if wait := u.takeLocked(now, l.Rate); wait > 0 {
		return nil, &Refused{busy("too many requests", wait), u.tellLocked(now)}
	}
	if l.InFlight == 0 {
		return nil, nil
	}
	u.open++
	return &Use{of: us, who: u}, nil
}

func (us *usages) notify(who identity.Principal, l Limits) *Refused {
	us.mu.Lock()
	defer us.mu.Unlock()
	u, now := us.getLocked(who), time.Now()
	if u == nil {
		return tooMany()
	}
	if wait := u.takeLocked(now, l.Rate); wait > 0 {
		return &Refused{busy("too many notifications", wait), u.tellLocked(now)}
	}
	return nil
}

// tooMany refuses who is one principal too many.
func tooMany() *Refused { return &Refused{busy("too many clients", time.Second), false} }

// fullLocked returns why there is no room for one more request, nil if there is.
func (u *usage) fullLocked(now time.Time, most int) *identity.Refusal {
	if u.open >= most {
		return busy("too many requests in flight", time.Second)
	}
	if u.open+len(u.abandoned) < abandonedRoom*most {
		return nil
	}
	if u.expireLocked(now); u.open+len(u.abandoned) < abandonedRoom*most {
		return nil
	}
	return busy("too many cancelled requests that servers may still work on", u.expires.Sub(now))
}

// expireLocked ends what was abandoned long ago.
func (u *usage) expireLocked(now time.Time) {
	if len(u.abandoned) == 0 || u.expires.After(now) {
		return
	}
	u.expires = now.Add(abandonedTime)
	for a := range u.abandoned {
		if !a.until.After(now) {
			a.endLocked()
		} else if a.until.Before(u.expires) {
			u.expires = a.until
		}
	}
}

func (us *usages) admit(who identity.Principal, most int) (leave func(), refusal *identity.Refusal) {
	us.mu.Lock()
	defer us.mu.Unlock()
	u := us.getLocked(who)
	if u == nil || u.sessions >= most {
		return nil, busy("too many sessions", time.Second)
	}
	u.sessions++
	return func() {
		us.mu.Lock()
		defer us.mu.Unlock()
		u.sessions--
	}, nil
}

// busy is what a client hears for which there is no room now.
func busy(what string, after time.Duration) *identity.Refusal {
	seconds := int(math.Ceil(after.Seconds()))
	return &identity.Refusal{Status: http.StatusTooManyRequests, RetryAfter: after, Text: fmt.Sprintf("%s: try again in %d s", what, seconds)}
}

// getLocked returns the usage of a principal; nil if too many are busy.
func (us *usages) getLocked(who identity.Principal) *usage {
	if u := us.of[who]; u != nil {
		return u
	}
	if len(us.of) >= max(us.sweep, 64) || len(us.of) >= maxUsages {
		us.forgetLocked(time.Now())
		us.sweep = min(2*len(us.of), maxUsages)
	}
	if len(us.of) >= maxUsages {
		return nil
	}
	if us.of == nil {
		us.of = make(map[identity.Principal]*usage)
	}
	u := new(usage)
	us.of[who] = u
	return u
}

func (us *usages) forgetLocked(now time.Time) {
	for who, u := range us.of {
		full := u.bucket == nil || u.bucket.TokensAt(now) >= float64(u.bucket.Burst())
		u.expireLocked(now)
		if u.open == 0 && len(u.abandoned) == 0 && u.sessions == 0 && full {
			delete(us.of, who)
		}
	}
}

// takeLocked takes one request out of the bucket. If there is none it returns how long to
// wait for one. A rate of zero has no bucket.
func (u *usage) takeLocked(now time.Time, perSecond float64) (wait time.Duration) {
	if perSecond == 0 {
		return 0
	}
	limit, burst := rate.Limit(perSecond), max(int(math.Ceil(perSecond)), leastBurst)
	switch {
	case u.bucket == nil:
		u.bucket = rate.NewLimiter(limit, burst)
	case u.bucket.Limit() != limit: // another rule is about the principal now
		u.bucket.SetLimitAt(now, limit)
		u.bucket.SetBurstAt(now, burst)
	}
	r := u.bucket.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// tellLocked reports whether a refusal is worth a line in the log.
func (u *usage) tellLocked(now time.Time) bool {
	if !u.told.IsZero() && now.Sub(u.told) < time.Minute {
		return false
	}
	u.told = now
	return true
}
