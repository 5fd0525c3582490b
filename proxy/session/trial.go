package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// begin returns the context of a new trial. Unless it is nil, because the router ends, the caller
// calls wg.Done at the end of the trial.
func (ts *trialSessions) begin() context.Context {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.over {
		return nil
	}
	if ts.stop == nil {
		ts.ctx, ts.stop = context.WithCancelCause(context.Background())
	}
	ts.wg.Add(1)
	return ts.ctx
}

// end ends all trials and waits for them. Later ones fail.
func (ts *trialSessions) end() {
	ts.mu.Lock()
	ts.over = true
	if ts.stop != nil {
		ts.stop(&jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped})
	}
	ts.mu.Unlock()
	ts.wg.Wait()
}

// try begins a trial for an entry of the catalog, unless one is under way.
func (p *Router) try(key lists.Key, up *Upstream, capabilities json.RawMessage) *lists.Asking {
	return p.Catalog.Ask(key, func() (*lists.Entry, error) {
		ctx := p.trials.begin()
		if ctx == nil {
			return nil, &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Event: jsonrpc.NewEvent()}
		}
		defer p.trials.wg.Done()
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(up.StartTimeout, 30*time.Second)+p.listTimeout())
		defer cancel()
		e, err := p.trial(ctx, up, key.Era, capabilities)
		p.trials.note(up, err)
		if err != nil {
			end := jsonrpc.EndOf(err, jsonrpc.CauseStartFailed)
			end.Event = cmp.Or(end.Event, jsonrpc.NewEvent()) // for clients that wait: the host has none of what it did not see
			p.logger().Debug("no lists for the catalog", "upstream", up.Name, "event", end.Event, "err", err)
			return nil, end
		}
		return e, nil
	})
}

// version tells configurations of an upstream apart.
func (u *Upstream) version() string { return u.Link + " " + u.Digest }

// note notes how a trial has ended.
func (ts *trialSessions) note(up *Upstream, err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if err != nil {
		put(&ts.failed, up.Name, up.version())
	} else {
		delete(ts.failed, up.Name)
	}
}

// hasFailed reports whether the last trial of an upstream with its current configuration failed.
func (ts *trialSessions) hasFailed(up *Upstream) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.failed[up.Name] == up.version()
}

// LearnUnknown asks the lazy upstreams that the catalog does not know for their lists, one at a
// time, and later those that Update adds or changes. It returns when ctx ends or the router drains.
//
// It leaves out what has failed before: a client has found that, and got the error. Another failure,
// of which no client is told, would only hide that one from operators.
func (p *Router) LearnUnknown(ctx context.Context) {
	for {
		served := p.current()
		for i := range served.upstreams {
			up := &served.upstreams[i]
			if served.sole() || !up.Lazy || p.trials.hasFailed(up) || p.knows(up) {
				continue
			}
			if p.isDraining() {
				return
			}
			if p.current() != served {
				break
			}
			p.learn(ctx, up, false)
		}
		select {
		case <-served.replaced:
		case <-ctx.Done():
			return
		}
	}
}

// knows reports whether the catalog has an upstream. What it lists for clients without capabilities
// is not enough, because the first client with some would have to wait.
func (p *Router) knows(up *Upstream) bool {
	without := learnKey(up, lists.NoCapabilities)
	return p.Catalog.Any(without) != nil && (p.Catalog.Get(without) == nil || p.Catalog.Get(learnKey(up, allCapabilities)) != nil)
}

// LearnFrom puts into the catalog what a lazy upstream says to a client without capabilities. start
// starts it for that client, and returns its description and how to ask it, until LearnFrom returns.
// start is not called if a trial that asks the same is under way: LearnFrom returns what that does.
func (p *Router) LearnFrom(ctx context.Context, upstream string, start func() (json.RawMessage, lists.AskFunc, error)) (*lists.Entry, error) {
	served := p.current()
	up := served.named(upstream)
	if up == nil || !up.Lazy || served.sole() {
		_, _, err := start()
		return nil, err
	}
	asking := p.Catalog.Ask(learnKey(up, lists.NoCapabilities), func() (*lists.Entry, error) {
		said, ask, err := start()
		p.trials.note(up, err)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, p.listTimeout())
		defer cancel()
		e, _ := lists.NewEntry(said)
		return p.filled(ctx, e, ask, mcp.Legacy, nil, up)
	})
	<-asking.Done
	return asking.Entry, asking.Err
}

// Learn asks all lazy upstreams for their lists again, for the catalog, as many at a time as atOnce
// says. It asks each twice, to find out whether its lists depend on the capabilities of clients. It
// returns when all have answered or ctx ends. A router with one upstream keeps no lists.
func (p *Router) Learn(ctx context.Context, atOnce int) {
	served := p.current()
	if served.sole() {
		return
	}
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range served.upstreams {
		up := &served.upstreams[i]
		if !up.Lazy {
			continue
		}
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-places }()
			p.learn(ctx, up, true)
		})
	}
}

// learn asks one upstream as Learn does, until it fails, again or only for what is not known.
func (p *Router) learn(ctx context.Context, up *Upstream, again bool) {
	for _, capabilities := range []json.RawMessage{lists.NoCapabilities, allCapabilities} {
		key := learnKey(up, capabilities)
		if !again && p.Catalog.Get(key) != nil {
			continue
		}
		asking := p.try(key, up, capabilities)
		select {
		case <-asking.Done:
		case <-ctx.Done():
			return
		}
		if asking.Err != nil {
			return
		}
	}
}

func learnKey(up *Upstream, capabilities json.RawMessage) lists.Key {
	return lists.Key{Upstream: up.Name, Era: mcp.Legacy, Caps: lists.DigestOf(capabilities)}
}

// allCapabilities are those of the other client that Learn asks for. If an upstream says the same to it
// and to one without any, it says that to all clients.
var allCapabilities = json.RawMessage(`{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}}}`)

// Listed returns when the lists of an upstream in the catalog were asked for last; zero: never.
func (p *Router) Listed(upstream string) (last time.Time) {
	for _, e := range p.Catalog.All(upstream) {
		if e.Asked.After(last) {
			last = e.Asked
		}
	}
	return last
}

// LeftOut returns why an upstream was last missing in a list, "" if it was not since it started last.
func (p *Router) LeftOut(upstream string) string { return p.memory.Absent(upstream) }

// renewPause is the least time between the trials that changes of lists cause.
const renewPause = 5 * time.Second

// renew begins a trial because an upstream has changed a list, now or when the last one is long
// enough ago. What the catalog knows for other capabilities is forgotten.
func (p *Router) renew(key lists.Key, up *Upstream, capabilities json.RawMessage) {
	p.Catalog.Outdate(up.Name)
	p.trials.mu.Lock()
	defer p.trials.mu.Unlock()
	at := p.trials.renewed[key]
	wait := time.Until(at.Add(renewPause))
	if wait > renewPause { // one is due
		return
	}
	wait = max(wait, 0)
	put(&p.trials.renewed, key, time.Now().Add(wait))
	time.AfterFunc(wait, func() {
		if up := p.current().named(up.Name); up != nil {
			p.Catalog.Keep(key)
			p.try(key, up, capabilities)
		}
	})
}

// trial asks an upstream for its description and its lists, as a client with these capabilities
// that leaves then.
func (p *Router) trial(ctx context.Context, up *Upstream, era mcp.Era, capabilities json.RawMessage) (*lists.Entry, error) {
	conn, err := p.Dial(ctx, up.Name, mcp.ConnectionKey(rand.Text(), ""), era)
	if err != nil {
		return nil, err
	}
	pr := peer.New(peer.Options{Name: up.Name, Requests: maxAsked, Request: func(r *peer.Request) {
		if r.Method == mcp.MethodPing {
			r.Respond(&jsonrpc.Message{Result: json.RawMessage(`{}`)})
			return
		}
		r.Fail(jsonrpc.MethodNotFound(r.Method))
	}})
	running, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var end error // of the stream
	wg.Go(func() {
		end = pr.Run(running, conn)
		pr.End(end)
		jsonrpc.CloseWith(conn, nil)
	})
	defer wg.Wait()
	defer stop()
	ask := func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error) {
		return askPeer(ctx, pr, method, params)
	}
	e, meta, err := p.introduce(ctx, ask, pr, era, capabilities)
	if answer, refused := errors.AsType[*lists.AnswerError](err); refused && era == mcp.Legacy {
		why := whyNotInitialized(up.Name, answer.Wire)
		time.AfterFunc(lastWords, stop)
		wg.Wait() // the host warns, ends the stream and sends the event
		why.Event = cmp.Or(why.Event, jsonrpc.EndOf(end, why.Cause).Event, jsonrpc.NewEvent())
		return nil, jsonrpc.Closed(why)
	}
	if err != nil {
		return nil, err
	}
	return p.filled(ctx, e, ask, era, meta, up)
}

// filled asks an upstream for all lists of an entry, which it returns.
func (p *Router) filled(ctx context.Context, e *lists.Entry, ask lists.AskFunc, era mcp.Era, meta json.RawMessage, up *Upstream) (*lists.Entry, error) {
	for k := range catalog.Kinds {
		if _, ok := e.Capabilities[k.Capability()]; !ok {
			e.Lists[k] = lists.Absent()
			continue
		}
		all, err := lists.Collect(ctx, ask, k.Method(), k.Member(), era, meta, p.queueBytes())
		answer, refused := errors.AsType[*lists.AnswerError](err)
		switch {
		case refused && answer.Unsupported():
			e.Lists[k] = lists.Absent()
		case err == nil:
			e.Lists[k] = e.NewList(k, era, &all, up.allows)
		case !refused && !errors.Is(err, lists.ErrUnusable) && !errors.Is(err, lists.ErrTooLong):
			return nil, err
		}
	}
	return e, nil
}

// maxAsked bounds the open server requests of a trial, which are all refused.
const maxAsked = 16

// introduce asks an upstream for its description. It returns an entry without lists, and the _meta
// of further requests.
func (p *Router) introduce(ctx context.Context, ask lists.AskFunc, pr *peer.Peer, era mcp.Era, capabilities json.RawMessage) (e *lists.Entry, meta json.RawMessage, err error) {
	method, params := mcp.MethodInitialize, jsonrpc.Set(nil,
		jsonrpc.Value{Key: "protocolVersion", Text: jsonrpc.Quote(mcp.LegacyVersions[0])},
		jsonrpc.Value{Key: "capabilities", Text: capabilities}, jsonrpc.Value{Key: "clientInfo", Text: p.serverInfo()})
	if era == mcp.Modern {
		meta = jsonrpc.Set(nil,
			jsonrpc.Value{Key: mcp.KeyVersion, Text: jsonrpc.Quote(mcp.ModernVersions[0])},
			jsonrpc.Value{Key: mcp.KeyClientInfo, Text: p.serverInfo()}, jsonrpc.Value{Key: mcp.KeyCapabilities, Text: capabilities})
		method, params = mcp.MethodDiscover, catalog.ListParams(meta, nil)
	}
	said, err := ask(ctx, method, params)
	if err != nil {
		return nil, nil, err
	}
	if len(said) == 0 || said[0] != '{' {
		return nil, nil, &jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused}
	}
	if era == mcp.Legacy {
		pr.Send(jsonrpc.NewNotification(mcp.MethodInitialized, nil))
	}
	e, err = lists.NewEntry(said)
	if err != nil {
		p.logger().Debug("unusable capabilities from upstream", "err", err)
	}
	return e, meta, nil
}

// askPeer makes a call and waits for its result.
func askPeer(ctx context.Context, pr *peer.Peer, method string, params json.RawMessage) (result json.RawMessage, err error) {
	done := make(chan struct{})
	c := pr.NewCall(method)
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		switch {
		case lost != nil:
			err = lost.End
		case answer.Error != nil:
			err = &lists.AnswerError{Wire: answer.Error}
		default:
			result = answer.Result
		}
		close(done)
	}
	if err := c.Send(jsonrpc.NewRequest(jsonrpc.ID{}, method, params)); err != nil {
		return nil, err
	}
	select {
	case <-done:
	case <-ctx.Done():
		if c.Cancel("no longer needed") {
			return nil, context.Cause(ctx)
		}
		<-done
	}
	return result, err
}
