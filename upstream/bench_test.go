//go:build unix

package upstream

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// BenchmarkEcho measures calls through a stream and a process, at so many at a
// time; the process is most of it.
func BenchmarkEcho(b *testing.B) {
	params := json.RawMessage(`{"n":1,"text":"some arguments of a call of the usual length, give or take"}`)
	for _, width := range []int{1, 64} {
		b.Run(fmt.Sprint(width), func(b *testing.B) {
			c := newRig(b, fakeCommand()).start("k")
			b.ReportAllocs()
			sent := 0
			for received := 0; received < b.N; {
				for sent < b.N && sent-received < width {
					c.next++
					sent++
					c.Send(jsonrpc.NewRequest(jsonrpc.IntID(c.next), "echo", params))
				}
				c.recv()
				received++
			}
		})
	}
}

// BenchmarkInFlight measures what the host adds to a call and its answer.
func BenchmarkInFlight(b *testing.B) {
	f := newInFlight(false, false, true)
	call, answer := jsonrpc.NewRequest(jsonrpc.IntID(7), "tools/call", nil), jsonrpc.NewResult(jsonrpc.IntID(7), json.RawMessage(`{}`))
	b.ReportAllocs()
	for b.Loop() {
		f.toServer(call)
		f.fromServer(answer)
	}
}
