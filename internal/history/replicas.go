package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The world of replicas has three proxies behind HAProxy, and at times a fourth one. Their servers keep what clients
// share outside of their processes, so that it does not matter which replica has started them.

// replicaNames are the names of the replicas. The last one is started by a fault alone.
var replicaNames = []string{"proxy-1", "proxy-2", "proxy-3", "proxy-4"}

var steady = replicaNames[:3]

// replicaServers are their upstreams.
var replicaServers = []string{"own", "common", "modern-common", "remote", "modern-remote"}

// replicaKinds are their clients. A client on stdio has one of the WebSockets.
var replicaKinds = []kind{
	{"WebSocket", false, dialWebSocket, []string{"close", "hang up", "vanish"}},
	{"HTTP", false, dialBalanced(false), []string{"close", "hang up", "vanish"}},
	{"modern HTTP", true, dialBalanced(true), []string{"vanish"}},
	{"SSE", false, dialSSE, []string{"vanish"}},
	{"HTTP", false, dialBalanced(false), []string{"close", "vanish"}},
	{"modern WebSocket", true, dialWebSocket, []string{"close", "hang up", "vanish"}},
}

// dialBalanced is a client of Streamable HTTP that knows that there may be several proxies.
func dialBalanced(modern bool) func(w *world, tokens func() string, to receiver) (wire, error) {
	return func(w *world, tokens func() string, to receiver) (wire, error) {
		p := newPosts(w.url()+"/mcp", tokens, modern, to)
		p.balanced, p.plant = true, w.plant
		return p, nil
	}
}

// A replica is what a proxy among several has of its own.
type replica struct {
	address string // for clients
	probes  string // of readiness
	mesh    *meshEnd
}

// newReplicas starts everything. The directory is left to the caller.
func newReplicas(dir string, o options, p *plant) (*world, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	haproxy, err := exec.LookPath(o.haproxy)
	if err != nil {
		return nil, fmt.Errorf("replicas need a balancer: %w", err)
	}
	w := &world{seed: o.seed, dir: dir, usage: usage{replicaKinds, replicaServers, 10, 70, 20 * time.Millisecond, 0, 2 * time.Second},
		binary: o.proxy, self: self, rec: &recorder{clock: now}, plant: p, links: map[string]*network{},
		processes: map[string]*process{}, running: map[string]string{}, balancer: haproxy, replicas: map[string]*replica{}}
	w.patience, w.giveUp = context.WithCancel(context.Background())
	w.rec.add("nemesis", Replicated, "", fmt.Sprint(len(steady)))
	if err := os.Mkdir(w.journals(), 0o700); err != nil {
		return nil, err
	}
	if w.issuer, err = newIssuer(); err != nil {
		return nil, err
	}
	for _, name := range remotes {
		if w.links[name], err = newNetwork(freeAddress()); err != nil {
			return nil, err
		}
	}
	w.address, w.mesh = freeAddress(), newMesh(w.process)
	for _, name := range replicaNames {
		r := &replica{address: freeAddress(), probes: freeAddress()}
		if r.mesh, err = w.mesh.join(name); err != nil {
			return nil, err
		}
		w.replicas[name] = r
	}
	if err := w.writeReplicas(); err != nil {
		return nil, err
	}
	for _, name := range append([]string{"remote", "modern-remote"}, append(steady[:3:3], balancer)...) {
		if err := w.start(name); err != nil {
			w.stop()
			return nil, err
		}
	}
	if err := w.isWhole(); err != nil {
		w.stop()
		return nil, err
	}
	if err := w.isBalanced(); err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

// isBalanced waits until the balancer has found a replica.
func (w *world) isBalanced() error {
	if err := listens(w.address, w.process(balancer)); err != nil {
		return err
	}
	for end := time.Now().Add(stopping); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		resp, err := http.Get(w.url() + "/healthz")
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("the balancer finds no replica in %v", stopping)
}

// balancer is the name of HAProxy's process.
const balancer = "balancer"

var userCache = os.Getenv("XDG_CACHE_HOME")

// writeReplicas writes the configurations.
func (w *world) writeReplicas() error {
	w.keys = []string{newClusterKey()}
	files := map[string]string{"anna": "anna-token", "bert": "bert-token", "keys.json": w.issuer.keys(), "cluster": w.keys[0],
		"haproxy.cfg": w.balance()}
	var join []string
	for _, name := range replicaNames {
		join = append(join, w.replicas[name].mesh.advertised.String())
	}
	for _, name := range replicaNames {
		r := w.replicas[name]
		files[name+".yaml"] = fmt.Sprintf("listen: [%q]\nshutdownGrace: 6s\ndrainDelay: 1500ms\nsessionIdle: 5s\nsessionGone: 5s\nlimits: {sessions: 1000}\n"+
			"admin: {listen: [%q, %q]}\n"+
			"cluster: {keyFile: cluster, listen: %q, advertise: %q, join: %s}\n",
			r.address, "unix://"+w.adminOf(name), r.probes, r.mesh.listens, r.mesh.advertised, list(join)) +
			w.clientsAllowed() + "upstreams:\n" + w.command("own", "") + w.command("common", ", session: shared") +
			w.command("modern-common", ", session: shared") + w.remotes()
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func newClusterKey() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key)
}

// balance is the configuration of HAProxy: as that of examples/replicas, with all replicas on this machine. It tries
// another replica only if there was no connection.
func (w *world) balance() string {
	var b strings.Builder
	b.WriteString(`global
  maxconn 4000
defaults
  mode http
  retries 3
  retry-on conn-failure
  option redispatch 1
  option http-no-delay
  option abortonclose
  timeout connect 3s
  timeout client 1h
  timeout server 1h
  timeout tunnel 1h
  timeout check 1s
frontend clients
`)
	fmt.Fprintf(&b, "  bind %s\n  default_backend replicas\nbackend replicas\n  balance roundrobin\n  option httpchk\n", w.address)
	b.WriteString("  http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost\n")
	for _, name := range replicaNames {
		r := w.replicas[name]
		_, port, _ := net.SplitHostPort(r.probes)
		fmt.Fprintf(&b, "  server %s %s check port %s inter 300ms fall 1 rise 1\n", name, r.address, port)
	}
	return b.String()
}

// isWhole waits until each replica is ready, and knows all others as such.
func (w *world) isWhole() error {
	var last error
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if last = w.knowEachOther(); last == nil {
			return nil
		}
	}
	return fmt.Errorf("the replicas do not find each other in 60 s: %w", last)
}

func (w *world) knowEachOther() error {
	for _, name := range steady {
		var status struct {
			Replicas []struct {
				State       string
				Unreachable bool
			}
		}
		text, err := w.askAt(w.adminOf(name), "/status")
		if err = errors.Join(err, json.Unmarshal(text, &status)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		ready := 0
		for _, r := range status.Replicas {
			if r.State == "ready" && !r.Unreachable {
				ready++
			}
		}
		if ready != len(steady) {
			return fmt.Errorf("%s knows %d replicas that are ready", name, ready)
		}
	}
	return nil
}

// isReady reports whether a replica says that it is ready.
func (w *world) isReady(name string) bool {
	_, err := w.askAt(w.adminOf(name), "/readyz")
	return err == nil
}

// await waits until a replica that was started is ready.
func (w *world) await(name string) error {
	for end := time.Now().Add(stopping); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if w.isReady(name) {
			return nil
		}
	}
	return fmt.Errorf("%s is not ready in %v", name, stopping)
}

// replicaFaults are what happens to replicas, one at a time.
var replicaFaults = []fault{
	{"restart proxy", steady, restartReplica, 0},
	{"roll proxies", []string{"replicas"}, roll, 0},
	{"stop proxy", steady, (*world).suspend, 2500 * time.Millisecond},
	{"replace key", []string{"cluster"}, replaceKey, 0},
	{"come and go", []string{"proxy-4"}, comeAndGo, 0},
	{"kill proxy", steady, killReplica, 8 * time.Second},
	{"freeze proxy", steady, freeze, 2 * time.Second},
	{"split proxy", steady, split, 12 * time.Second},
	{"take key", []string{"cluster"}, takeKey, 0},
}

// crashes are those of them by which clients may lose what a replica had.
var crashes = []string{"kill proxy", "freeze proxy", "split proxy", "take key"}

// restartReplica restarts a replica as an operator does, who waits until it is ready.
func restartReplica(w *world, on string, _ time.Duration) error {
	w.end(on, syscall.SIGTERM)
	if err := w.start(on); err != nil {
		return err
	}
	return w.await(on)
}

// roll restarts all replicas, one after the other. The history has each as a fault of its own, too.
func roll(w *world, _ string, _ time.Duration) error {
	for _, name := range steady {
		w.rec.add("nemesis", Fault, "", "restart proxy "+name)
		err := restartReplica(w, name, 0)
		w.rec.add("nemesis", Over, "", "restart proxy "+name)
		if err != nil {
			return err
		}
	}
	return nil
}

// killReplica kills a replica, and starts it again before it is declared dead, or after that.
func killReplica(w *world, on string, d time.Duration) error {
	w.end(on, syscall.SIGKILL)
	time.Sleep(d)
	return errors.Join(w.start(on), w.isWhole())
}

// freeze stops a replica for so long that it is declared dead.
func freeze(w *world, on string, d time.Duration) error {
	return errors.Join(w.suspend(on, 20*time.Second+d), w.isWhole())
}

// split takes a replica from the others, but not from the balancer.
func split(w *world, on string, d time.Duration) error {
	w.mesh.split(on, d)
	return w.isWhole()
}

// comeAndGo starts a fourth replica and ends it, again and again.
func comeAndGo(w *world, on string, _ time.Duration) error {
	for range 3 {
		if err := w.start(on); err != nil {
			return err
		}
		if err := w.await(on); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond) // the balancer has found it
		w.rec.add("nemesis", Fault, "", "restart proxy "+on)
		w.end(on, syscall.SIGTERM)
		w.rec.add("nemesis", Over, "", "restart proxy "+on)
	}
	return nil
}

// keyRead is the time in which each replica has read its keys again.
const keyRead = 1500 * time.Millisecond

// replaceKey adds a key, and moves it to the front. The old ones stay.
func replaceKey(w *world, _ string, _ time.Duration) error {
	return errors.Join(w.addKey(), w.signWithLast())
}

func (w *world) addKey() error {
	if len(w.keys) > 10 { // a file has 16 at most
		return errors.New("there are enough keys")
	}
	return w.useKeys(append(w.keys[:len(w.keys):len(w.keys)], newClusterKey()))
}

func (w *world) signWithLast() error {
	last := len(w.keys) - 1
	return w.useKeys(append([]string{w.keys[last]}, w.keys[:last]...))
}

func (w *world) useKeys(keys []string) error {
	w.keys = keys
	file := filepath.Join(w.dir, "cluster")
	if err := os.WriteFile(file+".new", []byte(strings.Join(keys, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	defer time.Sleep(keyRead)
	return os.Rename(file+".new", file)
}

// takeKey replaces the key and takes away the old ones. A session from before is then unknown to each replica.
func takeKey(w *world, _ string, _ time.Duration) error {
	s := &probing{world: w}
	if status, err := s.ask("initialize"); err != nil || status != http.StatusOK {
		return fmt.Errorf("initialize: HTTP %d, %w", status, err)
	}
	for _, step := range []struct {
		do   func() error
		want int
	}{
		{w.addKey, http.StatusOK}, {w.signWithLast, http.StatusOK},
		{func() error { return w.useKeys(w.keys[:1]) }, http.StatusNotFound},
	} {
		if err := step.do(); err != nil {
			return err
		}
		for range steady {
			if status, err := s.ask("ping"); status != step.want {
				w.rec.add("nemesis", Kept, "", fmt.Sprintf("a session got HTTP %d (%v) and not %d, with %d keys", status, err, step.want, len(w.keys)))
			}
		}
	}
	return w.isWhole()
}

// stopReplicas ends all proxies and the balancer.
func (w *world) stopReplicas() {
	var ending sync.WaitGroup
	for _, name := range append(replicaNames[:4:4], balancer) {
		if w.process(name) != nil {
			ending.Go(func() { w.end(name, syscall.SIGTERM) })
		}
	}
	ending.Wait()
	w.mesh.close()
}
