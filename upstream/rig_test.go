//go:build unix

package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// patience is for events that must come; nothing waits that long when all is well.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if role := os.Getenv(fakeEnv); role != "" {
		runFake(role)
	}
	os.Setenv(markEnv, strconv.Itoa(os.Getpid()))
	conntest.Parallel(8)
	code := m.Run()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	left := markedProcesses()
	for end := time.Now().Add(5 * time.Second); len(left) > 0 && time.Now().Before(end); left = markedProcesses() {
		time.Sleep(10 * time.Millisecond) // for grandchildren, whose parent was killed with them
	}
	if len(left) > 0 {
		fmt.Fprintln(os.Stderr, "processes left behind:", left)
		code = 1
	}
	os.Exit(code)
}

// markedProcesses returns the processes that this run has started, directly or
// not, and zombies that are our children. Nothing but Linux can tell.
func markedProcesses() (pids []int) {
	mark := fmt.Appendf(nil, "%s=%d\x00", markEnv, os.Getpid())
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range entries {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		env, _ := os.ReadFile(dir + "/environ")
		if pid != os.Getpid() && (bytes.Contains(append(env, 0), mark) || parent(dir) == os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func parent(dir string) int {
	stat, _ := os.ReadFile(dir + "/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0
	}
	pid, _ := strconv.Atoi(fields[1])
	return pid
}

// alive reports whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// eventually waits until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// fakeCommand returns a Command that runs the fake server.
func fakeCommand(traits ...string) process.Command {
	return process.Command{
		Path:       os.Args[0],
		InheritEnv: []string{markEnv, "GOCOVERDIR"},
		Env:        []string{"GORACE=atexit_sleep_ms=0", fakeEnv + "=serve", traitsEnv + "=" + strings.Join(traits, ",")},
		StopGrace:  3 * time.Second,
	}
}

// A rig is a host with one upstream named "fake".
type rig struct {
	t    testing.TB
	host *Host
	log  *logBook

	mu     sync.Mutex // guards events
	events map[string]observe.Event
}

func newRig(t testing.TB, command process.Command) *rig {
	return newRigOf(t, Upstream{Command: &command})
}

func newRigOf(t testing.TB, up Upstream) *rig {
	r := &rig{t: t, log: &logBook{}, events: make(map[string]observe.Event)}
	r.host = &Host{
		Upstreams: map[string]Upstream{"fake": up},
		Log:       slog.New(slog.NewJSONHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Hooks:     observe.Hooks{Happened: r.happened},
	}
	t.Cleanup(func() { // after the cleanups of all clients
		r.host.Stop(context.Background())
		r.logIsTold()
	})
	return r
}

func (r *rig) happened(e observe.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[e.ID] = e
}

// logIsTold checks that each warning that names an event is what hooks were told of it.
func (r *rig) logIsTold() {
	if r.host.Hooks.Happened == nil {
		return // a test has hooks of its own
	}
	for _, line := range r.log.at(slog.LevelWarn) {
		id, named := line["event"].(string)
		e, told := r.events[id]
		stderr, _ := line["stderr"].(string)
		inFlight, _ := line["in_flight"].(float64)
		switch {
		case !named:
		case !told:
			r.t.Errorf("hooks do not hear of %v", line)
		case strings.Join(e.Stderr, "\n") != stderr || e.InFlight != int(inFlight) || e.Upstream != "fake" || e.What == "" || e.Class == "":
			r.t.Errorf("the log says %v, and hooks hear %+v", line, e)
		}
	}
}

// A client is the proxy's end of one stream.
type client struct {
	*jsonrpc.PipeConn
	t      testing.TB
	host   *hostConn
	cancel context.CancelFunc
	done   chan error // gets what Attach returned
	next   int64
}

// hostConn is the host's end, which keeps the cause it was closed with.
type hostConn struct {
	*jsonrpc.PipeConn
	once   sync.Once
	cause  error
	closed chan time.Time
}

func (c *hostConn) CloseCause(err error) error {
	c.once.Do(func() {
		c.cause = err
		c.closed <- time.Now()
	})
	return c.PipeConn.Close()
}

// attach attaches a new stream.
func (r *rig) attach(key string) *client { return r.attachIn(key, mcp.Legacy) }

// attach attaches a stream and waits for its end.
func attach(ctx context.Context, h *Host, upstream, key string, era mcp.Era, c jsonrpc.Conn) error {
	return untilOver(func(over func(error)) { h.Attach(ctx, upstream, key, era, c, over) })
}

func (r *rig) attachIn(key string, era mcp.Era) *client {
	near, far := jsonrpc.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	c := &client{PipeConn: near, t: r.t, cancel: cancel, done: make(chan error, 1)}
	c.host = &hostConn{PipeConn: far, closed: make(chan time.Time, 1)}
	go func() { c.done <- attach(ctx, r.host, "fake", key, era, c.host) }()
	r.t.Cleanup(func() {
		near.Close()
		cancel()
	})
	return c
}

// start attaches a stream and initializes it.
func (r *rig) start(key string) *client {
	r.t.Helper()
	c := r.attach(key)
	c.call("initialize", 0)
	return c
}

// send sends a request and returns its id.
func (c *client) send(method string, n int) jsonrpc.ID {
	c.t.Helper()
	return c.sendParams(method, fmt.Sprintf(`{"n":%d}`, n))
}

func (c *client) sendParams(method, params string) jsonrpc.ID {
	c.t.Helper()
	c.next++
	id := jsonrpc.IntID(c.next)
	if err := c.Send(jsonrpc.NewRequest(id, method, json.RawMessage(params))); err != nil {
		c.t.Fatalf("send %s: %v", method, err)
	}
	return id
}

// call sends a request and returns its response.
func (c *client) call(method string, n int) *jsonrpc.Message {
	c.t.Helper()
	return c.wait(c.send(method, n))
}

// wait returns the next message, which must be the response to id.
func (c *client) wait(id jsonrpc.ID) *jsonrpc.Message {
	c.t.Helper()
	m := c.recv()
	if got, _ := m.ID.Answered(); !m.IsResponse() || fmt.Sprint(got) != id.String() {
		c.t.Fatalf("got %s, want the response to %s", m.Append(nil), id)
	}
	return m
}

func (c *client) recv() *jsonrpc.Message {
	c.t.Helper()
	m, err := c.Recv()
	if err != nil {
		c.t.Fatalf("receive: %v (closed with %v)", err, c.host.cause)
	}
	return m
}

// returned waits for the end of Attach and returns its error.
func (c *client) returned() error {
	c.t.Helper()
	select {
	case err := <-c.done:
		return err
	case <-time.After(patience):
		c.t.Fatal("Attach does not return")
		return nil
	}
}

// ends waits until the host closes the stream and checks how.
func (c *client) ends(cause string, delivered bool) {
	c.t.Helper()
	select {
	case <-c.host.closed:
	case <-time.After(patience):
		c.t.Fatal("the stream is not closed")
	}
	var closed *jsonrpc.ClosedError
	if !errors.As(c.host.cause, &closed) {
		c.t.Fatalf("closed with %v", c.host.cause)
	}
	if closed.Cause.String() != cause || closed.Delivered != delivered {
		c.t.Fatalf("closed with cause %q, delivered %v; want %q, %v", closed.Cause, closed.Delivered, cause, delivered)
	}
	if !jsonrpc.IsEvent(closed.Event) {
		c.t.Fatalf("closed with the event %q", closed.Event)
	}
}

// end waits until the host closes the stream and returns how.
func (c *client) end() *jsonrpc.ClosedError {
	c.t.Helper()
	select {
	case <-c.host.closed:
	case <-time.After(patience):
		c.t.Fatal("the stream is not closed")
	}
	return jsonrpc.EndOf(c.host.cause, jsonrpc.Cause{})
}

// A logBook keeps what was logged.
type logBook struct {
	mu    sync.Mutex
	lines []map[string]any
}

func (b *logBook) Write(line []byte) (int, error) {
	var entry map[string]any
	if err := json.Unmarshal(line, &entry); err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, entry)
	return len(line), nil
}

// at returns the lines of a level.
func (b *logBook) at(level slog.Level) (lines []map[string]any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.lines {
		if l["level"] == level.String() {
			lines = append(lines, l)
		}
	}
	return lines
}

// warned waits for the only Warn line and checks it.
func (r *rig) warned(msg string, inFlight int) map[string]any {
	r.t.Helper()
	eventually(r.t, "a warning", func() bool { return len(r.log.at(slog.LevelWarn)) > 0 })
	w := r.log.at(slog.LevelWarn)
	if len(w) != 1 || w[0]["msg"] != msg || w[0]["in_flight"] != float64(inFlight) || w[0]["upstream"] != "fake" {
		r.t.Fatalf("warnings: %v, want one %q with in_flight %d", w, msg, inFlight)
	}
	return w[0]
}
