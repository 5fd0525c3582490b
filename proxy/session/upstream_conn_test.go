package session

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/listen"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A fakeClientSide is a session without anything but an upstream connection.
type fakeClientSide struct {
	t       *testing.T
	needed  atomic.Bool
	servers []*party // one for each stream
	handled []string // methods
	dropped []string // reasons
}

func (f *fakeClientSide) dial(*upstreamConn) (jsonrpc.Conn, error) {
	ours, theirs := jsonrpc.Pipe()
	f.servers = append(f.servers, newPeer(f.t, theirs, echo("files")))
	return ours, nil
}

func (f *fakeClientSide) initializeParams() json.RawMessage {
	return json.RawMessage(`{"of":"client"}`)
}

func (f *fakeClientSide) stateAt(*upstreamConn) (level json.RawMessage, subscriptions []json.RawMessage) {
	return json.RawMessage(`{"level":"info"}`), []json.RawMessage{[]byte(`{"uri":"a"}`), []byte(`{"uri":"b"}`)}
}

func (f *fakeClientSide) needs(*upstreamConn) bool  { return f.needed.Load() }
func (f *fakeClientSide) isSole(*upstreamConn) bool { return false }

func (f *fakeClientSide) handle(_ *upstreamConn, in incoming) {
	f.handled = append(f.handled, in.m.Method)
	if in.r != nil {
		in.r.Respond(&jsonrpc.Message{Result: json.RawMessage(`{}`)})
	}
}

func (f *fakeClientSide) questionCancelled(*peer.Request, *jsonrpc.Message, jsonrpc.Span) {
	f.handled = append(f.handled, "cancelled")
}

func (f *fakeClientSide) drop(reason string, _ *jsonrpc.Message) {
	f.dropped = append(f.dropped, reason)
}

// aloneConn returns a connection without a session. Its client is not ready.
func aloneConn(t *testing.T, up *Upstream) (*upstreamConn, *fakeClientSide) {
	side, ready, wg := &fakeClientSide{t: t}, new(atomic.Bool), new(sync.WaitGroup)
	ctx, cancel := context.WithCancel(t.Context())
	known := &lists.Session{Options: lists.Options{
		Memory: new(lists.Memory), Catalog: new(lists.Catalog), ListTimeout: time.Second, MaxBytes: 1 << 20,
		Context: ctx, Goroutines: wg, Grant: func() *policy.Grant { return nil }, Tell: func(*jsonrpc.Message) {},
	}}
	u := newUpstreamConn(&surroundings{
		client: side, clientReady: ready, subscriptions: new(listen.Subscriptions), sessionLists: known,
		session: "alone", sessionLog: slog.New(slog.DiscardHandler), sessionCtx: ctx, began: time.Now(), wg: wg,
		hooks: new(observe.Hooks), maxBytes: 1 << 20,
	}, mcp.Legacy, up)
	t.Cleanup(func() {
		cancel()
		u.hangUp(jsonrpc.Cause{})
		wg.Wait()
	})
	return u, side
}

// A connection opens its stream, restores what its session says, and passes messages in order once
// the client is ready.
func TestConnOpensAndHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, side := aloneConn(t, &Upstream{Name: "files"})
		if err := u.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		server := side.servers[0]
		server.want(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"of":"client"}}`,
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"info"}}`,
			`{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"a"}}`,
			`{"jsonrpc":"2.0","id":4,"method":"resources/subscribe","params":{"uri":"b"}}`)

		server.mute()
		server.say(`{"jsonrpc":"2.0","method":"vendor/first"}`)
		server.say(`{"jsonrpc":"2.0","id":"q","method":"roots/list"}`)
		server.say(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
		server.want(`{"jsonrpc":"2.0","id":"p","result":{}}`)
		if side.handled != nil {
			t.Errorf("before the client is ready: %q", side.handled)
		}
		u.clientReady.Store(true)
		u.release()
		server.say(`{"jsonrpc":"2.0","method":"vendor/last"}`)
		server.say(`{"jsonrpc":"2.0","id":99,"result":{}}`)
		server.want(`{"jsonrpc":"2.0","id":"q","result":{}}`)
		if want := []string{"vendor/first", "roots/list", "vendor/last"}; !slices.Equal(side.handled, want) {
			t.Errorf("handled: %q", side.handled)
		}
		if got := strings.Join(side.dropped, ", "); got != "unknown or late answer from upstream" {
			t.Errorf("dropped: %q", got)
		}
	})
}

// A connection rests when nothing needs its upstream, and its next call opens another stream.
func TestConnRestsUnlessNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u, side := aloneConn(t, &Upstream{Name: "files", IdleStop: time.Minute})
		side.needed.Store(true)
		if err := u.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if u.state().rests {
			t.Error("rests although it is needed")
		}
		side.needed.Store(false)
		time.Sleep(2 * time.Minute)
		if !u.state().rests || !side.servers[0].gone() {
			t.Error("does not rest")
		}
		answer, err := u.ask(t.Context(), mcp.MethodPing, nil)
		if err != nil || answer.Error != nil || len(side.servers) != 2 {
			t.Errorf("after its rest: %v %v, streams: %d", answer, err, len(side.servers))
		}
	})
}
