package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// A target is one way from a client to the echo server.
type target struct {
	name string
	argv []string
	// env is what it has in its environment besides ours.
	env []string
	// serves says that it is reached over the network.
	serves bool
	// far is what runs elsewhere, and first. It finds its own way to the echo
	// server; argv finds it by its URL, in $FAR.
	far []string
	// at is the URL at which it is reached, of a program that is told its port;
	// {port} and {far} stand for that and for the URL of far, in argv, too. In argv
	// {config} is the path of a file that has the text config.
	at, config string
	// prefix is what it puts before the names of tools.
	prefix string
	// open returns a connection to the started process.
	open func(p *process) (*conn, error)
	// whole says that answers are wanted with their messages.
	// It also says that several calls at a time are on one connection.
	whole bool
	// hops says that the session begins at far, a replica of argv, and is used at argv.
	hops bool
	// clients is how many connect, each with a session; zero means one.
	clients int
	// bridged says that this target does more than its base by one bridge
	// between the eras.
	bridged bool
	// base names the target that this one is set against; "" means the relay.
	base string
}

// programs are the paths of what is measured, and dir of all that they need.
type programs struct {
	dir, proxy, echo, relay, mortal, floor string
}

// Configurations of the proxy: its one upstream is a process of each client's
// own, one for all clients, behind a link, remote, or speaks the modern era.
const (
	alone   = "alone"
	shared  = "shared"
	linked  = "linked"
	remote  = "remote"
	without = "without" // sessions
)

// writeConfigs writes all configurations, each with room for all clients.
func (b programs) writeConfigs() error {
	for name, upstream := range map[string]string{
		alone:   fmt.Sprintf(`"upstreams": {"echo": {"command": %q, "era": "legacy"}}`, b.echo),
		shared:  fmt.Sprintf(`"upstreams": {"echo": {"command": %q, "era": "legacy", "session": "shared"}}`, b.echo),
		linked:  `"links": {"far": {"dial": "${FAR}"}}`,
		remote:  `"upstreams": {"echo": {"url": "${FAR}", "era": "legacy"}}`,
		without: fmt.Sprintf(`"upstreams": {"echo": {"command": %q, "era": "modern"}}`, b.echo),
	} {
		text := fmt.Sprintf(`{%s, "limits": {"sessions": 4096}}`, upstream)
		if err := os.WriteFile(b.config(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (b programs) file(name string) string { return filepath.Join(b.dir, name) }

func (b programs) config(name string) string { return b.file(name + ".json") }

func (b programs) stdio(config string) []string {
	return []string{b.proxy, "stdio", "--config", b.config(config)}
}

func (b programs) serve(config string) []string {
	return []string{b.proxy, "serve", "--config", b.config(config), "--listen", "127.0.0.1:0"}
}

func (b programs) host(config, url string) []string {
	return []string{b.proxy, "host", "--config", b.config(config), "--listen", url}
}

// socket is the URL of a Unix socket for links.
func (b programs) socket() string { return "unix://" + b.file("link.sock") }

// targets returns all whose calls are measured.
func (b programs) targets() []target {
	return []target{
		{name: "direct", argv: []string{b.echo}, open: openStdio},
		{name: "relay", argv: []string{b.relay, b.echo}, open: openStdio},
		{name: "stdio", argv: b.stdio(alone), open: openStdio},
		{name: "websocket", argv: b.serve(alone), serves: true, open: openWebSocket},
		{name: "http", argv: b.serve(alone), serves: true, open: openHTTP},
		{name: "unix link", base: "stdio", far: b.host(alone, b.socket()), argv: b.stdio(linked), open: openStdio},
		{name: "tcp link", base: "stdio", far: b.host(alone, "tcp://127.0.0.1:0"), argv: b.stdio(linked), open: openStdio},
		{name: "remote", base: "stdio", far: []string{b.echo, "http"}, argv: b.stdio(remote), open: openStdio},
		{name: "remote http", base: "http", far: []string{b.echo, "http"}, argv: b.serve(remote), serves: true, open: openHTTP},
		{name: "shared", base: "websocket", argv: b.serve(shared), serves: true, open: openWebSocket},
		{name: "shared http", base: "http", argv: b.serve(shared), serves: true, open: openHTTP},
		// A modern server is one process for all clients, as a shared one is.
		{name: "modern http", base: "shared http", argv: b.serve(without), serves: true, open: openModern},
		{name: "modern http to legacy", base: "modern http", argv: b.serve(alone), serves: true, open: openModern, bridged: true},
		{name: "stdio to modern", base: "stdio", argv: b.stdio(without), open: openStdio, bridged: true},
		{name: "shared by 50", base: "shared", argv: b.serve(shared), serves: true, open: openWebSocket, clients: 50},
	}
}

// webSocket returns a target for WebSocket clients whose calls are not measured
// with the others.
func (b programs) webSocket(config string, far ...string) target {
	return target{argv: b.serve(config), serves: true, far: far, open: openWebSocket}
}

func openStdio(p *process) (*conn, error) {
	return newConn(&lineWire{}, p.out, p.in, ample), nil
}

func openWebSocket(p *process) (*conn, error) {
	addr, err := p.address()
	if err != nil {
		return nil, err
	}
	return dialWebSocket(addr, "/ws", ample)
}

// openWebSocketAt is openWebSocket for a path that the target says.
func openWebSocketAt(p *process) (*conn, error) {
	said, err := p.url()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(said)
	if err != nil {
		return nil, err
	}
	return dialWebSocket(u.Host, u.Path, ample)
}

func openHTTP(p *process) (*conn, error) {
	addr, err := p.address()
	if err != nil {
		return nil, err
	}
	return dialHTTP(addr)
}

// openHTTPWith is openHTTP for a client that shows a token.
func openHTTPWith(token string) func(*process) (*conn, error) {
	return func(p *process) (*conn, error) {
		c, err := openHTTP(p)
		if err == nil {
			c.wire.(*httpWire).token = token
		}
		return c, err
	}
}

// openHTTPAtRoot is openHTTP for an endpoint that is /.
func openHTTPAtRoot(p *process) (*conn, error) {
	c, err := openHTTP(p)
	if err != nil {
		return nil, err
	}
	c.wire.(*httpWire).root = true
	return c, nil
}

func openModern(p *process) (*conn, error) {
	addr, err := p.address()
	if err != nil {
		return nil, err
	}
	return dialModern(addr)
}

// A session is a started target that answers calls, of one client or several.
type session struct {
	procs   []*process // the one that clients reach, and then the far one
	far     string     // the URL of the far one
	started time.Time  // of the first of procs
	conns   []*conn
	callers []*caller
	first   time.Duration // from the start of the process to its first answer

	ids     atomic.Int64
	readers sync.WaitGroup // the readLoop of each conn that has one
}

// launch starts tgt's processes, and no client.
func (tgt target) launch(pr probe) (*session, error) {
	s := &session{}
	env := append(pr.env(), tgt.env...)
	if tgt.far != nil {
		far, err := start(tgt.far, true, append(pr.ofFar().env(), tgt.env...)...)
		if err != nil {
			return nil, err
		}
		s.procs = append(s.procs, far)
		where, err := far.url()
		if err != nil {
			return nil, errors.Join(s.explain(err), s.end())
		}
		env, s.far = append(env, "FAR="+where), where
	}
	near, err := tgt.near(s, env)
	if near != nil {
		s.procs = append([]*process{near}, s.procs...)
	}
	if err != nil {
		return nil, errors.Join(s.explain(err), s.end())
	}
	return s, nil
}

// begin starts tgt and opens a session through it for each of its clients.
func (tgt target) begin(pr probe) (*session, error) {
	s, err := tgt.launch(pr)
	if err != nil {
		return nil, err
	}
	if err := s.handshake(tgt); err != nil {
		return nil, errors.Join(s.explain(err), s.end())
	}
	return s, nil
}

// handshake initializes the sessions and makes their callers, which share the
// connections or have one each.
func (s *session) handshake(tgt target) error {
	at := s.procs[0]
	if tgt.hops {
		at = s.procs[1]
	}
	for range max(tgt.clients, 1) {
		c, err := tgt.open(at)
		if err != nil {
			return err
		}
		c.prefix, c.whole, c.several = tgt.prefix, tgt.whole, tgt.whole
		if err := s.join(c); err != nil {
			return err
		}
		s.first = cmp.Or(s.first, time.Since(s.started))
	}
	if tgt.hops {
		if err := s.hop(); err != nil {
			return err
		}
	}
	for i := 0; len(s.callers) < width; i++ {
		c := s.conns[i%len(s.conns)]
		w, each := c.wire.(*httpWire)
		if !each {
			s.callers = append(s.callers, c.caller(s.nextID))
			continue
		}
		another, err := c.another(w, ample)
		if err != nil {
			return err
		}
		s.add(another)
	}
	return nil
}

// join adds c, initializes its session, and asks for the tools, as clients do.
func (s *session) join(c *conn) error {
	client, err := s.greet(c)
	if err != nil {
		return err
	}
	return client.request("tools/list", `{"of":"echo"}`, 0)
}

// greet adds c and initializes its session.
func (s *session) greet(c *conn) (*caller, error) {
	client := s.add(c)
	if err := client.initialize(); err != nil {
		return nil, err
	}
	return client, client.initialized()
}

// add takes c over and returns its first caller.
func (s *session) add(c *conn) *caller {
	s.conns = append(s.conns, c)
	if c.several {
		s.readers.Go(c.readLoop)
	}
	s.callers = append(s.callers, c.caller(s.nextID))
	return s.callers[len(s.callers)-1]
}

func (s *session) nextID() int { return int(s.ids.Add(1)) }

// explain adds the end of what the processes logged to err.
func (s *session) explain(err error) error {
	for _, p := range s.procs {
		err = p.explain(err)
	}
	return err
}

// endAfter is end for a session of which err is known, which it explains.
func (s *session) endAfter(err error) error { return errors.Join(s.explain(err), s.end()) }

// end closes the connections and stops the processes.
func (s *session) end() error {
	for _, c := range s.conns {
		c.w.Close() // stop reports what matters
	}
	var errs []error
	for _, p := range s.procs {
		errs = append(errs, p.stop())
	}
	s.readers.Wait()
	return errors.Join(errs...)
}
