//go:build unix

package upstream

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

func kept(t *testing.T, era mcp.Era, next func(jsonrpc.Conn)) (*keptStream, *jsonrpc.PipeConn) {
	near, far := jsonrpc.Pipe()
	k := newKeptStream(far, era)
	k.next, k.stay = next, func(*jsonrpc.ClosedError) {}
	t.Cleanup(func() {
		near.Close()
		k.Close()
		k.wg.Wait()
	})
	return k, near
}

func TestKeptStreamIsAConn(t *testing.T) {
	conntest.Run(t, func(t *testing.T) (jsonrpc.Conn, jsonrpc.Conn) {
		k, near := kept(t, mcp.Legacy, nil)
		return k, near
	})
}

// One that has moved with two messages kept, and with a read under way.
func TestMovedStreamIsAConn(t *testing.T) {
	conntest.Run(t, func(t *testing.T) (jsonrpc.Conn, jsonrpc.Conn) {
		moved := make(chan jsonrpc.Conn, 1)
		k, near := kept(t, mcp.Legacy, func(c jsonrpc.Conn) { moved <- c })
		for range 2 {
			near.Send(jsonrpc.NewNotification("kept", nil))
			conntest.Recv(t, k)
		}
		var reader sync.WaitGroup
		reader.Go(func() { k.Recv() })
		jsonrpc.CloseWith(k, errOther)
		reader.Wait()
		c := <-moved
		for range 2 {
			if m := conntest.Recv(t, c); m.Method != "kept" {
				t.Errorf("received %s", m.Append(nil))
			}
		}
		return c, near
	})
}

// A restingConn is a Conn in memory whose reader may rest.
type restingConn struct{ *jsonrpc.PipeConn }

func (c restingConn) Rest(resume func()) bool { return c.RestFor(time.Second, resume) }

// The reader of a stream rests as soon as the server has answered and the client says no more.
func TestKeptStreamRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := jsonrpc.Pipe()
		k := newKeptStream(restingConn{far}, mcp.Legacy)
		k.stay = func(*jsonrpc.ClosedError) {}
		resumed := make(chan struct{})
		rests := func() bool { return k.Rest(func() { close(resumed) }) }
		near.Send(jsonrpc.NewNotification("first", nil))
		conntest.Recv(t, k)
		if rests() {
			t.Error("the reader rests while the stream may move")
		}
		var reader sync.WaitGroup
		reader.Go(func() { conntest.Recv(t, k) })
		synctest.Wait()
		k.Send(&jsonrpc.Message{ID: jsonrpc.IntID(1), Result: []byte("{}")})
		near.Send(jsonrpc.NewNotification("initialized", nil))
		reader.Wait()
		if !rests() {
			t.Error("the reader does not rest")
		}
		near.Send(jsonrpc.NewNotification("late", nil))
		<-resumed
		if m := conntest.Recv(t, k); m.Method != "late" {
			t.Errorf("received %s", m.Append(nil))
		}
		k.Close()
		near.Close()
		k.wg.Wait()
	})
}

var errOther = &jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Err: mcp.ErrOtherEra}

// A stream moves only if nothing that was sent can have run, and nothing is told twice.
func TestStreamThatStays(t *testing.T) {
	answer, log := jsonrpc.NewResult(jsonrpc.IntID(1), []byte("{}")), jsonrpc.NewNotification(mcp.MethodLog, nil)
	delivered := *errOther
	delivered.Delivered = true
	for name, tt := range map[string]struct {
		era   mcp.Era
		said  *jsonrpc.Message
		sends int
		end   error
		moves bool
	}{
		"nothing was said":     {mcp.Legacy, nil, 1, errOther, true},
		"log message":          {mcp.Legacy, log, 1, errOther, true},
		"modern log message":   {mcp.Modern, log, 1, errOther, false},
		"answered":             {mcp.Legacy, answer, 1, errOther, false},
		"delivered":            {mcp.Modern, nil, 1, &delivered, false},
		"another end":          {mcp.Legacy, nil, 1, &jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(1)}, false},
		"closed by the client": {mcp.Legacy, nil, 1, jsonrpc.ErrClosed, false},
		"much was sent":        {mcp.Legacy, nil, maxKept, errOther, true},
		"too much was sent":    {mcp.Legacy, nil, maxKept + 1, errOther, false},
	} {
		t.Run(name, func(t *testing.T) {
			moved := make(chan struct{})
			k, near := kept(t, tt.era, func(c jsonrpc.Conn) { close(moved); c.Close() })
			for range tt.sends {
				near.Send(jsonrpc.NewNotification("n", nil))
				conntest.Recv(t, k)
			}
			if tt.said != nil {
				k.Send(tt.said)
			}
			jsonrpc.CloseWith(k, tt.end)
			if tt.moves {
				<-moved
				if k.Send(answer) == nil {
					t.Error("the old server still reaches the client")
				}
			}
			for err := error(nil); err == nil; _, err = near.Recv() {
			}
			if closed(moved) != tt.moves {
				t.Errorf("moved: %v", closed(moved))
			}
		})
	}
}

// A wordyBridge keeps what the legacy clients that it is given say first.
type wordyBridge struct {
	toldBridge
	n   int
	got chan string
}

func (b *wordyBridge) Legacy(_ context.Context, _, _ string, c jsonrpc.Conn) error {
	var batch []*jsonrpc.Message
	for len(batch) < b.n {
		batch, _ = jsonrpc.RecvAll(c, batch)
	}
	for _, m := range batch {
		b.got <- string(m.Append(nil))
	}
	return b.end(c, "bridged from legacy")
}

// The translation gets every byte that the client has sent, and the client gets nothing that
// the other server asked.
func TestStreamMovesWithWhatWasSent(t *testing.T) {
	sent := []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","x":1,"params":{ "a":1.0 }}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7}}`,
		`[{"jsonrpc":"2.0","id":2,"method":"ping"},{"jsonrpc":"2.0","id":3,"method":"ping"}]`,
		`{"jsonrpc":"2.0","id":4,"method":"tools/list"}`,
	}
	inProbedWorld(t, func(w *sharedWorld, p *prober) {
		b := &wordyBridge{n: len(sent), got: make(chan string, len(sent))}
		w.host.Bridge, w.welcome = b, ""
		p.modern.Store(true)
		a := w.attachIn("a", mcp.Legacy)
		say := func(text string) {
			m, err := jsonrpc.Limits{}.Decode([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			a.conn.Send(m)
		}
		for _, text := range sent[:3] {
			say(text)
		}
		w.server().say(`{"id":"q","method":"roots/list"}`)
		a.hears(`@3 {"id":"q","method":"roots/list"}`)
		w.server().say(`{"id":1,"error":{"code":-32601,"message":"Method not found"}}`)
		a.hears(`{"method":"notifications/cancelled","params":{"requestId":"q","reason":"the server speaks another era"}}`)
		say(sent[3])
		a.ends("bridged from legacy", false)
		for _, want := range sent {
			if got := <-b.got; got != want {
				t.Errorf("the translation received %s, want %s", got, want)
			}
		}
	})
}

// Whatever happens while a stream moves, each message is received once, and the client's end
// is seen.
func TestRaceMoveAndMessages(t *testing.T) {
	for range 200 {
		const n = 5
		var got []string
		done := make(chan struct{})
		k, near := kept(t, mcp.Legacy, func(c jsonrpc.Conn) {
			defer close(done)
			for {
				m, err := c.Recv()
				if err != nil {
					c.Close()
					return
				}
				got = append(got, m.Method)
			}
		})
		var all sync.WaitGroup
		all.Go(func() {
			for i := range n {
				near.Send(jsonrpc.NewNotification(string(rune('a'+i)), nil))
			}
			near.Close()
		})
		all.Go(func() {
			for err := error(nil); err == nil; _, err = k.Recv() {
			}
		})
		all.Go(func() { jsonrpc.CloseWith(k, errOther) })
		all.Wait()
		<-done
		if !slices.IsSorted(got) || strings.Join(got, "") != "abcde" {
			t.Fatalf("received %v", got)
		}
	}
}

// A stream whose server changes its era twice ends, with the event that is told.
func TestStreamMovesOnce(t *testing.T) {
	k, near := kept(t, mcp.Legacy, func(c jsonrpc.Conn) { jsonrpc.CloseWith(c, errOther) })
	told := 0
	k.stay = func(*jsonrpc.ClosedError) { told++ }
	jsonrpc.CloseWith(k, errOther)
	k.wg.Wait()
	if told != 1 {
		t.Errorf("told of %d ends", told)
	}
	if _, err := near.Recv(); !errors.Is(err, mcp.ErrOtherEra) {
		t.Errorf("ended with %v", err)
	}
}
