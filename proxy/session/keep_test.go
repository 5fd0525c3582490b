package session

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A keeper is a client's Conn that may end by itself.
type keeper struct {
	jsonrpc.Conn
	busy func() bool
}

func (k *keeper) KeepWhile(busy func() bool) { k.busy = busy }

// A client that seems to have left is kept while one of its tasks is unfinished, however that is
// found out.
func TestUnfinishedTasksKeep(t *testing.T) {
	inWorld(t, &Router{}, []string{"a"}, func(w *world) {
		status := "working"
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
			switch m.Method {
			case "tools/call":
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"task":{"taskId":"t`+string(m.ID.Raw())+`","status":"`+status+`"}}`)))
			case "tasks/get", "tasks/cancel":
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"taskId":"t","status":"`+status+`"}`)))
			case "tasks/result":
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
			default:
				echo("a")(p, m)
			}
		}}
		k := w.reconnectAs()
		w.initialize()
		want := func(when string, busy bool) {
			t.Helper()
			synctest.Wait()
			if k.busy() != busy {
				t.Errorf("%s: busy %v, want %v", when, !busy, busy)
			}
		}
		begin := func() (id string) {
			t.Helper()
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","task":{}}}`)
			for _, text := range w.client.take() {
				id, _ = catalog.CreatedTask(decode(t, text).Result)
			}
			return id
		}
		ask := func(method, id string) {
			w.client.say(`{"jsonrpc":"2.0","id":2,"method":"` + method + `","params":{"taskId":"` + id + `"}}`)
			w.client.take()
		}
		want("at first", false)
		first, second := begin(), begin()
		want("with two tasks", true)
		ask("tasks/get", first)
		want("with two that were asked for", true)
		w.upstream("a").say(`{"jsonrpc":"2.0","method":"notifications/tasks/status","params":{"taskId":"` + first + `","status":"failed"}}`)
		want("with one that goes on", true)
		ask("tasks/result", second)
		want("with the first's result not collected", true)
		ask("tasks/result", first)
		want("with both results", false)
		third := begin()
		want("with a third", true)
		status = "cancelled"
		ask("tasks/cancel", third)
		want("with a cancelled one", false)
		status = "completed"
		ask("tasks/result", begin())
		want("with one that ended at once", false)
		begin()
		want("with one more", true)
		time.Sleep(10 * time.Second)
		want("with a result that nobody collects", false)
	})
}

// reconnectAs replaces the client of w by one whose Conn is a keeper.
func (w *world) reconnectAs() *keeper {
	w.leave()
	ours, theirs := jsonrpc.Pipe()
	k := &keeper{Conn: theirs}
	ended := make(chan error, 1)
	w.client, w.ended = newPeer(w.t, ours, nil), ended
	go func() { ended <- w.proxy.Serve(w.t.Context(), identity.Nobody, "", k); close(ended) }()
	w.cancel = func() { ours.Close() }
	return k
}
