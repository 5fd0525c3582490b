package policy

import (
	"fmt"
	"math"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// Servers mostly do not answer a cancelled request, and nobody knows how long they work on it. So it counts for
// abandonedTime against a multiple of limits.inFlight.
const (
	abandonedTime = 30 * time.Second
	abandonedRoom = 4     // times limits.inFlight, for open and abandoned requests together
	maxUsages     = 16384 // principals with a usage at one time; more are refused
	leastBurst    = 10    // requests that a principal may send at once, however low its rate is
)

// A usage is what one principal uses, over all its tokens and connections. It is dropped when nothing of it is open
// and its bucket is full.
type usage struct {
	bucket    *rate.Limiter // nil if its rate was never limited
	open      int           // requests in flight
	abandoned map[*Use]bool // cancelled requests that may still be running
	expires   time.Time     // when the first of these stops counting
	sessions  int
	told      time.Time // when a refusal was last logged
}

// A Use is one request that counts for its principal, open until Abandon or End. A nil Use counts nothing.
type Use struct {
	all   *Policies
	who   *usage
	until time.Time // of an abandoned request; zero for any other. Guarded by Policies.mu
	over  bool      // likewise: it no longer counts
}

// Abandon notes that nobody waits for the answer any more, and that a server may still work on the request. It then
// counts apart from open requests until End, but not for long.
func (u *Use) Abandon() {
	if u == nil {
		return
	}
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
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

// End notes that nobody works on the request any more. It may be called repeatedly.
func (u *Use) End() {
	if u == nil {
		return
	}
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
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

// Over reports whether the request no longer counts.
func (u *Use) Over() bool {
	u.all.mu.Lock()
	defer u.all.mu.Unlock()
	return u.over || !u.until.IsZero() && !u.until.After(time.Now())
}

// Begin counts a request. If it is over a limit, Begin returns why, and when to try again. Otherwise the caller ends
// the Use, which is nil if nothing is counted.
func (g *Grant) Begin() (*Use, *identity.Refusal) {
	if g == nil || g.rule.Limits.Rate == 0 && g.rule.Limits.InFlight == 0 {
		return nil, nil
	}
	p, l := g.all, g.rule.Limits
	p.mu.Lock()
	defer p.mu.Unlock()
	u, now := p.usageLocked(g.Who.Principal), time.Now()
	if u == nil {
		return nil, tooMany("too many clients", time.Second)
	}
	if l.InFlight > 0 {
		if full := u.fullLocked(now, l.InFlight); full != nil {
			return nil, u.logLocked(now, full)
		}
	}
	if wait := u.takeLocked(now, l.Rate); wait > 0 {
		return nil, u.logLocked(now, tooMany("too many requests", wait))
	}
	if l.InFlight == 0 {
		return nil, nil
	}
	u.open++
	return &Use{all: p, who: u}, nil
}

// Notify counts a notification, which takes from the rate as a request does. It returns why it is over the limit, nil
// if it is not.
func (g *Grant) Notify() *identity.Refusal {
	if g == nil || g.rule.Limits.Rate == 0 {
		return nil
	}
	p := g.all
	p.mu.Lock()
	defer p.mu.Unlock()
	u, now := p.usageLocked(g.Who.Principal), time.Now()
	if u == nil {
		return tooMany("too many clients", time.Second)
	}
	if wait := u.takeLocked(now, g.rule.Limits.Rate); wait > 0 {
		return u.logLocked(now, tooMany("too many notifications", wait))
	}
	return nil
}

// Admit counts a session. Exactly one of the results is nil. leave is called once, when the session ends. A client
// that no rule matches is refused.
func (p *Policies) Admit(who *identity.Identity) (leave func(), refusal *identity.Refusal) {
	g := p.For(who)
	switch {
	case g == nil:
		return func() {}, nil
	case g.rule == nothing:
		return nil, &identity.Refusal{Status: http.StatusForbidden, Text: "no policy matches this client"}
	case g.rule.Limits.Sessions == 0:
		return func() {}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.usageLocked(who.Principal)
	if u == nil || u.sessions >= g.rule.Limits.Sessions {
		return nil, tooMany("too many sessions", time.Second)
	}
	u.sessions++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		u.sessions--
	}, nil
}

// tooMany refuses what is over a limit for now.
func tooMany(what string, after time.Duration) *identity.Refusal {
	text := fmt.Sprintf("%s: try again in %d s", what, int(math.Ceil(after.Seconds())))
	return &identity.Refusal{Status: http.StatusTooManyRequests, RetryAfter: after, Text: text}
}

// fullLocked returns why one more request is over the limit, nil if it is not.
func (u *usage) fullLocked(now time.Time, most int) *identity.Refusal {
	if u.open >= most {
		return tooMany("too many requests in flight", time.Second)
	}
	if u.open+len(u.abandoned) < abandonedRoom*most {
		return nil
	}
	if u.expireLocked(now); u.open+len(u.abandoned) < abandonedRoom*most {
		return nil
	}
	return tooMany("too many cancelled requests that may still be running", u.expires.Sub(now))
}

// expireLocked ends requests that were abandoned abandonedTime ago.
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

// usageLocked returns the usage of a principal, nil if there are too many.
func (p *Policies) usageLocked(who identity.Principal) *usage {
	if u := p.usage[who]; u != nil {
		return u
	}
	if len(p.usage) >= max(p.sweep, 64) || len(p.usage) >= maxUsages {
		p.forgetLocked(time.Now())
		p.sweep = min(2*len(p.usage), maxUsages)
	}
	if len(p.usage) >= maxUsages {
		return nil
	}
	if p.usage == nil {
		p.usage = make(map[identity.Principal]*usage)
	}
	u := new(usage)
	p.usage[who] = u
	return u
}

// forgetLocked drops expired usages.
func (p *Policies) forgetLocked(now time.Time) {
	for who, u := range p.usage {
		full := u.bucket == nil || u.bucket.TokensAt(now) >= float64(u.bucket.Burst())
		u.expireLocked(now)
		if u.open == 0 && len(u.abandoned) == 0 && u.sessions == 0 && full {
			delete(p.usage, who)
		}
	}
}

// takeLocked takes a request out of the bucket, or returns how long to wait for one. A rate of zero has no bucket.
func (u *usage) takeLocked(now time.Time, perSecond float64) (wait time.Duration) {
	if perSecond == 0 {
		return 0
	}
	limit, burst := rate.Limit(perSecond), max(int(math.Ceil(perSecond)), leastBurst)
	switch {
	case u.bucket == nil:
		u.bucket = rate.NewLimiter(limit, burst)
	case u.bucket.Limit() != limit: // another rule matches the principal now
		u.bucket.SetLimitAt(now, limit)
		u.bucket.SetBurstAt(now, burst)
	}
	r := u.bucket.ReserveN(now, 1)
	if wait = r.DelayFrom(now); wait > 0 {
		r.CancelAt(now)
	}
	return wait
}

// logLocked marks a refusal to be logged, once a minute.
func (u *usage) logLocked(now time.Time, why *identity.Refusal) *identity.Refusal {
	if why.Log = u.told.IsZero() || now.Sub(u.told) >= time.Minute; why.Log {
		u.told = now
	}
	return why
}
