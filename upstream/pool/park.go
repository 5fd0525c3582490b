package pool

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

const (
	collectFor       = 25 * time.Millisecond  // questions that come together are asked together
	startFor         = 2 * time.Second        // servers ask for roots when they start, which says nothing of their calls
	startCollectFor  = 250 * time.Millisecond // a call that ends within this time was not what such a question is about
	maxParks         = 256                    // of one key on one upstream; beyond, see minPark, or questions are refused
	maxParkRounds    = 8                      // of one call; beyond, questions are refused
	maxCallQuestions = 64                     // of one call at once; beyond, they are refused
)

// What a server hears of a question that nobody is asked.
var (
	errNoCall = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "no call is in progress that the request could belong to"}

	errCannotAsk   = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the client cannot be asked during this request"}
	errNotNeeded   = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the call has ended"}
	errGone        = jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.CauseClientGone, jsonrpc.InFlight)
	errNoInput     = jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.CauseClientSilent, jsonrpc.InFlight)
	errTooManyAsks = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "too many questions"}
)

// An inquiry is a question: a request of a server that a client has to answer.
type inquiry struct {
	*peer.Request
	c   *bridged
	key string // in inputRequests
}

// A park is where a call waits whose client was told to come back with input. The
// requestState of each round names it: 128 random bits, that only clients of its key
// can use. Guarded by tenant.mu.
type park struct {
	t      *tenant
	state  string   // the newest
	call   *bridged // nil if the call begins anew when its client comes back
	round  byte     // that the newest state is of
	digest [32]byte
	since  time.Time     // that state was given
	expiry time.Time     // of it
	timer  *timers.Timer // until then
}

// newParkLocked returns a park; nil if there are too many.
func (t *tenant) newParkLocked(c *bridged, digest [32]byte) *park {
	if len(t.parks) >= maxParks {
		oldest := t.oldestParkLocked(func(*park) bool { return true })
		if oldest == nil {
			return nil
		}
		oldest.giveUpLocked()
	}
	p := &park{t: t, state: rand.Text(), call: c, digest: digest}
	t.parks[p.state] = p
	t.hold()
	return p
}

// stateLocked begins a round and returns its requestState.
func (p *park) stateLocked() string {
	delete(p.t.parks, p.state)
	p.state = rand.Text()
	p.t.parks[p.state] = p
	p.round++
	p.since = time.Now()
	p.expiry = p.since.Add(p.t.b.parkFor())
	p.timer.Stop()
	p.timer = p.t.after(p.t.b.parkFor(), p.expireLocked)
	return p.state
}

// forgetLocked ends a park, if that was not done before.
func (p *park) forgetLocked() {
	if p.t.parks[p.state] != p {
		return
	}
	p.timer.Stop()
	delete(p.t.parks, p.state)
	p.t.release()
}

// expireLocked ends a call whose client does not come back.
func (p *park) expireLocked() {
	switch {
	case p.t.parks[p.state] != p, time.Now().Before(p.expiry): // another round has begun
		return
	case p.call != nil && p.call.state != parked:
		return
	}
	p.endLocked(errNoInput)
}

// endLocked ends a park and the call in it, which nobody comes back to. The server
// hears why as the answer to what it asked.
func (p *park) endLocked(why *jsonrpc.Error) {
	p.forgetLocked()
	if c := p.call; c != nil {
		c.dropLocked(nil, why)
	}
}

// asked handles a request of the server.
func (l *lane) asked(r *peer.Request) {
	if r.Method == mcp.MethodPing {
		l.reply(r, &jsonrpc.Message{Result: noResult})
		return
	}
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	c, refusal := l.whoseLocked(r)
	if refusal == nil {
		refusal = c.refusesLocked(r.Message)
	}
	if refusal != nil {
		l.reply(r, failure(refusal))
		return
	}
	c.asked++
	q := &inquiry{r, c, keyOf(c.asked)}
	c.questions = append(c.questions, q)
	r.Assign(c, "", nil)
	r.OnCancel(func(*jsonrpc.Message, jsonrpc.Span) {
		l.t.mu.Lock()
		defer l.t.mu.Unlock()
		q.doneLocked()
	})
	if l.ofStart(r.Method) {
		c.collectLocked(startCollectFor)
	} else {
		c.collectLocked(collectFor)
	}
}

// reply answers a request of the server from here.
func (l *lane) reply(r *peer.Request, m *jsonrpc.Message) { replyIfRoom(l.server, r, m) }

// ofStart reports whether a request may be one that a server makes when it starts.
func (l *lane) ofStart(method string) bool {
	return method == mcp.MethodRootsList && time.Since(l.began) < startFor
}

// keyOf returns the key in inputRequests of the nth question of a call.
func keyOf(n int) string { return "q" + strconv.Itoa(n) }

// whoseLocked returns the call that a question belongs to. That must be certain, or
// it might be shown to somebody else. An upstream about whose questions it is not has
// a lane for each call from then on.
func (l *lane) whoseLocked(r *peer.Request) (*bridged, *jsonrpc.Error) {
	switch r.Method {
	case mcp.MethodRootsList, mcp.MethodSample, mcp.MethodElicit:
	default:
		return nil, jsonrpc.MethodNotFound(r.Method)
	}
	if !r.Message.Related.IsZero() && l.relates {
		if r.Of != nil {
			if c, ok := r.Of.Value.(*bridged); ok {
				return c, nil
			}
		}
		return nil, errNotNeeded
	}
	c, n := l.atWorkLocked()
	ofStart := l.ofStart(r.Method)
	switch {
	case n != 1 && ofStart, n == 0 && r.Method == mcp.MethodRootsList:
		return nil, jsonrpc.MethodNotFound(r.Method)
	case ofStart: // may be of the call, too
		return c, nil
	}
	if _, known := l.t.b.pool.asking.LoadOrStore(l.t.id.upstream, true); !known {
		l.log.Debug("upstream asks: each call of modern clients has a session of its own")
	}
	switch n {
	case 0:
		return nil, errNoCall
	case 1:
		return c, nil
	}
	l.ambiguousLocked(r.Method)
	return nil, errAmbiguous
}

// ambiguousLocked handles a question that cannot be attributed. If that is for parked
// calls alone, whose questions were put, the oldest gives way for the next.
func (l *lane) ambiguousLocked(method string) {
	level := slog.LevelDebug
	if !l.warned {
		level, l.warned = slog.LevelWarn, true
	}
	l.log.Log(context.Background(), level, "upstream asked something that cannot be attributed to one of its calls", "method", method)
	waits := 0
	for c := range l.calls {
		if mcp.MethodOf(c.method).Works && c.state == forwarded {
			waits++
		}
	}
	if waits > 1 {
		return
	}
	if p := l.t.oldestParkLocked(func(p *park) bool { return p.call != nil && p.call.lane == l }); p != nil {
		p.giveUpLocked()
	}
}

// atWorkLocked returns how many calls the server works on, and one of them.
func (l *lane) atWorkLocked() (one *bridged, n int) {
	for c := range l.calls {
		if mcp.MethodOf(c.method).Works {
			one = c
			n++
		}
	}
	return one, n
}

// refusesLocked returns why the client of a call cannot be asked something; nil if it
// can.
func (c *bridged) refusesLocked(m *jsonrpc.Message) *jsonrpc.Error {
	switch {
	case c.state == ghost:
		return errNotNeeded
	case !mcp.MethodOf(c.method).Asks:
		return errCannotAsk
	case len(c.questions) >= maxCallQuestions:
		return errTooManyAsks
	}
	return translate.AbilitiesOf(c.Capabilities).Refuses(m.Method, m.Params)
}

// collectLocked waits for what else is asked before the client hears of it.
func (c *bridged) collectLocked(d time.Duration) {
	if c.state == forwarded && c.collect == nil {
		c.collect = c.group.t.b.pool.timers.After(d, c.parkNow)
	}
}

// parkNow answers the client with what the server has asked.
func (c *bridged) parkNow() {
	digest := c.digestNow()
	t := c.group.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.state != forwarded || c.r == nil {
		return
	}
	c.collect = nil
	if len(c.questions) == 0 {
		return // they were taken back
	}
	if c.park == nil {
		c.park = t.newParkLocked(c, digest)
	}
	if c.park == nil || c.park.round >= maxParkRounds {
		c.refuseLocked(errTooManyAsks)
		return
	}
	requests := make([]jsonrpc.Value, 0, len(c.questions))
	for _, q := range c.questions {
		requests = append(requests, jsonrpc.Value{Key: q.key, Text: translate.InputRequest(q.Method, q.Message.Params)})
	}
	c.state = parked
	c.answerLocked(&jsonrpc.Message{Result: translate.InputRequired(jsonrpc.Set(nil, requests...), c.park.stateLocked(), c.serverInfo)})
	c.group.roomLocked()
}

// refuseLocked answers all questions of a call with an error.
func (c *bridged) refuseLocked(err *jsonrpc.Error) {
	for _, q := range c.questions {
		q.Fail(err)
	}
	c.questions = nil
}

// doneLocked forgets a question that is over.
func (q *inquiry) doneLocked() {
	q.c.questions = slices.DeleteFunc(q.c.questions, func(other *inquiry) bool { return other == q })
}
