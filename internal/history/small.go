package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// The smaller world has one proxy, which may be another program than ours, and one server. It has only what all of
// them can do: clients of the legacy era, nobody of whom says who it is, and faults of the server and its network.

const (
	// patienceSmall is how long clients of the smaller world wait when all faults are over. None of these takes longer
	// than a second, but a client may have to start a program first that takes many, where the machine is busy.
	patienceSmall = 30 * time.Second

	// long is how long a call takes that is cancelled, in milliseconds: its end shows that it was not.
	long = 1500
)

// newSmallWorld starts the smaller world of a way. The directory is left to the caller.
func newSmallWorld(dir string, y *way, seed uint64) (*world, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &world{seed: seed, dir: dir, self: self, way: y, rec: &recorder{clock: now}, links: map[string]*network{},
		processes: map[string]*process{}, running: map[string]string{}, address: freeAddress()}
	w.usage = usage{kinds: y.kinds(), servers: []string{y.server()}, least: 10, most: 70, gap: 20 * time.Millisecond, hurry: 2 * time.Second}
	w.patience, w.giveUp = context.WithCancel(context.Background())
	if err := os.Mkdir(w.journals(), 0o700); err != nil {
		return nil, err
	}
	if y.remote() {
		if w.links["remote"], err = newNetwork(freeAddress()); err != nil {
			return nil, err
		}
		if err := w.start("remote"); err != nil {
			return nil, err
		}
		if err := listens(w.links["remote"].target, w.process("remote")); err != nil {
			w.stop()
			return nil, err
		}
	}
	if y.config != nil {
		if err := os.WriteFile(w.configFile(), []byte(w.fill(y.config(w.serverArgv()))), 0o600); err != nil {
			return nil, err
		}
	}
	if !y.serves() {
		return w, nil
	}
	if err := w.begin(); err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

// configFile is the file of the proxy's configuration. Some programs go by its ending.
func (w *world) configFile() string {
	if w.way.toml {
		return filepath.Join(w.dir, "config.toml")
	}
	return filepath.Join(w.dir, "config.yaml")
}

func (w *world) serverArgv() []string {
	return append([]string{w.self}, w.serverArgs(w.way.server())...)
}

// fill puts the ports of this world into what a way says.
func (w *world) fill(text string) string {
	_, port, _ := net.SplitHostPort(w.address)
	far := ""
	if n := w.links["remote"]; n != nil {
		far = "http://" + n.address + "/mcp"
	}
	return strings.NewReplacer("{port}", port, "{far}", far, "{config}", w.configFile()).Replace(text)
}

// wayArgv is the command line of the proxy in the smaller world.
func (w *world) wayArgv() (argv []string) {
	for _, arg := range w.way.argv(w.serverArgv()) {
		argv = append(argv, w.fill(arg))
	}
	return argv
}

// begin starts the proxy, and waits until it listens.
func (w *world) begin() error {
	if err := w.start("proxy"); err != nil {
		return err
	}
	return listens(w.address, w.process("proxy"))
}

// listens waits until a process listens at an address.
func listens(address string, p *process) error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", address); err == nil {
			return conn.Close()
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it listened", p.cmd.Args)
		default:
		}
	}
	return fmt.Errorf("%s does not listen at %s in 30 s", p.cmd.Args, address)
}

// kinds are the ways to be a client of a proxy that may not be ours. A session over HTTP is always deleted, since it
// is up to each proxy how long it keeps one whose client says nothing.
func (y *way) kinds() []kind {
	switch y.path {
	case overWebSocket:
		return []kind{{"WebSocket", false, func(w *world, _ func() string, to receiver) (wire, error) {
			return dialSocket(w.fill(y.at), "", to)
		}, []string{"close", "hang up", "vanish"}}}
	case overHTTP, httpToRemote:
		return []kind{{"HTTP", false, func(w *world, _ func() string, to receiver) (wire, error) {
			p := newPosts(w.fill(y.at), func() string { return "" }, false, to)
			p.lenient = true
			return p, nil
		}, []string{"close", "hang up"}}}
	}
	return []kind{{"stdio", false, launch, []string{"leave", "vanish", "die"}}}
}

// launch is a client that starts the proxy.
func launch(w *world, _ func() string, to receiver) (wire, error) {
	p, err := runPipes(w.wayArgv(), filepath.Join(w.dir, "connect.log"), to)
	if err != nil {
		return nil, err
	}
	return launched{p.(*pipes)}, nil
}

// launched is a proxy that its client ends as the specification says: it closes stdin, and sends SIGTERM and SIGKILL
// to one that does not end. The client waits for no outcomes then, since not all proxies promise them.
type launched struct{ *pipes }

func (l launched) leave(how string) {
	if how == "leave" {
		for i, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			late := time.AfterFunc(time.Duration(i+1)*2*time.Second, func() { _ = l.cmd.Process.Signal(s) })
			defer late.Stop()
		}
	}
	l.pipes.leave(how)
}

// smallFaults are those that the server of a way and its network can have.
func (y *way) smallFaults() []fault {
	all := []fault{
		{"kill server", []string{y.server()}, killOne, 0},
		{"stop server", []string{y.server()}, stopOne, time.Second},
	}
	if y.remote() {
		on := []string{"remote"}
		all = []fault{
			{"kill remote", on, restart(syscall.SIGKILL), 0},
			{"stop remote", on, (*world).suspend, time.Second},
			{"cut", on, cut, 0},
			{"delay", on, toxic("delay", object{}, false), time.Second},
			{"slice", on, toxic("slice", object{}, false), time.Second},
		}
	}
	if y.path == overWebSocket {
		all = append(all, fault{"read nothing", []string{"clients"}, (*world).readNothing, 2 * time.Second})
	}
	return all
}

func killOne(w *world, on string, _ time.Duration) error {
	w.signalOne(on, syscall.SIGKILL)
	return nil
}

func stopOne(w *world, on string, d time.Duration) error {
	pid := w.signalOne(on, syscall.SIGSTOP)
	time.Sleep(d)
	if pid > 0 {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	return nil
}

// signalOne signals one of the processes of the server, whoever started it, and returns which; 0 if there is none.
func (w *world) signalOne(name string, s syscall.Signal) int {
	all := w.serverPIDs(name)
	if len(all) == 0 {
		return 0
	}
	pid := all[rand.IntN(len(all))]
	_ = syscall.Kill(pid, s)
	return pid
}

// serverPIDs returns the processes of the server.
func (w *world) serverPIDs(name string) (all []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	begin := []byte(w.self + "\x00server\x00-name\x00" + name + "\x00-journal\x00" + w.journals() + "\x00")
	for _, file := range files {
		line, err := os.ReadFile(file)
		var pid int
		if _, scanned := fmt.Sscanf(file, "/proc/%d/", &pid); err == nil && scanned == nil && bytes.HasPrefix(line, begin) {
			all = append(all, pid)
		}
	}
	return all
}

// planSmall is the next operation of a client in the smaller world: a call in place of what the proxy does not pass on.
func (w *world) planSmall(random *rand.Rand, nonce string) *operation {
	what, n, after := random.IntN(10), random.IntN(1000), 1+random.IntN(100)
	o := &operation{Server: w.way.server(), call: call{Nonce: nonce, MS: random.IntN(30)}}
	offers := func(feature string) bool { return !slices.Contains(w.way.lacks, feature) }
	switch {
	case what == 0 && offers("lists"):
		return &operation{call: call{Nonce: nonce}}
	case what < 3 && offers("progress"):
		o.Progress = 1 + n%5
	case what == 3 && offers("cancellation"):
		o.MS, o.CancelAfter = long, time.Duration(after)*time.Millisecond
	case what == 4 && n%2 == 0 && offers("elicitation"):
		o.Ask = elicitation
	case what == 4 && n%2 == 1 && offers("sampling"):
		o.Ask = sampling
	case what > 4 && what < 8 && w.way.oneForAll():
		o.Do, o.Key, o.Value = []string{"get", "set", "add"}[n%3], []string{"x", "y"}[n%2], n
	case what == 8 && w.way.one && offers("updates"):
		o.Do = "touch"
	}
	return o
}

// oneForAll reports whether clients share what the server holds.
func (y *way) oneForAll() bool { return y.one || y.remote() }

// A watch starts a proxy again that ends by itself, as a service manager does.
type watch struct {
	ended atomic.Int64 // how often it did
	done  chan struct{}
}

func (w *world) watch(ctx context.Context) *watch {
	a := &watch{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		for ctx.Err() == nil && w.way.serves() {
			select {
			case <-ctx.Done():
			case <-w.process("proxy").done:
				a.ended.Add(1)
				if err := w.begin(); err != nil {
					w.rec.add("proxy", Hangs, "", err.Error())
					return
				}
			}
		}
	}()
	return a
}

// works reports whether a call of a new client has a result. One after the other tries, as long as one waits for an
// outcome at most: a proxy that waits longer and longer before it starts its server again may answer with errors until
// then.
func (w *world) works(n int) bool {
	for i, end := 0, time.Now().Add(tryFor); time.Now().Before(end); i++ {
		o := &operation{Server: w.way.server(), call: call{Nonce: fmt.Sprintf("%s%d.%d.0:0", checking, n, i)}}
		w.try(o)
		if slices.ContainsFunc(w.rec.take(), func(e Event) bool { return e.What == Result && e.Of == o.Nonce }) {
			return true
		}
		time.Sleep(time.Second)
	}
	return false
}

// checking begins the names of clients that look whether a proxy works.
const checking = "check."

// tryFor is how long one operation may take, with the start of a proxy on stdio, where others keep the machine busy.
const tryFor = 30 * time.Second

// try has a client of its own do one operation, for a while.
func (w *world) try(o *operation) {
	w.patience, w.giveUp = context.WithTimeout(context.Background(), tryFor)
	defer w.giveUp()
	name, _, _ := strings.Cut(o.Nonce, ":")
	c := join(w, name, &w.kinds[0], func() string { return "" })
	if c == nil {
		return
	}
	sleep(c.over, 200*time.Millisecond) // until it has its subscription
	c.do(o)
	sleep(c.over, 300*time.Millisecond) // for what comes after the answer
	c.leave(c.kind.leaves[0])
}

// A toolName is what a client reads of a tool in a list.
type toolName struct{ Name string }

// named returns the name that clients have for the tool of a server.
func (w *world) named(server string) string {
	if w.way != nil {
		return w.way.prefix + tool
	}
	return server + "__" + tool
}

// firstID is the id of initialize: a string, but for proxies that may take numbers alone.
func (c *client) firstID() string {
	if c.world.way != nil {
		return "0"
	}
	return `"hello"`
}

// listed returns the tools of a list as the whole world has them, without those of the proxy itself.
func (w *world) listed(tools []toolName) []toolName {
	if w.way == nil {
		return tools
	}
	all := []toolName{}
	for _, t := range tools {
		if name, ok := strings.CutPrefix(t.Name, w.way.prefix); ok {
			all = append(all, toolName{w.way.server() + "__" + name})
		}
	}
	return all
}
