package pool

import (
	"bytes"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// modernIdle is how long a server of the modern era stays without a stream. Nothing
// is lost with it: it has no sessions.
const modernIdle = time.Minute

const causeIdle = "idle"

// A modernServer is what a shared has besides in the modern era, in which all
// streams of an upstream have one process or WebSocket, whoever they are: nothing
// there belongs to a connection, but for the requests in flight.
//
// Its first call is server/discover, as initialize is in the legacy era: what has
// to be sent waits until it is answered, so that a server which fails to start has
// received nothing. On trial, that is when it is not known whether the server
// speaks the era at all, the answer decides (era_probe.go).
type modernServer struct {
	// Static after construction.
	pinned  bool   // whatever answers is of this era
	misread func() // what was learned of the upstream's era is wrong
	log     *slog.Logger

	trial   atomic.Bool   // until it is decided, if it was ever in question
	decided chan struct{} // closed with the fields below set; only of a trial
	modern  bool
	told    bool  // by an answer
	err     error // it could not be told

	// Guarded by shared.mu.
	silence *timer // until server/discover is answered on trial; else nil
	idle    *timer // while there is no sharer
	retired bool   // no more sharers: it ends
	givenUp givenUp
}

func newModernServer(up Upstream, trial bool, log *slog.Logger) *modernServer {
	m := &modernServer{pinned: up.Modern, misread: up.Misread, log: log, decided: make(chan struct{})}
	m.trial.Store(trial)
	return m
}

// stopIdleLocked, with a legacy shared too, forgets that it was without sharers.
func (sh *shared) stopIdleLocked() {
	if sh.modern != nil {
		sh.modern.idle.stop()
		sh.modern.idle = nil
	}
}

// idleLocked lets a modern server end when it stays without sharers.
func (sh *shared) idleLocked() {
	if sh.modern == nil || sh.ended || sh.welcome == nil || len(sh.sharers) > 0 {
		return
	}
	sh.stopIdleLocked()
	sh.modern.idle = sh.timers.after(modernIdle, sh.idled)
}

func (sh *shared) idled() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if len(sh.sharers) == 0 {
		sh.retireLocked(causeIdle)
	}
}

func (sh *shared) endIdle() {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.modern != nil && sh.modern.idle != nil && len(sh.sharers) == 0 {
		sh.retireLocked(causeIdle)
	}
}

// retireLocked ends the session; whoever comes next gets another.
func (sh *shared) retireLocked(cause string) {
	sh.modern.retired = true
	if !sh.closing {
		sh.closing, sh.cause = true, cause
	}
	sh.wake.Broadcast()
}

// forwardModern passes on a call of a modern client. All of them go to the server:
// what it does not know it refuses itself.
func (s *sharer) forwardModern(c *sharedCall, m *jsonrpc.Message) {
	var in [1]jsonrpc.Span
	var at [2]jsonrpc.Span
	err := jsonrpc.Find(m.Params, jsonrpc.Span{}, in[:], "_meta")
	if err == nil && !in[0].IsZero() {
		err = jsonrpc.Find(m.Params, in[0], at[:], "progressToken", mcp.KeyLogLevel)
	}
	if err != nil {
		s.fail(c, jsonrpc.InvalidParams(err.Error()))
		return
	}
	if isNull(at[0].Of(m.Params)) {
		at[0] = jsonrpc.Span{}
	}
	c.listens = m.Method == mcp.MethodListen
	if !c.listens { // which never logs
		c.logs = levelOf(at[1].Of(m.Params))
	}
	s.pass(c, m, at[0])
}

func isNull(text []byte) bool { return bytes.Equal(text, []byte("null")) }

// hear handles what a modern server sends besides answers. It has an owner, by the
// token, by the subscription, or by being the only one that it can be for; what has
// none goes to nobody (2026-07-28 basic/patterns).
func (sh *shared) hear(m *jsonrpc.Message) {
	switch m.Method { // stream.withoutRequests has the requests
	case mcp.MethodProgress:
		sh.progress(m)
	case mcp.MethodCancelled:
		sh.listenCancelled(m)
	case mcp.MethodLog:
		sh.logged(m)
	default:
		sh.listened(m)
	}
}

// listened passes a frame of a listen on to whose it is.
func (sh *shared) listened(m *jsonrpc.Message) {
	var in, at [1]jsonrpc.Span
	if jsonrpc.Find(m.Params, jsonrpc.Span{}, in[:], "_meta") != nil || in[0].IsZero() ||
		jsonrpc.Find(m.Params, in[0], at[:], mcp.KeySubscription) != nil {
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c := sh.listenLocked(at[0].Of(m.Params)); c != nil {
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: c.id.Raw()})
		c.by.putLocked(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: c.id})
	}
}

// listenLocked returns the listen that has an id with the server; nil for none.
func (sh *shared) listenLocked(text []byte) *sharedCall {
	id, ok := jsonrpc.ParseID(text)
	n, isInt := id.Answered()
	if c := sh.calls[n]; ok && isInt && c != nil && c.listens && c.sent {
		return c
	}
	return nil
}

// listenCancelled makes of the server's cancellation of a listen what ends it
// gracefully: cancellation says that a server MUST send the one, subscriptions that
// it SHOULD send the other (2026-07-28 basic/patterns). It may cancel nothing else.
func (sh *shared) listenCancelled(m *jsonrpc.Message) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if c := sh.listenLocked([]byte(member(m.Params, "requestId"))); c != nil {
		sh.removeLocked(c)
		sh.settleLocked(c, listenResult(c, jsonrpc.NewResult(c.id, []byte(`{"resultType":"complete"}`))))
	}
}

// listenResult returns an answer with the client's own id of the subscription.
func listenResult(c *sharedCall, m *jsonrpc.Message) *jsonrpc.Message {
	result := mcp.SetMeta(m.Result, jsonrpc.Value{Key: mcp.KeySubscription, Text: c.id.Raw()})
	return &jsonrpc.Message{ID: m.ID, Result: result, Extra: m.Extra}
}
