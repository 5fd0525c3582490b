package remote

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// TestModernListen sets what its frames are about, also where the server writes
// the id in another way, and drops those of another one.
func TestModernListen(t *testing.T) {
	f := newFake(t)
	frame := func(method, meta string) string {
		return fmt.Sprintf(`data: {"jsonrpc":"2.0","method":%q,"params":{%s"uri":"u"}}`+"\n\n", "notifications/"+method, meta)
	}
	id := func(text string) string {
		return `"_meta":{"io.modelcontextprotocol/subscriptionId":` + text + `,"x":1.0},`
	}
	release := make(chan struct{})
	f.handle("subscriptions/listen", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		stream(w, frame("subscriptions/acknowledged", id("7"))+frame("a", id("8"))+frame("b", id("{}"))+
			frame("resources/updated", "")+frame("tools/list_changed", id(`"7"`)))
		<-release
		stream(w, sseResult(m, `{"resultType":"complete"}`))
	})
	c := connectModern(t, f)
	c.request(7, "subscriptions/listen", params(`"notifications":{}`))
	for _, want := range []string{
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7,"x":1.0},"uri":"u"}}`,
		`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"u","_meta":{"io.modelcontextprotocol/subscriptionId":7}}}`,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7,"x":1.0},"uri":"u"}}`,
	} {
		if m := c.recv(); string(m.Append(nil)) != want || m.Related != jsonrpc.IntID(7) {
			t.Errorf("got %s related to %s\nwant %s", m.Append(nil), m.Related, want)
		}
	}
	close(release)
	wantResult(t, c.recv(), 7, `{"resultType":"complete"}`)
}

// TestModernListenEnds is an error for whoever listens, and nothing for the log.
func TestModernListenEnds(t *testing.T) {
	f := newFake(t)
	f.handle("subscriptions/listen", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) { stream(w, ": x\n\n") })
	s, l := modernServer(t, f)
	c := dialModern(t, s)
	c.request(7, "subscriptions/listen", params(""))
	wantError(t, c.recv(), 7, jsonrpc.ReasonClosed, "stream ended", jsonrpc.InFlight)
	f.await("subscriptions/listen", 1)
	c.close()
	if l.String() != "" {
		t.Errorf("the log is %s", l)
	}
}

// TestModernConcurrent keeps calls to MaxConcurrent, and listens out of that. What
// waits can be cancelled, and then is never posted.
func TestModernConcurrent(t *testing.T) {
	f := newFake(t)
	var now, most atomic.Int32
	release := make(chan struct{})
	f.handle("subscriptions/listen", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
		stream(w, ": x\n\n")
		block(r)
	})
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		most.Store(max(most.Load(), now.Add(1)))
		<-release
		now.Add(-1)
		reply(w, m, `{}`)
	})
	s, _ := modernServer(t, f)
	s.MaxConcurrent = 2
	a, b := dialModern(t, s), dialModern(t, s)
	for id := range int64(5) {
		a.request(100+id, "subscriptions/listen", params(""))
	}
	f.await("subscriptions/listen", 5)
	for id := range int64(4) {
		a.request(id, "tools/call", params(`"name":"t"`))
	}
	f.await("tools/call", 2)
	for id := range int64(4) { // they wait: one that the server has would make room at once
		b.request(id, "tools/call", params(`"name":"t"`))
		b.cancel(id)
	}
	close(release)
	for range 4 {
		if m := a.recv(); m.Result == nil {
			t.Errorf("got %s", m.Append(nil))
		}
	}
	if most.Load() > 2 {
		t.Errorf("%d at once", most.Load())
	}
	if n := len(slices.DeleteFunc(f.all(), func(what string) bool { return what != "tools/call" })); n != 4 {
		t.Errorf("%d calls were posted", n)
	}
}

// TestModernTooMany answers what is beyond the bound, and a duplicate.
func TestModernTooMany(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	s, _ := modernServer(t, f)
	s.MaxConcurrent = 1
	c := dialModern(t, s)
	for id := range int64(maxOpen) {
		c.request(id, "tools/call", params(`"name":"t"`))
	}
	c.request(0, "x", params(""))
	if m := c.recv(); !m.ID.IsZero() || !strings.Contains(string(m.Error), "Duplicate") {
		t.Errorf("got %s", m.Append(nil))
	}
	c.request(maxOpen, "x", params(""))
	wantError(t, c.recv(), maxOpen, jsonrpc.ReasonOverloaded, "", jsonrpc.NotSent)
}
