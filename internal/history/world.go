package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A world is all that runs: a proxy, a host behind a link, a remote server of each era, and networks
// between them.
type world struct {
	seed uint64
	dir  string
	usage
	binary string       // the proxy
	self   string       // this program, which is the servers', too
	env    []string     // of what it starts, besides its own
	pause  atomic.Int64 // how long clients pause at most between operations, in nanoseconds; 0 for the gap of the usage
	plain  bool         // clients make short calls, and nothing else
	rec    *recorder
	plant  *plant
	way    *way // of the smaller world; nil for the whole one

	// patience is done when no outcome is waited for any more.
	patience context.Context
	giveUp   context.CancelFunc

	address string              // the proxy's
	links   map[string]*network // the link and the remote servers, by name
	carrier carrier             // of the link
	issuer  *issuer

	// Of the world of replicas.
	replicas map[string]*replica // by name; nil for one proxy that is alone
	balancer string              // the binary of HAProxy
	mesh     *mesh
	keys     []string // of the cluster; the first signs

	restarting sync.Mutex // held while the proxy is started again, or is asked to reload

	mu        sync.Mutex
	processes map[string]*process
	running   map[string]string // the last task of the clients of a principal and an era
}

// servers are the names of the upstreams. Those that begin with "modern-" speak the modern era, the others the
// legacy one.
var servers = []string{"own", "common", "modern-common", "remote", "modern-remote", "far", "far-common"}

// followed are the servers to whose resource clients subscribe.
var followed = []string{"common", "modern-common", "far-common"}

// tasking are the servers that run tasks for clients, by whether these are modern: tasks are not translated.
var tasking = map[bool][]string{
	false: {"own", "common", "remote", "far", "far-common"},
	true:  {"modern-common", "modern-remote"},
}

func (w *world) url() string { return "http://" + w.address }

// socket is the WebSocket of the proxy, and a token for it.
func (w *world) socket() (url, token string) {
	if w.way != nil {
		return w.fill(w.way.at), ""
	}
	return "ws://" + w.address + "/ws", w.token(0)
}

// newWorld starts everything, with more in the environment. The directory is left to the caller.
func newWorld(dir, binary string, seed uint64, p *plant, env ...string) (*world, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &world{seed: seed, dir: dir, usage: usage{kinds, servers, 10, 70, 20 * time.Millisecond, 0, 600 * time.Millisecond}, binary: binary, self: self, rec: &recorder{clock: now}, plant: p,
		carrier: carriers[seed%uint64(len(carriers))], links: map[string]*network{}, processes: map[string]*process{},
		running: map[string]string{}, env: env}
	w.patience, w.giveUp = context.WithCancel(context.Background())
	if err := os.Mkdir(w.journals(), 0o700); err != nil {
		return nil, err
	}
	if w.issuer, err = newIssuer(); err != nil {
		return nil, err
	}
	w.address = freeAddress()
	for _, name := range networks {
		target := freeAddress()
		if name == "link" && w.carrier == accepted {
			target = w.address
		}
		if w.links[name], err = newNetwork(target); err != nil {
			return nil, err
		}
	}
	if err := w.write(); err != nil {
		return nil, err
	}
	for _, name := range []string{"remote", "modern-remote", "host", "proxy"} {
		if err := w.start(name); err != nil {
			w.stop()
			return nil, err
		}
	}
	return w, w.ready()
}

func (w *world) admin() string    { return w.adminOf("") }
func (w *world) journals() string { return filepath.Join(w.dir, "journal") }

func (w *world) adminOf(replica string) string { return filepath.Join(w.dir, "admin"+replica) }

// command is an upstream on stdio in a configuration.
func (w *world) command(name, more string) string {
	return fmt.Sprintf("  %s: {command: %q, args: %s, stopGrace: 500ms, env: {X: \"0\"}%s}\n", name, w.self, list(w.serverArgs(name)), more)
}

// remotes are the remote upstreams in a configuration.
func (w *world) remotes() string {
	return "  remote: {url: \"http://" + w.links["remote"].address + "/mcp\"}\n" +
		"  modern-remote: {url: \"http://" + w.links["modern-remote"].address + "/mcp\"}\n"
}

// clientsAllowed are the clients in a configuration.
func (w *world) clientsAllowed() string {
	return "auth:\n  tokens: [{name: anna, tokenFile: anna}, {name: bert, tokenFile: bert}]\n" +
		"  jwt: [{issuer: \"" + issuerURL + "\", audience: history, jwksFile: keys.json, skew: 1s}]\n"
}

// write writes the configurations.
func (w *world) write() error {
	files := map[string]string{
		"anna": "anna-token", "bert": "bert-token", "host": "host-token", "keys.json": w.issuer.keys(),
		"host.yaml": "upstreams:\n" + w.command("far", "") + w.command("far-common", ", session: shared"),
		"proxy.yaml": "listen: [\"" + w.address + "\"]\nshutdownGrace: 2s\nsessionIdle: 3s\nsessionGone: 3s\nlimits: {sessions: 1000}\n" +
			"admin: {listen: [\"unix://" + w.admin() + "\"]}\n" +
			w.clientsAllowed() +
			"upstreams:\n" + w.command("own", "") + w.command("common", ", session: shared") + w.command("modern-common", ", session: shared") +
			w.remotes() +
			"  spare: {command: \"" + w.self + "\", args: [server, -name, spare, -journal, \"" + w.journals() + "\"], env: {X: \"0\"}}\n" +
			"links: {link: {" + w.linkOf() + ", heartbeat: 1s}}\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) serverArgs(name string) []string {
	args := []string{"server", "-name", name, "-journal", w.journals()}
	if w.plant != nil {
		args = append(args, "-plant", w.plant.server())
	}
	if strings.HasPrefix(name, "modern-") {
		args = append(args, "-era", "modern")
	}
	return args
}

// argv is the command line of a process of this world.
func (w *world) argv(name string) []string {
	switch {
	case name == "proxy" && w.way != nil:
		return w.wayArgv()
	case name == balancer:
		return []string{w.balancer, "-db", "-f", filepath.Join(w.dir, "haproxy.cfg")}
	case strings.HasPrefix(name, "proxy"):
		return []string{w.binary, "serve", "--config", filepath.Join(w.dir, name+".yaml"), "--log-format", "json", "--log-level", "debug"}
	case name == "host":
		return append([]string{w.binary, "host", "--config", filepath.Join(w.dir, "host.yaml"), "--heartbeat", "1s",
			"--log-format", "json", "--log-level", "debug"}, w.hostArgs()...)
	}
	return append(append([]string{w.self}, w.serverArgs(name)...), "-listen", w.links[name].target)
}

// A carrier is what a link is made of, and who dials it. The seed chooses one for all of a run.
type carrier string

const (
	dialled  carrier = "tcp"
	socketed carrier = "WebSocket to the host"
	accepted carrier = "WebSocket to the proxy"
)

var carriers = []carrier{dialled, socketed, accepted}

// linkOf is the link in the proxy's configuration, and hostArgs what the host does for it.
func (w *world) linkOf() string {
	switch w.carrier {
	case socketed:
		return fmt.Sprintf("dial: %q, tokenFile: host", "ws://"+w.links["link"].address)
	case accepted:
		return "accept: true, tokenFile: host"
	}
	return fmt.Sprintf("dial: %q", "tcp://"+w.links["link"].address)
}

func (w *world) hostArgs() []string {
	token := []string{"--token-file", filepath.Join(w.dir, "host")}
	switch w.carrier {
	case socketed:
		return append(token, "--listen", "ws://"+w.links["link"].target)
	case accepted:
		return append(token, "--dial", "ws://"+w.links["link"].address+"/link")
	}
	return []string{"--listen", "tcp://" + w.links["link"].target}
}

// A process is one that this program started.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it is reaped
}

func (w *world) start(name string) error {
	argv := w.argv(name)
	log, err := os.OpenFile(filepath.Join(w.dir, name+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append(os.Environ(), w.env...)
	if name == balancer { // a script may have it in the user's cache
		p.cmd.Env = append(p.cmd.Env, "XDG_CACHE_HOME="+userCache)
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.processes[name] = p
	return nil
}

func (w *world) process(name string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes[name]
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// end ends a process with a signal, if that suffices.
func (w *world) end(name string, s syscall.Signal) {
	p := w.process(name)
	p.signal(s)
	select {
	case <-p.done:
	case <-time.After(stopping):
		w.rec.add(name, Hangs, "", fmt.Sprintf("to end after %v", s))
		p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// restart ends a process with a signal and starts it again. Until the proxy answers, nobody else signals it: a
// program that has not asked for SIGHUP yet ends.
func (w *world) restart(name string, s syscall.Signal) error {
	if name != "proxy" {
		w.end(name, s)
		return w.start(name)
	}
	w.restarting.Lock()
	defer w.restarting.Unlock()
	w.end(name, s)
	if err := w.start(name); err != nil {
		return err
	}
	for end := time.Now().Add(stopping); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err := w.ask("/status"); err == nil {
			break
		}
	}
	return nil
}

// ready waits until the proxy answers and its link is up.
func (w *world) ready() error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var status struct{ Links []struct{ Up bool } }
		text, err := w.ask("/status")
		if err == nil && json.Unmarshal(text, &status) == nil && len(status.Links) == 1 && status.Links[0].Up {
			return nil
		}
	}
	return errors.New("the proxy is not ready in 30 s")
}

// ask asks the proxy as its operators do.
func (w *world) ask(path string) ([]byte, error) { return w.askAt(w.admin(), path) }

func (w *world) askAt(socket, path string) ([]byte, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: 5 * time.Second}).Get("http://localhost" + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: HTTP %d", path, resp.StatusCode)
	}
	return text, err
}

// stop ends everything, and waits for that.
func (w *world) stop() {
	if w.replicas != nil {
		w.stopReplicas()
	}
	for _, name := range []string{"proxy", "host", "remote", "modern-remote"} {
		if w.process(name) == nil {
			continue
		}
		if name == "proxy" || name == "host" {
			w.end(name, syscall.SIGTERM)
		} else {
			w.end(name, syscall.SIGKILL)
		}
	}
	for _, n := range w.links {
		n.close()
	}
}

// freeAddress returns an address of this machine where nothing listens. Its port is none of those that connections
// get, since what listens there has to come back after a restart.
// It is given once.
func freeAddress() string {
	for {
		address := fmt.Sprintf("127.0.0.1:%d", 20_000+rand.IntN(10_000))
		if _, given := givenAddresses.LoadOrStore(address, true); given {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			l.Close()
			return address
		}
	}
}

var givenAddresses sync.Map
