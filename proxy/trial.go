package proxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// A Trial is what came of starting one upstream, asking it for its lists, and stopping it.
type Trial struct {
	Upstream  string `json:"upstream"`
	Link      string `json:"link,omitzero"` // that leads to its host; "" for one that was started here
	Transport string `json:"transport"`     // stdio, http, http+sse, websocket, replay or link

	// Failed says in one sentence why it did not start, or which list it did not give; "" if
	// all went well. Cause is the same in few words, as errors have it.
	Failed string `json:"failed,omitzero"`
	Cause  string `json:"cause,omitzero"`
	Event  string `json:"event,omitzero"` // of that end, as in the log; "" for none

	Server  string   `json:"server,omitzero"`  // what it calls itself, with its version
	Version string   `json:"version,omitzero"` // of the protocol, as agreed with it
	Speaks  []string `json:"speaks,omitzero"`  // its eras: legacy, modern; none: not known

	StartMs float64 `json:"startMs"` // until it answered initialize; of one that takes long: with nothing else starting
	ListMs  float64 `json:"listMs"`  // for all lists
	StopMs  float64 `json:"stopMs"`  // of a process: from the end of its stdin until it had exited; 0: not known

	Tools     ListSize `json:"tools"`
	Prompts   ListSize `json:"prompts"`
	Resources ListSize `json:"resources"`
	Templates ListSize `json:"templates"`

	Unusable int      `json:"unusable"`        // lines on its stdout that were no message
	Stderr   []string `json:"stderr,omitzero"` // its last lines, of one that failed

	err       error // of the last end of its server, nil if nothing more is known
	stopGrace time.Duration
	lists     map[string][]json.RawMessage // by member
}

// A ListSize is how long a list is.
type ListSize struct {
	Count int `json:"count"`
	Bytes int `json:"bytes"`
}

// OK reports whether the upstream started and gave its lists.
func (t *Trial) OK() bool { return t.Failed == "" }

// try starts each upstream of a configuration, two at a time, asks it for its lists, stops it, and
// finds out which eras its server speaks, for which it may start it twice. Links are dialled, and
// what their hosts announce is tried, too. It returns when all has ended, in config order.
func try(ctx context.Context, cfg *config.Config, log *slog.Logger) ([]Trial, error) {
	alone := Quiet(cfg)
	for i := range alone.Upstreams {
		alone.Upstreams[i].Shared, alone.Upstreams[i].Roots = false, nil // nobody else is there, and it is to stop
	}
	p, err := New(alone, Options{Log: log})
	if err != nil {
		return nil, err
	}
	defer p.Shutdown(ctx)
	p.start()
	t := newTrials(cfg, p.host, p.dial)
	t.links, t.eras = p.links.snapshot, true
	for _, u := range cfg.Upstreams {
		t.begin(ctx, &Trial{Upstream: u.Name, Transport: transportOf(u), stopGrace: u.StopGrace})
	}
	t.throughLinks(ctx)
	t.wg.Wait()
	t.alone(ctx)
	var all []Trial
	for _, tr := range t.all {
		all = append(all, *tr)
	}
	return all, context.Cause(ctx)
}

// Quiet returns a configuration with the same upstreams that a program uses for a moment:
// without listeners, log lines for calls, traces, hosts that dial, or servers that start by themselves.
func Quiet(cfg *config.Config) *config.Config {
	quiet := *cfg
	quiet.Listen, quiet.Admin, quiet.Logs = nil, config.Admin{}, config.Logs{}
	quiet.Traces = config.Traces{Off: true}
	quiet.Upstreams = slices.Clone(cfg.Upstreams)
	if cfg.Prefix == "auto" && len(cfg.Upstreams)+len(cfg.Links) > 1 {
		quiet.Prefix = "always" // though what is left may be one
	}
	for i := range quiet.Upstreams {
		quiet.Upstreams[i].Required = false
	}
	quiet.Links = slices.DeleteFunc(slices.Clone(cfg.Links), func(l config.Link) bool { return l.Accept })
	return &quiet
}

// transportOf is how an upstream is reached.
func transportOf(u config.Upstream) string {
	at, err := url.Parse(u.URL)
	switch {
	case u.Replay != "":
		return "replay"
	case u.URL == "" && u.Command == "": // all that is known of it is its name
		return "link"
	case u.URL == "":
		return "stdio"
	case u.Type == "sse":
		return "http+sse"
	case err == nil && strings.HasPrefix(at.Scheme, "ws"):
		return "websocket"
	}
	return "http"
}

// The trials of one configuration.
type trials struct {
	host     *hosting
	dial     session.DialFunc
	links    func() []observe.Link
	eras     bool          // all of them are looked for
	listTime time.Duration // for all lists of one
	places   chan struct{} // has one for each trial that may run at a time
	wg       sync.WaitGroup
	all      []*Trial
	tried    map[string]bool // upstreams behind links
}

func newTrials(cfg *config.Config, host *hosting, dial session.DialFunc) *trials {
	return &trials{host: host, dial: dial, listTime: 3 * cmp.Or(cfg.ListTimeout, 10*time.Second), places: make(chan struct{}, mostTrials), tried: make(map[string]bool)}
}

// mostTrials run at a time: dozens of servers that start at once slow each other down.
const mostTrials = 2

func (t *trials) begin(ctx context.Context, tr *Trial) {
	t.all = append(t.all, tr)
	t.wg.Go(func() {
		t.places <- struct{}{}
		defer func() { <-t.places }()
		t.try(ctx, tr)
	})
}

// alone starts those that took long once more, with nothing beside them that may be the reason.
func (t *trials) alone(ctx context.Context) {
	for _, tr := range t.all {
		if len(t.all) == 1 || !tr.OK() || max(tr.StartMs, tr.ListMs) <= slow {
			continue
		}
		again, key := &Trial{Upstream: tr.Upstream, Link: tr.Link, Transport: tr.Transport, stopGrace: tr.stopGrace}, rand.Text()
		client, err := t.ask(ctx, again, key)
		if client == nil {
			continue
		}
		client.Close()
		t.stopped(again, key)
		if err == nil {
			tr.StartMs, tr.ListMs = again.StartMs, again.ListMs
		}
	}
}

// linkTime is how long links may take to come up.
const linkTime = 5 * time.Second

// throughLinks tries what the hosts of links announce. A link that does not come up in time is
// a trial, too.
func (t *trials) throughLinks(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, linkTime)
	defer cancel()
	for {
		missing := t.announced(context.WithoutCancel(ctx))
		if len(missing) == 0 {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			for _, l := range missing {
				t.all = append(t.all, &Trial{Link: l.Name, Transport: "link", Failed: "the host behind this link cannot be reached", Cause: jsonrpc.CauseLinkLost})
			}
			return
		}
	}
}

// announced begins the trials of what was announced since the last time, and returns the
// links that are not up.
func (t *trials) announced(ctx context.Context) (missing []observe.Link) {
	for _, l := range t.links() {
		if !l.Up {
			missing = append(missing, l)
			continue
		}
		for _, name := range l.Upstreams {
			if !t.tried[name] {
				t.tried[name] = true
				t.begin(ctx, &Trial{Upstream: name, Link: l.Name, Transport: "link"})
			}
		}
		for _, r := range l.Rejected {
			if key := r.Upstream + " of " + l.Name; !t.tried[key] { // no name of an upstream
				t.tried[key] = true
				t.all = append(t.all, &Trial{Upstream: r.Upstream, Link: l.Name, Transport: "link", Failed: "is not offered: " + r.Why, Cause: jsonrpc.CauseNotOffered})
			}
		}
	}
	return missing
}

// tryTime is more than a trial needs whose upstream keeps to its own times.
const tryTime = 5 * time.Minute

// try does all of one trial.
func (t *trials) try(ctx context.Context, tr *Trial) {
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	key := mcp.ConnectionKey(rand.Text(), "")
	client, err := t.ask(ctx, tr, key)
	if client == nil {
		return
	}
	client.Close()
	t.stopped(tr, key)
	if err == nil && t.eras {
		t.learn(ctx, tr)
	}
}

// ask starts the upstream of a trial as for a client with that key, and asks for its lists. It
// returns the client, nil if it did not start, and why a list is missing.
func (t *trials) ask(ctx context.Context, tr *Trial, key string) (*Client, error) {
	began := time.Now()
	client, err := t.greet(ctx, tr.Upstream, key)
	tr.StartMs = millis(time.Since(began))
	if err != nil {
		t.look(tr)
		tr.failed(err)
		return nil, err
	}
	t.look(tr)
	tr.introduced(client.Hello)
	began = time.Now()
	err = t.askLists(ctx, tr, client)
	tr.ListMs = millis(time.Since(began))
	t.look(tr)
	if err == nil {
		tr.Stderr = nil
	} else {
		tr.failed(err)
	}
	return client, err
}

func millis(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}

// greet begins a session with one upstream, behind the router.
func (t *trials) greet(ctx context.Context, name, key string) (*Client, error) {
	c, err := t.dial(ctx, name, key, mcp.Legacy)
	if err != nil {
		return nil, err
	}
	return newClient(ctx, c)
}

// introduced notes what the answer to initialize says.
func (tr *Trial) introduced(hello json.RawMessage) {
	var said struct {
		ProtocolVersion string
		ServerInfo      struct{ Name, Version string }
	}
	_ = json.Unmarshal(hello, &said)
	if slices.Equal(tr.Speaks, []string{string(mcp.Modern)}) {
		said.ProtocolVersion = mcp.ModernVersions[0] // that answered is a translation
	}
	tr.Version, tr.Server = said.ProtocolVersion, strings.TrimSpace(said.ServerInfo.Name+" "+said.ServerInfo.Version)
}

// askLists asks for all that the server says it offers.
func (t *trials) askLists(ctx context.Context, tr *Trial, c *Client) error {
	ctx, cancel := context.WithTimeout(ctx, t.listTime)
	defer cancel()
	tr.lists = make(map[string][]json.RawMessage)
	var first error
	for _, l := range tr.listed() {
		if !c.Offers(l.capability) {
			continue
		}
		all, err := c.List(ctx, l.method, l.member)
		if answer, ok := errors.AsType[*AnswerError](err); ok && answer.Code == jsonrpc.CodeMethodNotFound && (l.method == mcp.MethodTemplatesList || tr.Transport == "replay") {
			continue // many have none, and nobody may have asked when it was recorded
		}
		if err != nil {
			first = cmp.Or(first, error(&listError{l.method, err}))
			continue
		}
		tr.lists[l.member] = all
		l.size.Count = len(all)
		for _, e := range all {
			l.size.Bytes += len(e)
		}
	}
	return first
}

// learn finds out whether a server that was stopped, and speaks the legacy era, speaks the
// modern one, too: a process is started once more for that, since many are of the era of what
// they hear first.
func (t *trials) learn(ctx context.Context, tr *Trial) {
	if slices.Contains(tr.Speaks, string(mcp.Modern)) || tr.Transport == "link" {
		return
	}
	again := time.Duration(2*tr.StartMs)*time.Millisecond + learnTime
	ctx, cancel := context.WithTimeout(ctx, again)
	defer cancel()
	if modern, err := t.host.host.Modern(ctx, tr.Upstream); err == nil && modern {
		tr.Speaks = append(tr.Speaks, string(mcp.Modern))
	}
}

// learnTime is how long an answer about the modern era may take, besides the start.
const learnTime = 3 * time.Second

// A listError is a list that was not given.
type listError struct {
	method string
	err    error
}

func (e *listError) Error() string { return e.method + ": " + e.err.Error() }
func (e *listError) Unwrap() error { return e.err }

type listed struct {
	capability, method, member string
	size                       *ListSize
}

func (tr *Trial) listed() []listed {
	return []listed{
		{"tools", mcp.MethodToolsList, "tools", &tr.Tools},
		{"prompts", mcp.MethodPromptsList, "prompts", &tr.Prompts},
		{"resources", mcp.MethodResourcesList, "resources", &tr.Resources},
		{"resources", mcp.MethodTemplatesList, "resourceTemplates", &tr.Templates},
	}
}

// failed notes why a trial did not come to its end.
func (tr *Trial) failed(err error) {
	tr.Failed, tr.Cause = err.Error(), "" // of an error response there is no cause
	end, lost := errors.AsType[*jsonrpc.ClosedError](err)
	refused, said := errors.AsType[*AnswerError](err)
	list, _ := errors.AsType[*listError](err)
	if lost {
		tr.Event = end.Event
	}
	switch {
	case lost && list != nil:
		tr.Failed, tr.Cause = end.Words()+" while it was asked for "+list.method, end.Cause
	case lost:
		tr.Failed, tr.Cause = end.Words(), end.Cause
	case said && list == nil:
		tr.Failed, tr.Cause = "refuses initialize: "+refused.Error(), jsonrpc.CauseRefused
	case errors.Is(err, context.DeadlineExceeded):
		tr.Failed, tr.Cause = "did not answer in time", jsonrpc.CauseTimeout
	}
}

// look takes from the status what it says of the server of a trial.
func (t *trials) look(tr *Trial) {
	for _, s := range t.host.host.Status() {
		if s.Upstream != tr.Upstream {
			continue
		}
		tr.Unusable = max(tr.Unusable, s.Unusable)
		if len(s.Stderr) > 0 {
			tr.Stderr = s.Stderr
		}
		tr.err, tr.Speaks = s.Err, nil
		for _, era := range s.Speaks {
			tr.Speaks = append(tr.Speaks, string(era))
		}
	}
	if r := t.host.remote(tr.Upstream); r != nil && r.Old() {
		tr.Transport = "http+sse"
	}
}

// stopped waits until the process of a trial is gone, and notes how long that took.
func (t *trials) stopped(tr *Trial, key string) {
	if tr.Transport != "stdio" {
		return
	}
	began := time.Now()
	for time.Since(began) < 4*tr.stopGrace+time.Second {
		if !t.runs(tr.Upstream, key) {
			tr.StopMs = millis(time.Since(began))
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (t *trials) runs(name, key string) bool {
	return slices.ContainsFunc(t.host.host.Status(), func(s upstream.Status) bool {
		return s.Upstream == name && s.Key == key && (s.State == upstream.StateRunning || s.State == upstream.StateStopping)
	})
}
