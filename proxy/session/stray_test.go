package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Messages that are late, from the wrong side, or incomplete affect nothing else.

func TestD19_LateAnswers(t *testing.T) {
	inEras(t, &Router{Upstreams: []Upstream{{Name: "files", RequestTimeout: time.Second}}}, nil, func(w *world) {
		w.initialize()
		w.calls("files", "echo", 1, 2)
		u := w.upstream("files")
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		time.Sleep(time.Second + time.Millisecond)
		w.client.want(fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"error":%s}`, jsonrpc.TimedOut("files").Raw()))
		for _, id := range []string{"2", "3", "3", "99", `"2"`, "1"} { // cancelled, timed out, twice, unknown, initialize
			u.say(`{"jsonrpc":"2.0","id":` + id + `,"result":{}}`)
			u.say(`{"jsonrpc":"2.0","id":` + id + `,"error":{"code":1,"message":"x"}}`)
		}
		w.client.want()
		u.handle(echo("files"))
		w.client.say(call1)
		w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"by":"files","args":{}}}}`)
	})
}

// An id may be reused once it is settled, however that happened.
func TestD26_IDUsedAgain(t *testing.T) {
	for _, first := range []struct{ name, settle, client string }{
		{"answered", `{"jsonrpc":"2.0","id":2,"result":{"n":1}}`, ""},
		{"failed", `{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"x"}}`, ""},
		{"cancelled", "", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`},
	} {
		t.Run(first.name, func(t *testing.T) {
			inEras(t, &Router{}, []string{"files"}, func(w *world) {
				w.initialize()
				u := w.upstream("files")
				w.calls("files", "echo", 1, 1)
				if first.settle != "" {
					u.say(first.settle)
				} else {
					w.client.say(first.client)
				}
				w.client.take()
				u.take()
				w.client.say(call1)
				u.want(strings.Replace(call1, `"id":1`, `"id":3`, 1)) // an id of its own
				u.say(`{"jsonrpc":"2.0","id":2,"result":{"late":true}}`)
				u.say(`{"jsonrpc":"2.0","id":3,"result":{"late":false}}`)
				w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"late":false}}`)
			})
		})
	}
}

// An invalid line affects only itself, on either side (race N).
func TestD44_RaceN_MalformedLine(t *testing.T) {
	inWorld(t, &Router{}, []string{"files"}, func(w *world) {
		near, far, lines := lineConn()
		ended := make(chan error, 1)
		go func() { ended <- w.proxy.Serve(context.Background(), identity.Nobody, "", far) }()
		fmt.Fprintln(near, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
		synctest.Wait()
		lines.take()
		u := w.upstream("files")
		u.mute()
		u.take()
		fmt.Fprintln(near, call1)
		synctest.Wait()
		u.take()
		fmt.Fprintln(near, "no JSON\x00 at all")
		u.want()
		if got := lines.take(); len(got) != 1 || !strings.HasPrefix(got[0], `{"jsonrpc":"2.0","error":{"code":-32700,`) {
			t.Errorf("got %q", got)
		}
		u.say(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		if got := lines.take(); len(got) != 1 || got[0] != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("the call in flight got %q", got)
		}
		near.Close()
		if err := <-ended; !errors.Is(err, jsonrpc.ErrClosed) {
			t.Error(err)
		}
	})
}

// lineConn returns a client's end as bytes, the proxy's as lines, and the messages to the client.
func lineConn() (io.WriteCloser, jsonrpc.Conn, *party) {
	fromClient, near := io.Pipe()
	toClient, out := io.Pipe()
	got := &party{}
	go func() {
		lines := jsonrpc.NewLineReader(toClient, jsonrpc.Limits{})
		for {
			line, err := lines.ReadLine()
			if err != nil {
				return
			}
			got.mu.Lock()
			got.got = append(got.got, string(line))
			got.mu.Unlock()
		}
	}()
	return near, jsonrpc.NewLineConn(fromClient, out, jsonrpc.Limits{}, func() error {
		out.Close()
		return fromClient.Close()
	}), got
}

// An undeliverable notification is no error for anybody.
func TestD47_NotificationLost(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.proxy.Dial = oddUpstream(w, true)
		w.initialize()
		lost := []string{
			`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
			`{"jsonrpc":"2.0","method":"vendor/own","params":{}}`,
		}
		for _, text := range lost { // the write fails
			w.client.say(text)
			time.Sleep(2 * time.Second)
		}
		w.client.want()
		w.die("files", "exit status 1", true)
		for _, text := range lost { // nobody is there
			w.client.say(text)
		}
		w.client.want()
	})
}

// A goneConn is a client that reads its own end and counts the messages after it.
type goneConn struct {
	jsonrpc.Conn
	gone atomic.Bool
	late atomic.Int64
}

func (c *goneConn) Recv() (*jsonrpc.Message, error) {
	m, err := c.Conn.Recv()
	if err != nil {
		c.gone.Store(true)
	}
	return m, err
}

func (c *goneConn) Send(m *jsonrpc.Message) error {
	if c.gone.Load() {
		c.late.Add(1)
	}
	return c.Conn.Send(m)
}

// A client that has left gets nothing: no answers to its 50 calls, no server request, and nothing
// of the drain.
func TestRaceM_DeathIsNotToldToTheDead(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		ours, theirs := jsonrpc.Pipe()
		conn := &goneConn{Conn: theirs}
		ended := make(chan error, 1)
		go func() { ended <- w.proxy.Serve(context.Background(), identity.Nobody, "", conn) }()
		w.client = newPeer(t, ours, nil)
		w.client.era = w.era
		w.initialize()
		w.calls("files", "echo", 1, 50)
		u := w.upstream("files")
		u.say(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
		synctest.Wait()
		ours.Close()
		<-ended
		u.say(`{"jsonrpc":"2.0","id":2,"result":{}}`)
		synctest.Wait()
		if n := conn.late.Load(); n > 0 {
			t.Error(n, "messages to a client that is gone")
		}
	})
}
