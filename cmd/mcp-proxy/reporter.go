package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A reporter writes to a console, besides the log, what serve and host do: where clients reach us, which
// upstreams are ready, and which clients connect and disconnect. Methods of a nil reporter do nothing.
//
// Hooks must not block on a terminal, which may be stopped: they queue lines for the goroutine of begin.
type reporter struct {
	// Static.
	console *console
	clients clientLines
	lines   chan func() // to begin's goroutine; never closed. When it is full, lines are dropped

	mu     sync.Mutex              // guards the fields below
	trying map[string]int          // trials whose results will be reported
	due    []config.Upstream       // to be tried by begin
	failed map[string]time.Time    // when the failure of an upstream was last reported
	down   map[string]time.Time    // since when an upstream has not been usable
	begun  map[string]bool         // upstreams that have been ready before
	told   []string                // events that trials have reported, the newest last
	try    func([]config.Upstream) // set by begin, until its stop

	upstreams map[string]config.Upstream // upstreams of the configuration that were tried
	linked    map[string]bool            // names of those behind links that were tried
}

// Bounds of what a reporter keeps, and when it reports that upstreams are still starting.
const (
	mostLines  = 256
	mostEvents = 64
	patience   = 3 * time.Second
)

// newReporter returns the reporter for the console of log; nil if log has no console, or shows only warnings and
// errors.
func newReporter(log *slog.Logger, cfg *config.Config) *reporter {
	h, ok := log.Handler().(*consoleHandler)
	if !ok || !h.Enabled(context.Background(), slog.LevelInfo) {
		return nil
	}
	n := &reporter{
		console: h.console, lines: make(chan func(), mostLines), trying: make(map[string]int), failed: make(map[string]time.Time),
		down: make(map[string]time.Time), begun: make(map[string]bool), linked: make(map[string]bool),
	}
	n.adopted(cfg, n.expect(cfg))
	n.clients.tell = func(text string) { n.later("client", text) }
	h.skip = n.tells
	return n
}

func (n *reporter) know(cfg *config.Config) {
	for _, u := range cfg.Upstreams {
		n.console.know(u.Name)
	}
	for _, l := range cfg.Links {
		n.console.know(l.Name)
	}
}

// later queues a line.
func (n *reporter) later(name, text string) {
	at := time.Now()
	n.soon(func() { n.console.say(at, name, plain, text) })
}

func (n *reporter) soon(line func()) {
	select {
	case n.lines <- line:
	default:
	}
}

// tells reports whether a record of the log is to be left out, since the reporter writes a line about it, or has
// just done so: each client finds a failed upstream again, but one line is enough.
func (n *reporter) tells(r *record) bool {
	if strings.HasPrefix(r.Message, proxy.LogClientLeft) { // or its summary of several clients
		return true
	}
	upstream, event := r.said["upstream"], r.said["event"]
	if upstream == "" || r.said["cause"] == "" {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if event != "" {
		n.endedLocked(upstream, r.Time)
	}
	if n.trying[upstream] > 0 || slices.Contains(n.told, event) {
		return true
	}
	inFlight := r.said["in_flight"]
	again := r.Time.Sub(n.failed[upstream]) < foldTime
	if event != "" {
		n.failed[upstream] = r.Time
	}
	return again && (event == "" || inFlight == "" || inFlight == "0" || inFlight == "1") // one may be initialize
}

// hooks returns the hooks that report clients, links and the return of upstreams.
func (n *reporter) hooks() proxy.Hooks {
	if n == nil {
		return proxy.Hooks{}
	}
	return proxy.Hooks{
		SessionBegan: n.clients.came, RequestEnded: n.clients.asked, SessionEnded: n.clients.left,
		CallEnded: n.answered, LinkUp: n.linkUp,
	}
}

func (n *reporter) endedLocked(upstream string, at time.Time) {
	if _, already := n.down[upstream]; !already {
		n.down[upstream] = at
	}
}

// answered reports that an upstream that was down is ready: it has answered the first request of a legacy
// session, initialize, or any request of the modern era.
func (n *reporter) answered(r proxy.Call, end proxy.End) {
	if end.Outcome != proxy.OK || r.Method != "initialize" && r.Era == "legacy" {
		return
	}
	n.mu.Lock()
	since, was := n.down[r.Upstream]
	delete(n.down, r.Upstream)
	again := n.begun[r.Upstream]
	n.mu.Unlock()
	if !was {
		return
	}
	state, after := "ready", roughly(time.Since(since))+" later"
	if again {
		state = "ready again"
	}
	n.soon(func() { n.console.state(r.Upstream, green, state, after) })
}

// linkUp reports the upstreams of a link, and tries those that no link has had before.
func (n *reporter) linkUp(l proxy.Link) {
	n.soon(func() {
		n.console.know(l.Upstreams...)
		n.console.say(time.Now(), l.Name, plain, "offers "+strings.Join(l.Upstreams, ", ")) // the log has a line that it is up
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.try == nil || !n.console.live {
			return
		}
		var news []config.Upstream
		for _, name := range l.Upstreams {
			if !n.linked[name] {
				news = append(news, config.Upstream{Name: name})
				n.linked[name] = true
				n.trying[name]++
			}
		}
		n.try(news)
	})
}

// announces writes where clients reach us. It reports false if stdout is no terminal: then the caller prints a line
// for the program that reads it.
func (n *reporter) announces(addresses []net.Addr, secure string) bool {
	if n == nil {
		return false
	}
	var all [][2]string
	for _, a := range addresses {
		if a.Network() == "unix" {
			all = append(all, [2]string{"unix://" + a.String(), "with /mcp, /ws and /sse"})
			continue
		}
		at := secure + "://" + a.String()
		all = append(all, [][2]string{{"http" + at + "/mcp", "Streamable HTTP"}, {"ws" + at + "/ws", "WebSocket"}, {"http" + at + "/sse", "SSE, for old clients"}}...)
	}
	n.title(all)
	return stdout.isTerminal()
}

// hosts writes where proxies reach a host, or which one it dials, and returns what announces does.
func (n *reporter) hosts(listen, dial string) bool {
	if n == nil {
		return false
	}
	line := [2]string{listen, "for links.NAME.dial of a proxy"}
	if listen == "" {
		line = [2]string{dial, "is dialled"}
	}
	n.title([][2]string{line})
	return stdout.isTerminal()
}

// title writes the version and the addresses.
func (n *reporter) title(addresses [][2]string) {
	c, widest := n.console, 0
	for _, a := range addresses {
		widest = max(widest, len(a[0]))
	}
	text := c.in(bold, "mcp-proxy "+proxy.Version()) + "\n"
	for _, a := range addresses {
		text += "  " + c.in(plain, a[0])
		if wide := c.wide(); wide == 0 || wide >= timed {
			text += strings.Repeat(" ", widest-len(a[0])+2) + c.in(dim, a[1])
		}
		text += "\n"
	}
	c.write(text + c.in(dim, "  Ctrl-C stops it.") + "\n")
}

// begin tries all upstreams on a terminal, until ctx is done, and writes the queued lines until stop is
// called. stop waits for both.
func (n *reporter) begin(
	ctx context.Context, try func(context.Context, []config.Upstream, func(*proxy.Trial)),
) (stop func()) {
	if n == nil {
		return func() {}
	}
	writing, end := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	n.mu.Lock()
	n.try = func(upstreams []config.Upstream) {
		wg.Go(func() { try(ctx, upstreams, n.tried) })
	}
	n.try(n.due)
	n.due = nil
	n.mu.Unlock()
	wg.Go(func() { n.write(writing) })
	return func() {
		n.mu.Lock()
		n.try = nil
		n.mu.Unlock()
		end()
		wg.Wait()
	}
}

// write writes queued lines until ctx is done and the queue is empty.
func (n *reporter) write(ctx context.Context) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case line := <-n.lines:
			line()
			continue
		default:
		}
		select {
		case line := <-n.lines:
			line()
		case <-late.C:
			n.tellLate()
		case <-ctx.Done():
			return
		}
	}
}

// tellLate names the upstreams that are still being tried, so that the program does not look idle.
func (n *reporter) tellLate() {
	n.mu.Lock()
	late := slices.Sorted(maps.Keys(n.trying))
	n.mu.Unlock()
	for _, name := range late {
		n.console.state(name, plain, "starting", "the first start may download it")
	}
}

// adopting returns adopt, followed by trials of the upstreams that have changed.
func (n *reporter) adopting(adopt func(*config.Config) error) func(*config.Config) error {
	if n == nil {
		return adopt
	}
	return func(cfg *config.Config) error {
		news := n.expect(cfg)
		err := adopt(cfg)
		if err != nil {
			n.unexpect(news)
			return err
		}
		n.adopted(cfg, news)
		return nil
	}
}

// expect returns the upstreams of a configuration that are new or have changed. It is called before anything can
// start them: their trials will report how they fail, and the log leaves that out even if somebody else starts them first.
func (n *reporter) expect(cfg *config.Config) (news []config.Upstream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.console.live {
		return nil
	}
	for _, u := range cfg.Upstreams {
		if old, ok := n.upstreams[u.Name]; !ok || !reflect.DeepEqual(old, u) {
			news = append(news, u)
			n.trying[u.Name]++
		}
	}
	return news
}

// unexpect takes back what expect has done, because the configuration is not used.
func (n *reporter) unexpect(news []config.Upstream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, u := range news {
		n.overLocked(u.Name)
	}
}

// overLocked counts a trial out.
func (n *reporter) overLocked(upstream string) {
	if n.trying[upstream]--; n.trying[upstream] <= 0 {
		delete(n.trying, upstream)
	}
}

// adopted tries the upstreams of a configuration that expect has returned, or has begin try them.
func (n *reporter) adopted(cfg *config.Config, news []config.Upstream) {
	n.know(cfg)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.upstreams = make(map[string]config.Upstream)
	for _, u := range cfg.Upstreams {
		n.upstreams[u.Name] = u
	}
	if n.try == nil {
		n.due = append(n.due, news...)
		return
	}
	n.try(news)
}

// tried reports the result of a trial.
func (n *reporter) tried(t *proxy.Trial) {
	n.mu.Lock()
	n.overLocked(t.Upstream)
	if t.OK() {
		n.begun[t.Upstream] = true
	} else {
		n.failed[t.Upstream] = time.Now()
		n.endedLocked(t.Upstream, time.Now())
	}
	if t.Event != "" {
		n.told = append(n.told[max(len(n.told)-mostEvents+1, 0):], t.Event)
	}
	n.mu.Unlock()
	if t.OK() {
		took := fmt.Sprintf("%.1f s", (t.StartMs+t.ListMs)/1000)
		n.console.state(t.Upstream, green, "ready", offers(t)+"  "+took)
		return
	}
	why := t.Failed
	if last := lastWord(t.Stderr); withoutArt(last) != "" {
		why += ": " + oneLine(withoutArt(last), 200)
	}
	why += "\n" + t.Advice()
	if t.Event != "" {
		why += " (more: mcp-proxy explain " + t.Event + ")"
	}
	n.console.state(t.Upstream, red, "failed", why)
}

// lingers writes that the process keeps serving for delay; it reports false if n is nil, as stops does.
func (n *reporter) lingers(delay time.Duration) bool {
	if n == nil {
		return false
	}
	n.afterKey()
	n.console.say(time.Now(), "proxy", plain, fmt.Sprintf("draining: still serving for %v (Ctrl-C again to stop now)", delay))
	return true
}

// afterKey moves to the start of the line, where the terminal has written ^C.
func (n *reporter) afterKey() {
	if n.console.live {
		n.console.write("\r")
	}
}

// stops writes what a shutdown waits for, and how to skip the wait.
func (n *reporter) stops(grace time.Duration, calls func() proxy.Calls) bool {
	if n == nil {
		return false
	}
	n.afterKey()
	now := calls()
	waits := "its servers"
	if most := len(now.Calls) + now.LeftOut; most > 0 {
		waits = count(most, "call") + " (" + describe(now) + ")"
	}
	n.console.say(time.Now(), "proxy", plain, fmt.Sprintf("stopping: waiting for %s, at most %v (Ctrl-C again to stop now)", waits, grace))
	return true
}

// describe names the oldest calls and counts the others.
func describe(now proxy.Calls) string {
	const most = 3
	var all []string
	for _, c := range now.Calls[:min(len(now.Calls), most)] {
		name := strings.TrimSpace(c.Upstream + " " + cmp.Or(c.Tool, c.Method))
		all = append(all, name+" for "+roughly(now.Now.Sub(c.Began)))
	}
	if more := len(now.Calls) + now.LeftOut - len(all); more > 0 {
		all = append(all, fmt.Sprint(more, " more"))
	}
	return strings.Join(all, ", ")
}

// offers counts what an upstream offers.
func offers(t *proxy.Trial) string {
	var all []string
	for _, l := range []struct {
		noun string
		n    int
	}{{"tool", t.Tools.Count}, {"prompt", t.Prompts.Count}, {"resource", t.Resources.Count}, {"template", t.Templates.Count}} {
		if l.n > 0 {
			all = append(all, count(l.n, l.noun))
		}
	}
	return cmp.Or(strings.Join(all, ", "), "offers nothing")
}
