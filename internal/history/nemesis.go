package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
)

// A nemesis does faults to a world, several at once, in an order that a seed gives.
type nemesis struct {
	*world
	random *rand.Rand
	faults []fault
	busy   map[string]bool // what a fault is being done to
	mu     sync.Mutex
}

// A fault is done to a part of the world, to which nothing else is done meanwhile, and is over when it returns.
type fault struct {
	name  string
	on    []string // of which one is chosen
	do    func(w *world, on string, d time.Duration) error
	lasts time.Duration // at most
}

var (
	processes = []string{"own", "common", "modern-common", "far", "far-common"}
	remotes   = []string{"remote", "modern-remote"}
	networks  = []string{"remote", "modern-remote", "link"}
)

// faults are all that can happen. Those on the host or its link exclude each other, and those on the proxy.
var faults = []fault{
	{"kill server", processes, killServer, 0},
	{"stop server", processes, (*world).suspendServer, time.Second},
	{"kill remote", remotes, restart(syscall.SIGKILL), 0},
	{"stop remote", remotes, (*world).suspend, time.Second},
	{"kill host", []string{"host"}, restart(syscall.SIGKILL), 0},
	{"restart host", []string{"host"}, restart(syscall.SIGTERM), 0},
	{"stop host", []string{"host"}, (*world).suspend, 5 * time.Second},
	{"cut", networks, cut, 0},
	{"delay", networks, toxic("delay", object{}, false), time.Second},
	{"slice", networks, toxic("slice", object{}, false), time.Second},
	{"half-open", networks, toxic("timeout", object{"timeout": 0}, true), 5 * time.Second},
	{"corrupt", []string{"link"}, toxic("corrupt", object{}, true), 100 * time.Millisecond},
	{"reload", []string{"configuration"}, (*world).reload, 0},
	{"expire tokens", []string{"issuer"}, (*world).expire, 3 * time.Second},
	{"withdraw token", []string{"configuration"}, (*world).withdraw, 0},
	{"restart proxy", []string{"proxy"}, restart(syscall.SIGTERM), 0},
	{"kill proxy", []string{"proxy"}, restart(syscall.SIGKILL), 0},
	{"take descriptors", []string{"proxy"}, (*world).takeDescriptors, time.Second},
	{"read nothing", []string{"clients"}, (*world).readNothing, 2 * time.Second},
}

// rare are the faults that end much else; they are chosen less often.
var rare = []string{"kill host", "restart host", "stop host", "withdraw token", "restart proxy", "kill proxy", "half-open"}

// run does faults until ctx is done, and returns when all are over.
func (n *nemesis) run(ctx context.Context) {
	n.busy = map[string]bool{}
	var doing sync.WaitGroup
	for ctx.Err() == nil {
		f := pick(n.random, n.faults)
		on, d := pick(n.random, f.on), time.Duration(n.random.Int64N(int64(f.lasts)+1))
		if slices.Contains(rare, f.name) && n.random.IntN(4) > 0 {
			continue
		}
		if n.begin(on) {
			doing.Go(func() {
				defer n.finish(on)
				n.rec.add("nemesis", Fault, "", f.name+" "+on)
				if err := f.do(n.world, on, d); err != nil {
					n.rec.add("nemesis", Fault, "", fmt.Sprintf("%s %s failed: %v", f.name, on, err))
				}
				n.rec.add("nemesis", Over, "", f.name+" "+on)
			})
		}
		sleep(ctx, time.Duration(n.random.Int64N(int64(n.hurry))))
	}
	doing.Wait()
}

// area is what a fault on something excludes other faults from.
func area(on string) string {
	switch on {
	case "link", "host", "far", "far-common":
		return "link"
	case "configuration", "proxy", "replicas", "cluster":
		return "proxy"
	}
	if strings.HasPrefix(on, "proxy-") { // one at a time
		return "proxy"
	}
	return on
}

func (n *nemesis) begin(on string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.busy[area(on)] {
		return false
	}
	n.busy[area(on)] = true
	return true
}

func (n *nemesis) finish(on string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.busy, area(on))
}

// toxic is a fault on a network. One that loses bytes ends with a cut, since TCP loses none in a connection
// that goes on.
func toxic(kind string, attributes object, loses bool) func(*world, string, time.Duration) error {
	return func(w *world, on string, d time.Duration) error {
		n := w.links[on]
		if err := n.poison(kind, "downstream", attributes); err != nil {
			return err
		}
		time.Sleep(d)
		n.heal()
		if loses {
			return n.cut()
		}
		return nil
	}
}

func cut(w *world, on string, _ time.Duration) error { return w.links[on].cut() }

// restart is the fault that ends a process with a signal, and starts it again.
func restart(s syscall.Signal) func(*world, string, time.Duration) error {
	return func(w *world, on string, _ time.Duration) error { return w.restart(on, s) }
}

func killServer(w *world, on string, _ time.Duration) error {
	w.signalServer(on, syscall.SIGKILL)
	return nil
}

func (w *world) suspend(on string, d time.Duration) error {
	p := w.process(on)
	p.signal(syscall.SIGSTOP)
	time.Sleep(d)
	p.signal(syscall.SIGCONT)
	return nil
}

// signalServer signals a process of a server that the proxy or the host has started.
func (w *world) signalServer(name string, s syscall.Signal) {
	for _, parent := range []string{"proxy", "host"} {
		for _, pid := range children(w.process(parent).cmd.Process.Pid) {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && strings.Contains(string(line), "\x00-name\x00"+name+"\x00") {
				_ = syscall.Kill(pid, s)
				return
			}
		}
	}
}

func (w *world) suspendServer(on string, d time.Duration) error {
	w.signalServer(on, syscall.SIGSTOP)
	time.Sleep(d)
	for _, parent := range []string{"proxy", "host"} {
		for _, pid := range children(w.process(parent).cmd.Process.Pid) {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	return nil
}

// children returns the processes whose parent is pid, zombies included.
func children(pid int) (all []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		text, _ := os.ReadFile(name) // a thread that has ended has none
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// reload changes an upstream that clients use, or one that they do not.
func (w *world) reload(_ string, _ time.Duration) error {
	file := filepath.Join(w.dir, "proxy.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	lines := strings.Split(string(text), "\n")
	changed := []string{"  spare:", "  own:", "  common:"}[time.Now().UnixNano()%3]
	for i, line := range lines {
		if strings.HasPrefix(line, changed) {
			before, after, _ := strings.Cut(line, `env: {X: "`)
			_, after, _ = strings.Cut(after, `"`)
			lines[i] = fmt.Sprintf("%senv: {X: \"%d\"%s", before, now(), after)
		}
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		return err
	}
	w.restarting.Lock()
	defer w.restarting.Unlock()
	w.process("proxy").signal(syscall.SIGHUP)
	return nil
}

// expire lets an issuer sign tokens that expire soon. Their clients come back with other ones.
func (w *world) expire(_ string, d time.Duration) error {
	w.issuer.short.Store(true)
	time.Sleep(d)
	w.issuer.short.Store(false)
	return nil
}

// withdraw gives a principal another token for a moment, which ends what its clients have.
func (w *world) withdraw(_ string, _ time.Duration) error {
	name := pick(rand.New(rand.NewPCG(w.seed, uint64(now()))), withTokens)
	file := filepath.Join(w.dir, name)
	if err := os.WriteFile(file, []byte("another-token"), 0o600); err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	return os.WriteFile(file, []byte(name+"-token"), 0o600)
}

func (w *world) takeDescriptors(on string, d time.Duration) error {
	pid := w.process(on).cmd.Process.Pid
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		return err
	}
	few := unix.Rlimit{Cur: uint64(len(open)) + 3, Max: before.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &few, nil); err != nil {
		return err
	}
	time.Sleep(d)
	return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil)
}

// readNothing is a client that asks for much and reads nothing, until it vanishes.
func (w *world) readNothing(_ string, d time.Duration) error {
	conn, err := upgrade(w.socket())
	if err != nil {
		return nil // another fault is in the way
	}
	defer conn.Close()
	_ = conn.NetConn().(*net.TCPConn).SetReadBuffer(4096)
	_ = conn.SetWriteDeadline(time.Now().Add(d))
	hello := &message{ID: []byte("0"), Method: "initialize", Params: encode(object{"protocolVersion": legacyVersion,
		"capabilities": object{}, "clientInfo": object{"name": "deaf", "version": "1"}})}
	if conn.WriteMessage(websocket.TextMessage, hello.bytes()) != nil {
		return nil
	}
	for i := range 5000 {
		m := &message{ID: []byte(strconv.Itoa(i + 1)), Method: "tools/list"}
		if conn.WriteMessage(websocket.TextMessage, m.bytes()) != nil {
			return nil
		}
	}
	time.Sleep(d)
	return nil
}
