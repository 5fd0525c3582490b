package proxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// Diagnose starts each upstream of a configuration once, and looks for what is wrong or suspicious. Of the
// options it uses Log, and CacheDir to compare lists with those that were kept there.
func Diagnose(ctx context.Context, cfg *config.Config, o Options) (*ops.Diagnosis, error) {
	trials, err := try(ctx, cfg, o)
	if err != nil {
		return nil, err
	}
	return ops.Judge(cfg, trials, Check(cfg), replicaFindings(ctx, cfg.Cluster)...), nil
}

// try starts each upstream of a configuration, two at a time, asks it for its lists, stops it, and
// finds out which eras its server speaks, which may need a second start. It also dials links and
// tries the upstreams that their hosts announce. It returns the trials in config order when
// everything has ended.
func try(ctx context.Context, cfg *config.Config, o Options) ([]ops.Trial, error) {
	alone := Quiet(cfg)
	for i := range alone.Upstreams {
		alone.Upstreams[i].Shared, alone.Upstreams[i].Roots = false, nil // so that it stops with its client
	}
	p, err := New(alone, Options{Log: o.Log, CacheDir: present(o.CacheDir)})
	if err != nil {
		return nil, err
	}
	defer p.Shutdown(ctx)
	p.start()
	t := newTrials(cfg, p.host, p.dial)
	t.links, t.eras = p.links.snapshot, true
	for _, u := range cfg.Upstreams {
		t.begin(ctx, &ops.Trial{Upstream: u.Name, Transport: transportOf(u), StopGrace: u.StopGrace})
	}
	t.throughLinks(ctx)
	t.wg.Wait()
	t.alone(ctx)
	p.noteKept(cfg, t.all)
	var all []ops.Trial
	for _, tr := range t.all {
		all = append(all, *tr)
	}
	return all, context.Cause(ctx)
}

// trials are the trials of one configuration.
type trials struct {
	host     *hosting
	dial     session.DialFunc
	links    func() []observe.Link
	eras     bool          // find out all eras of each server
	into     learnFunc     // as in required; of now
	listTime time.Duration // for all lists of one upstream
	places   chan struct{} // an element for each running trial
	wg       sync.WaitGroup
	all      []*ops.Trial
	tried    map[string]bool // upstreams behind links
}

func newTrials(cfg *config.Config, host *hosting, dial session.DialFunc) *trials {
	return &trials{
		host: host, dial: dial, listTime: 3 * cmp.Or(cfg.ListTimeout, 10*time.Second),
		places: make(chan struct{}, mostTrials), tried: make(map[string]bool),
	}
}

// mostTrials bounds the trials at a time: dozens of servers that start at once slow each other down.
const mostTrials = 2

func (t *trials) begin(ctx context.Context, tr *ops.Trial) {
	t.all = append(t.all, tr)
	t.wg.Go(func() {
		t.places <- struct{}{}
		defer func() { <-t.places }()
		t.try(ctx, tr)
	})
}

// alone repeats slow trials one by one, because another one may have slowed them down.
func (t *trials) alone(ctx context.Context) {
	for _, tr := range t.all {
		if len(t.all) == 1 || !tr.OK() || max(tr.StartMs, tr.ListMs) <= ops.Slow {
			continue
		}
		again, key := &ops.Trial{Upstream: tr.Upstream, Link: tr.Link, Transport: tr.Transport, StopGrace: tr.StopGrace}, rand.Text()
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

// throughLinks tries the upstreams that hosts announce. A link that does not come up in time fails as a trial.
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
				t.all = append(t.all, &ops.Trial{
					Link: l.Name, Transport: "link",
					Failed: "the host behind this link cannot be reached", Cause: jsonrpc.CauseLinkLost,
				})
			}
			return
		}
	}
}

// announced begins trials of newly announced upstreams, and returns the links that are down.
func (t *trials) announced(ctx context.Context) (missing []observe.Link) {
	for _, l := range t.links() {
		if !l.Up {
			missing = append(missing, l)
			continue
		}
		for _, name := range l.Upstreams {
			if !t.tried[name] {
				t.tried[name] = true
				t.begin(ctx, &ops.Trial{Upstream: name, Link: l.Name, Transport: "link"})
			}
		}
		for _, r := range l.Rejected {
			if key := r.Upstream + " of " + l.Name; !t.tried[key] { // no upstream has a name with spaces
				t.tried[key] = true
				t.all = append(t.all, &ops.Trial{
					Upstream: r.Upstream, Link: l.Name, Transport: "link",
					Failed: "is not offered: " + r.Why, Cause: jsonrpc.CauseNotOffered,
				})
			}
		}
	}
	return missing
}

// tryTime bounds a trial. An upstream that obeys its own limits takes less.
const tryTime = 5 * time.Minute

// try runs one trial.
func (t *trials) try(ctx context.Context, tr *ops.Trial) {
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

// ask starts the upstream of a trial as for a client with that key, and asks for its lists. The client is nil if
// the upstream did not start. The error says why it did not, or why a list is missing.
func (t *trials) ask(ctx context.Context, tr *ops.Trial, key string) (*Client, error) {
	began := time.Now()
	client, err := t.greet(ctx, tr.Upstream, key)
	tr.StartMs = millis(time.Since(began))
	if err != nil {
		t.look(tr)
		failed(tr, "", err)
		if other := t.host.host.OtherVersions(tr.Upstream); other != nil && tr.Cause == jsonrpc.CauseRefused {
			tr.Failed, tr.Hint = other.Error(), "use a newer mcp-proxy, or a release of the server that speaks one of these versions"
		}
		return nil, err
	}
	t.look(tr)
	introduced(tr, client.Hello)
	began = time.Now()
	list, err := t.askLists(ctx, tr, client)
	tr.ListMs = millis(time.Since(began))
	t.look(tr)
	if err == nil {
		tr.Stderr = nil
	} else {
		failed(tr, list, err)
	}
	return client, err
}

func millis(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}

// greet begins a session with one upstream without the router.
func (t *trials) greet(ctx context.Context, name, key string) (*Client, error) {
	c, err := t.dial(ctx, name, key, mcp.Legacy)
	if err != nil {
		return nil, err
	}
	return newClient(ctx, c)
}

// introduced records the answer to initialize.
func introduced(tr *ops.Trial, hello json.RawMessage) {
	var said struct {
		ProtocolVersion string
		ServerInfo      struct{ Name, Version string }
	}
	_ = json.Unmarshal(hello, &said)
	if slices.Equal(tr.Speaks, []string{string(mcp.Modern)}) {
		said.ProtocolVersion = mcp.ModernVersions[0] // a translation has answered
	}
	tr.Version, tr.Server = said.ProtocolVersion, strings.TrimSpace(said.ServerInfo.Name+" "+said.ServerInfo.Version)
}

// askLists asks for all lists that the server declares. It returns the method of the first list that failed, and why.
func (t *trials) askLists(ctx context.Context, tr *ops.Trial, c *Client) (list string, first error) {
	ctx, cancel := context.WithTimeout(ctx, t.listTime)
	defer cancel()
	tr.Lists = make(map[string][]json.RawMessage)
	sizes := []*ops.ListSize{&tr.Tools, &tr.Prompts, &tr.Resources, &tr.Templates}
	for i, l := range listKinds {
		if !c.Offers(l.capability) {
			continue
		}
		all, err := c.List(ctx, l.method, l.member)
		if answer, ok := errors.AsType[*AnswerError](err); ok && answer.Code == jsonrpc.CodeMethodNotFound && l.method == mcp.MethodTemplatesList {
			continue // many servers have none
		}
		if err != nil {
			if first == nil {
				list, first = l.method, err
			}
			continue
		}
		tr.Lists[l.member] = all
		sizes[i].Count = len(all)
		for _, e := range all {
			sizes[i].Bytes += len(e)
		}
	}
	return list, first
}

// learn finds out whether a legacy server speaks the modern era, too. It starts a process once more for that, because
// many keep the era of their first message.
func (t *trials) learn(ctx context.Context, tr *ops.Trial) {
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

// failed records why a trial failed, in the start or in a list.
func failed(tr *ops.Trial, list string, err error) {
	tr.Failed, tr.Cause = err.Error(), jsonrpc.Cause{} // an error response has no cause
	if list != "" {
		tr.Failed = list + ": " + tr.Failed
	}
	end, lost := errors.AsType[*jsonrpc.ClosedError](err)
	refused, answered := errors.AsType[*AnswerError](err)
	if lost {
		tr.Event = end.Event
	}
	switch {
	case lost && list != "":
		tr.Failed, tr.Cause = end.Words()+" during "+list, end.Cause
	case lost:
		tr.Failed, tr.Cause = end.Words(), end.Cause
	case answered && list == "":
		tr.Failed, tr.Cause = "refused initialize: "+refused.Error(), jsonrpc.CauseRefused
	case errors.Is(err, context.DeadlineExceeded):
		tr.Failed, tr.Cause = "did not answer in time", jsonrpc.CauseTimeout
	}
}

// look copies what the status says of the server of a trial.
func (t *trials) look(tr *ops.Trial) {
	for _, s := range t.host.host.Status() {
		if s.Upstream != tr.Upstream {
			continue
		}
		tr.Unusable = max(tr.Unusable, s.Unusable)
		if len(s.Stderr) > 0 {
			tr.Stderr = s.Stderr
		}
		tr.Hint, tr.Speaks = "", nil
		if start, ok := errors.AsType[*process.StartError](s.Err); ok {
			tr.Hint = hints[start.Fault]
		}
		for _, era := range s.Speaks {
			tr.Speaks = append(tr.Speaks, string(era))
		}
	}
	if r := t.host.remote(tr.Upstream); r != nil && r.Old() {
		tr.Transport = "http+sse"
	}
}

// stopped waits for the exit of a trial's process, and records how long it took.
func (t *trials) stopped(tr *ops.Trial, key string) {
	if tr.Transport != "stdio" {
		return
	}
	began := time.Now()
	for time.Since(began) < 4*tr.StopGrace+time.Second {
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

// hints say what to do about commands that could not be started.
var hints = map[process.Fault]string{
	process.CannotRun:    "check the machine's limits of processes, memory and descriptors",
	process.NoCommand:    fixCommand,
	process.NotPermitted: fixCommand,
	process.NotProgram:   "put the interpreter in command (sh, python3) and the file in args",
	process.NoDir:        "fix cwd",
	process.NotOnPath:    "write its name with ./ before it",
}

const fixCommand = "fix command (see mcp-proxy check), and install what it names"
