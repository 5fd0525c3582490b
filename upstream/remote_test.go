//go:build unix

package upstream

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A far is the server's end of the newest session of a remote upstream.
type far struct {
	t     *testing.T
	conns chan *jsonrpc.PipeConn
}

// remoteRig returns a rig whose upstream is remote, and what the server sees.
func remoteRig(t *testing.T) (*rig, *far) {
	f := &far{t, make(chan *jsonrpc.PipeConn, 100)}
	return newRigOf(t, Upstream{Dial: f.dial}), f
}

func (f *far) dial(ctx context.Context) (jsonrpc.Conn, error) {
	near, far := jsonrpc.Pipe()
	context.AfterFunc(ctx, func() { near.Close() })
	f.conns <- far
	return near, nil
}

// recv returns what the server gets next, "end" at the end.
func recv(c *jsonrpc.PipeConn) string {
	m, err := c.Recv()
	if err != nil {
		return "end"
	}
	return string(m.Append(nil))
}

// welcome answers initialize.
func (f *far) welcome() *jsonrpc.PipeConn {
	f.t.Helper()
	c := <-f.conns
	m, err := c.Recv()
	if err != nil || m.Method != "initialize" {
		f.t.Fatalf("got %v, %v", m, err)
	}
	c.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
	return c
}

// begin attaches a client to a session that was initialized.
func begin(r *rig, f *far) (*client, *jsonrpc.PipeConn) {
	c := r.attach("k")
	id := c.send("initialize", 0)
	s := f.welcome()
	c.wait(id)
	return c, s
}

// D05, D06: a remote server hears first that its question will not be answered,
// then what is cancelled, which is nothing that the question was asked for, then that
// the session ends.
func TestD06_RemoteFarewell(t *testing.T) {
	r, f := remoteRig(t)
	c, s := begin(r, f)
	id := c.send("tools/call", 1)
	recv(s)
	s.Send(&jsonrpc.Message{ID: jsonrpc.IntID(7), Method: "roots/list"})
	if m := c.recv(); m.Related != id {
		t.Errorf("the question belongs to %q, want %q", m.Related, id)
	}
	c.send("tools/call", 2)
	recv(s)
	c.Close()
	for _, want := range []string{`"id":7,"error":{"code":-32000`, `"notifications/cancelled","params":{"requestId":3`, "end"} {
		if got := recv(s); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	c.returned()
	if w := r.log.at(slog.LevelWarn); len(w) != 0 {
		t.Error("warned of", w)
	}
}

// D07: a session that ends takes its calls along, with its own cause; the next
// stream begins another.
func TestD07_RemoteEnds(t *testing.T) {
	t.Parallel()
	r, f := remoteRig(t)
	c, s := begin(r, f)
	c.send("tools/call", 1)
	recv(s)
	s.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.HTTPCause(502), Delivered: true})
	c.ends("HTTP 502", true)
	c.returned()
	r.warned("upstream ended unexpectedly", 1)
	again, _ := begin(r, f)
	again.Close()
	again.returned()
}

// D48: a server that cannot be reached says why, and after failures in a row the
// claim waits.
func TestD48_RemoteOutOfReach(t *testing.T) {
	refused := &jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused}
	r := newRigOf(t, Upstream{Dial: func(context.Context) (jsonrpc.Conn, error) { return nil, refused }})
	for range freeFailures + 1 {
		c := r.attach("k")
		c.ends("connection refused", false)
		c.returned()
	}
	c := r.attach("k")
	c.ends("connection refused", false)
	c.returned()
	if w := r.log.at(slog.LevelWarn); len(w) != freeFailures+1 || w[0]["cause"] != "connection refused" {
		t.Error("warned of", w)
	}
}

// D21: a client that leaves while its session is being dialled waits for nothing.
func TestD21_ClosedWhileDialling(t *testing.T) {
	dialling := make(chan struct{})
	r := newRigOf(t, Upstream{Dial: func(ctx context.Context) (jsonrpc.Conn, error) {
		close(dialling)
		<-ctx.Done()
		return nil, &jsonrpc.ClosedError{Cause: jsonrpc.OtherCause("cancelled"), Err: ctx.Err()}
	}})
	c := r.attach("k")
	c.send("initialize", 0)
	<-dialling
	c.Close()
	c.returned()
	if w := r.log.at(slog.LevelWarn); len(w) != 0 {
		t.Error("warned of", w)
	}
}

// A session that knows what belongs to what is believed.
func TestRemoteRelates(t *testing.T) {
	r, f := remoteRig(t)
	up := r.host.Upstreams["fake"]
	up.Relates = true
	r.host.Upstreams["fake"] = up
	c, s := begin(r, f)
	id := c.send("tools/call", 1)
	c.send("tools/call", 2)
	for _, related := range []jsonrpc.ID{id, {}} {
		s.Send(&jsonrpc.Message{Method: "notifications/message", Related: related})
		if m := c.recv(); m.Related != related {
			t.Errorf("related to %q, want %q", m.Related, related)
		}
	}
	c.Close()
	c.returned()
}

// A server that asks without end, and takes no answer, is not told of each
// question when its stream ends, nor waited for.
func TestRemoteFloodsAndDoesNotRead(t *testing.T) {
	t.Parallel()
	r, f := remoteRig(t)
	c, s := begin(r, f)
	c.send("tools/call", 1)
	recv(s)
	const asked = 2 * maxServerRequests
	for n := range int64(asked) {
		s.Send(&jsonrpc.Message{ID: jsonrpc.IntID(n), Method: "ping"})
		c.recv()
	}
	c.Close() // and nobody reads the farewell
	c.returned()
	told := 0
	for recv(s) != "end" {
		told++
	}
	if told > maxServerRequests+1 {
		t.Errorf("%d messages at the end", told)
	}
}

// D15: a remote server hears the last words also when its end is forced: nothing
// else tells it to stop what it was asked for.
func TestD15_RemoteFarewellByForce(t *testing.T) {
	r, f := remoteRig(t)
	c, s := begin(r, f)
	c.send("tools/call", 1)
	recv(s)
	c.cancel()
	for _, want := range []string{`"notifications/cancelled","params":{"requestId":2`, "end"} {
		if got := recv(s); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	c.ends("host stopped", true)
	c.returned()
}

// One that does not listen to them holds the end up for a moment only.
func TestRemoteForcedAndDeaf(t *testing.T) {
	r := newRigOf(t, Upstream{Dial: func(ctx context.Context) (jsonrpc.Conn, error) {
		near, far := jsonrpc.Pipe()
		t.Cleanup(func() { far.Close() })
		return &deafConn{Conn: near, ctx: ctx}, nil
	}})
	c := r.attach("k")
	c.send("initialize", 0)
	c.cancel()
	c.returned()
}

// A deafConn is one whose server takes no leave until it is forced to.
type deafConn struct {
	jsonrpc.Conn
	ctx context.Context
}

func (c *deafConn) Close() error {
	<-c.ctx.Done()
	return c.Conn.Close()
}

// A server that does not read does not hide that its client has left.
func TestD05_RemoteThatDoesNotRead(t *testing.T) {
	t.Parallel()
	stuck := &deaf{closed: make(chan struct{})}
	r := newRigOf(t, Upstream{Dial: func(context.Context) (jsonrpc.Conn, error) { return stuck, nil }})
	c := r.attach("k")
	for range 5 {
		c.send("tools/call", 1)
	}
	c.Close()
	c.returned()
}

// A deaf Conn takes nothing and says nothing until it is closed.
type deaf struct {
	closed chan struct{}
	once   sync.Once
}

func (d *deaf) Recv() (*jsonrpc.Message, error) { <-d.closed; return nil, jsonrpc.ErrClosed }
func (d *deaf) Send(*jsonrpc.Message) error     { <-d.closed; return jsonrpc.ErrClosed }
func (d *deaf) Close() error                    { d.once.Do(func() { close(d.closed) }); return nil }

// What is replaced ends, with a word of its own and as the server wishes; whoever
// comes next gets what is there now, shared or not.
func TestReplace(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r, f := remoteRig(t)
		old := r.host.Upstreams["fake"]
		old.Shared = shared
		r.host.Replace(map[string]Upstream{"fake": old}, nil)
		c, s := begin(r, f)
		if shared {
			recv(s) // notifications/initialized
		}
		c.send("tools/call", 1)
		recv(s)
		next := &far{t, make(chan *jsonrpc.PipeConn, 100)}
		r.host.Replace(map[string]Upstream{"fake": {Dial: next.dial, Shared: shared}}, []string{"fake"})
		c.ends("upstream changed", true)
		for _, want := range []string{`"notifications/cancelled","params":{"requestId":2`, "end"} {
			if got := recv(s); !strings.Contains(got, want) {
				t.Errorf("shared %v: got %s, want %s", shared, got, want)
			}
		}
		c.returned()
		again, _ := begin(r, next)
		again.Close()
		again.returned()
		r.host.Replace(nil, []string{"fake"})
		if r.host.Known("fake") {
			t.Error("what is gone is known")
		}
		if w := r.log.at(slog.LevelWarn); len(w) != 0 {
			t.Error("warned of", w)
		}
	}
}
