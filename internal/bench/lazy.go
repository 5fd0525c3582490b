package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// laziness is what clients and the proxy gain from upstreams that start when they are needed.
// Memory and processes are the proxy's.
type laziness struct {
	clients int

	again      time.Duration   // from the start of a proxy that knows all upstreams to tools; the faster of two
	look, hung []time.Duration // from connections to such answers; also with one upstream that hangs now
	processes  int             // at most, after any of this
	each       float64         // bytes, private, for each client that stays

	spare, warm []time.Duration // first calls to a server that starts slowly, and second ones
}

const (
	lazyUpstreams = 12
	slowStart     = time.Second // of a server with a spare
)

// Configurations with upstreams that start when they are needed.
const (
	lazy  = "lazy"
	spare = "spare"
)

// writeLazy writes the configurations, whose proxies keep lists in one directory. The first upstream of
// lazy hangs from its start on when the file hangs exists.
func (b programs) writeLazy() error {
	upstreams := []string{fmt.Sprintf(`"u0": {"command": "sh", "args": ["-c", "[ ! -e %s ] || exec sleep 60; exec %s"], "era": "legacy"}`, b.file("hangs"), b.echo)}
	for i := 1; i < lazyUpstreams; i++ {
		upstreams = append(upstreams, fmt.Sprintf(`"u%d": {"command": %q, "era": "legacy"}`, i, b.echo))
	}
	text := func(upstreams ...string) []byte {
		return fmt.Appendf(nil, `{"upstreams": {%s}, "cacheDir": %q, "limits": {"sessions": 4096}}`, strings.Join(upstreams, ", "), b.file("kept"))
	}
	slow := fmt.Sprintf(`"slow": {"command": "sh", "args": ["-c", "sleep %g; exec %s"], "era": "legacy", "spare": 1}`, slowStart.Seconds(), b.echo)
	return errors.Join(
		os.WriteFile(b.config(lazy), text(upstreams...), 0o600),
		os.WriteFile(b.config(spare), text(slow, upstreams[1]), 0o600))
}

// lazinessOf measures a proxy, again after a run in which it has come to know all upstreams. It returns
// nil for an older proxy, which starts all servers with each client.
func lazinessOf(b programs, o options) (*laziness, error) {
	if err := b.writeLazy(); err != nil {
		return nil, err
	}
	if output, err := exec.Command(b.proxy, "check", b.config(spare)).CombinedOutput(); err != nil {
		if strings.Contains(string(output), "spare") {
			return nil, nil
		}
		return nil, fmt.Errorf("%w\n%s", err, output)
	}
	l := &laziness{clients: 1000}
	if o.quick {
		l.clients = 200
	}
	known := func(*session) error { return nil }
	looks := func(times *[]time.Duration) func(*session) error {
		return func(s *session) (err error) {
			*times, err = s.looks(20 * o.rounds)
			l.processes = max(l.processes, s.procs[0].children())
			return err
		}
	}
	steps := []func(*session) error{known, looks(&l.look), l.crowd}
	for i, step := range steps {
		took, err := b.lazily(step)
		if err != nil {
			return nil, err
		}
		if i > 0 && (l.again == 0 || took < l.again) {
			l.again = took
		}
	}
	if err := os.WriteFile(b.file("hangs"), nil, 0o600); err != nil {
		return nil, err
	}
	if _, err := b.lazily(looks(&l.hung)); err != nil {
		return nil, err
	}
	return l, l.calls(b, o)
}

// lazily runs a proxy with lazy upstreams for a step, after a first client has asked for the tools. It
// returns when the client had them after the start of the proxy.
func (b programs) lazily(step func(*session) error) (took time.Duration, err error) {
	s, err := b.webSocket(lazy).launch(probe{})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(s.explain(err), s.end()) }()
	if _, err := s.looks(1); err != nil {
		return 0, err
	}
	took = time.Since(s.started)
	return took, step(s)
}

// looks has clients come one after the other, ask for the tools, and go. It returns the times from the
// connection to the tools.
func (s *session) looks(n int) (times []time.Duration, err error) {
	addr, err := s.procs[0].address()
	if err != nil {
		return nil, err
	}
	for range n {
		begin := time.Now()
		c, err := dialWebSocket(addr, "/ws", ample)
		if err != nil {
			return nil, err
		}
		c.several = true // it leaves, and readLoop with it
		s.readers.Go(c.readLoop)
		client := c.caller(s.nextID)
		err = errors.Join(client.initialize(), client.initialized(), client.request("tools/list", `{"of":"echo"}`, 0))
		times = append(times, time.Since(begin))
		c.w.Close()
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(times)
	return times, nil
}

// crowd measures the memory of clients that have asked for the tools.
func (l *laziness) crowd(s *session) error {
	time.Sleep(settle)
	empty, err := s.procs[0].private()
	if err != nil {
		return err
	}
	for range l.clients {
		c, err := openWebSocket(s.procs[0])
		if err != nil {
			return err
		}
		if err := s.join(c); err != nil {
			return err
		}
	}
	time.Sleep(settle)
	full, err := s.procs[0].private()
	l.each = (full - empty) / float64(l.clients)
	l.processes = max(l.processes, s.procs[0].children())
	return err
}

// calls measures first calls of clients when a spare process has started, and second ones.
func (l *laziness) calls(b programs, o options) (err error) {
	s, err := b.webSocket(spare).launch(probe{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(s.explain(err), s.end()) }()
	if _, err := s.looks(1); err != nil {
		return err
	}
	for range o.rounds {
		c, err := openWebSocket(s.procs[0])
		if err != nil {
			return err
		}
		if err := s.join(c); err != nil {
			return err
		}
		time.Sleep(slowStart + slowStart/4) // the spare has started
		for _, times := range []*[]time.Duration{&l.spare, &l.warm} {
			begin := time.Now()
			if err := s.callers[len(s.callers)-1].callTool("slow__echo", 0); err != nil {
				return err
			}
			*times = append(*times, time.Since(begin))
		}
	}
	slices.Sort(l.spare)
	slices.Sort(l.warm)
	return nil
}

// lazinesses prints what upstreams gain that start when they are needed.
func lazinesses(w io.Writer, b programs, o options) error {
	l, err := lazinessOf(b, o)
	switch {
	case err != nil:
		return fmt.Errorf("upstreams that start when they are needed: %w", err)
	case l == nil:
		_, err = fmt.Fprintln(w, "this proxy starts all upstreams with each client")
		return err
	}
	return printLaziness(w, l)
}

// children returns how many children a process has.
func (p *process) children() (n int) {
	of := strconv.Itoa(p.cmd.Process.Pid)
	all, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range all {
		text, _ := os.ReadFile(stat) // one that has ended is no child
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == of {
			n++
		}
	}
	return n
}

// private returns the memory in bytes that a process shares with no other.
func (p *process) private() (bytes float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.HasPrefix(key, "Private_") {
			kib, bad := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			bytes, err = bytes+kib*1024, errors.Join(err, bad)
		}
	}
	return bytes, err
}
