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

// A reporter tells people at a console what serve and host do, beside the log: where clients
// reach us, which upstreams are ready, and which clients come and go. All methods of a nil one
// do nothing.
//
// Hooks must not wait for a terminal, which may stand still: what they tell is written by the
// goroutine of begin.
type reporter struct {
	// Static.
	console *console
	clients clientLines
	lines   chan func() // to begin's goroutine; never closed. When it is full, lines are lost

	mu     sync.Mutex // guards the fields below
	trying map[string]bool
	failed map[string]time.Time    // when it was told that an upstream has failed
	down   map[string]time.Time    // since when upstreams have been of no use
	begun  map[string]bool         // upstreams that were of use before
	told   []string                // events that trials have told of, the newest last
	try    func([]config.Upstream) // set by begin, until its stop

	upstreams map[string]config.Upstream // that were tried
	linked    map[string]bool            // likewise, behind links
}

// Bounds of what a reporter keeps, and when it says that upstreams have not started yet.
const (
	mostLines  = 256
	mostEvents = 64
	patience   = 3 * time.Second
)

// newReporter returns the reporter for the console that log is on; nil for none, or if people want
// to hear of failures alone.
func newReporter(log *slog.Logger, cfg *config.Config) *reporter {
	h, ok := log.Handler().(*consoleHandler)
	if !ok || !h.Enabled(context.Background(), slog.LevelInfo) {
		return nil
	}
	n := &reporter{
		console: h.console, lines: make(chan func(), mostLines), trying: make(map[string]bool), failed: make(map[string]time.Time),
		down: make(map[string]time.Time), begun: make(map[string]bool), linked: make(map[string]bool),
	}
	n.know(cfg)
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

// later writes a line soon.
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

// tells reports whether the reporter tells of a record itself, or has just told of it: that an
// upstream has failed is told once, though each client that comes finds it so.
func (n *reporter) tells(r *record) bool {
	if strings.HasPrefix(r.Message, proxy.LogClientLeft) { // or how many more
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
	if n.trying[upstream] || slices.Contains(n.told, event) {
		return true
	}
	inFlight := r.said["in_flight"]
	again := r.Time.Sub(n.failed[upstream]) < foldTime
	if event != "" {
		n.failed[upstream] = r.Time
	}
	return again && (event == "" || inFlight == "" || inFlight == "0" || inFlight == "1") // which may be initialize
}

// hooks are what clients, links and the return of upstreams are known by.
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

// answered tells that an upstream that was of no use is ready: it has answered what each legacy
// session begins with. In the modern era there is no such request, and any will do.
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

// linkUp tells what a link leads to, and tries what has not been seen behind one before.
func (n *reporter) linkUp(l proxy.Link) {
	n.soon(func() {
		n.console.know(l.Upstreams...)
		n.console.say(time.Now(), l.Name, plain, "offers "+strings.Join(l.Upstreams, ", ")) // the log says that it is up
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.try == nil || !n.console.live {
			return
		}
		var news []config.Upstream
		for _, name := range l.Upstreams {
			if !n.linked[name] {
				news = append(news, config.Upstream{Name: name})
				n.linked[name], n.trying[name] = true, true
			}
		}
		n.try(news)
	})
}

// announces says where clients reach us, and reports whether that is enough: a program that
// reads stdout gets its line.
func (n *reporter) announces(addresses []net.Addr, secured bool) bool {
	if n == nil {
		return false
	}
	s := ""
	if secured {
		s = "s"
	}
	var all [][2]string
	for _, a := range addresses {
		if a.Network() == "unix" {
			all = append(all, [2]string{"unix://" + a.String(), "with /mcp, /ws and /sse"})
			continue
		}
		at := s + "://" + a.String()
		all = append(all, [][2]string{{"http" + at + "/mcp", "Streamable HTTP"}, {"ws" + at + "/ws", "WebSocket"}, {"http" + at + "/sse", "SSE, for old clients"}}...)
	}
	n.title(all)
	return stdout.isTerminal()
}

// hosts says where proxies reach a host, or which one it dials, as announces does.
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

// title is what stands at the top.
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

// begin tries all upstreams if somebody looks on, until ctx is done, and writes what hooks
// tell, until the returned stop is called. stop waits for both.
func (n *reporter) begin(
	ctx context.Context, try func(context.Context, []config.Upstream, func(*proxy.Trial)), cfg *config.Config,
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
	n.mu.Unlock()
	wg.Go(func() { n.write(writing) })
	n.adopted(cfg)
	return func() {
		n.mu.Lock()
		n.try = nil
		n.mu.Unlock()
		end()
		wg.Wait()
	}
}

// write writes lines until ctx is done, and then those that are left.
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

// tellLate names the upstreams that are being tried: nobody is to think that nothing happens.
func (n *reporter) tellLate() {
	n.mu.Lock()
	late := slices.Sorted(maps.Keys(n.trying))
	n.mu.Unlock()
	for _, name := range late {
		n.console.state(name, plain, "starting", "the first start may download it")
	}
}

// adopting is adopt, and then what has changed is tried.
func (n *reporter) adopting(adopt func(*config.Config) error) func(*config.Config) error {
	if n == nil {
		return adopt
	}
	return func(cfg *config.Config) error {
		err := adopt(cfg)
		if err == nil {
			n.adopted(cfg)
		}
		return err
	}
}

// adopted tries the upstreams of a configuration that are not what they were.
func (n *reporter) adopted(cfg *config.Config) {
	n.know(cfg)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.try == nil || !n.console.live {
		return
	}
	var news []config.Upstream
	before := n.upstreams
	n.upstreams = make(map[string]config.Upstream)
	for _, u := range cfg.Upstreams {
		if old, ok := before[u.Name]; !ok || !reflect.DeepEqual(old, u) {
			news = append(news, u)
			n.trying[u.Name] = true
		}
		n.upstreams[u.Name] = u
	}
	n.try(news)
}

// tried tells what came of a trial.
func (n *reporter) tried(t *proxy.Trial) {
	n.mu.Lock()
	delete(n.trying, t.Upstream)
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

// lingers says that everything goes on for delay, and reports whether it did.
func (n *reporter) lingers(delay time.Duration) bool {
	if n == nil {
		return false
	}
	n.afterKey()
	n.console.say(time.Now(), "proxy", plain, fmt.Sprintf("draining: still serving for %v (Ctrl-C again to stop now)", delay))
	return true
}

// afterKey lets the next line stand where the terminal has written ^C.
func (n *reporter) afterKey() {
	if n.console.live {
		n.console.write("\r")
	}
}

// stops says what a shutdown waits for, and how not to wait. It reports whether it did.
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

// describe names the oldest calls.
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

// offers says how much an upstream offers.
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
