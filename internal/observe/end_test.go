package observe

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestEndOf(t *testing.T) {
	one := jsonrpc.IntID(1)
	closed := &jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(3), Event: "k3v9x2ma"}
	for _, test := range []struct {
		answer *jsonrpc.Message
		want   End
	}{
		{nil, End{Outcome: Cancelled}},
		{jsonrpc.NewResult(one, json.RawMessage(`{}`)), End{Outcome: OK}},
		{&jsonrpc.Message{ID: one, Error: json.RawMessage(`{"code":-32602,"message":"no","data":"text"}`)}, End{Outcome: Failed, Code: -32602}},
		{&jsonrpc.Message{ID: one, Error: json.RawMessage(`{"code":"none","message":"no"}`)}, End{Outcome: Failed}},
		{jsonrpc.NewError(one, closed.Wire(-32603, "files", jsonrpc.InFlight)), End{Outcome: Closed, Code: -32603, Cause: "exited", Event: "k3v9x2ma"}},
		{jsonrpc.NewError(one, jsonrpc.InvalidResponse("files", "")), End{Outcome: InvalidResponse, Code: -32603}},
	} {
		got := EndOf(time.Now(), test.answer)
		got.At, got.Took = time.Time{}, 0
		if got != test.want {
			t.Errorf("%+v, want %+v", got, test.want)
		}
	}
}

// A result of a tool says itself that the tool has failed. What only looks like that does not.
func TestToolFailed(t *testing.T) {
	for result, want := range map[string]Outcome{
		`{"content":[],"isError":true}`:                                              ToolFailed,
		"{\"isError\" :\n\ttrue}":                                                    ToolFailed,
		`{"structuredContent":{"isError":false},"isError":true}`:                     ToolFailed,
		`{"content":[],"isError":false}`:                                             OK,
		`{"structuredContent":{"isError":true}}`:                                     OK,
		`{"structuredContent":{"isError":true},"isError":false}`:                     OK,
		`{"content":[{"type":"text","text":"{\"isError\":true}"}]}`:                  OK,
		`{"isError":"true"}`:                                                         OK,
		`{"isError"`:                                                                 OK,
		`{"isError":true`:                                                            OK,
		`{"content":[{"text":"` + strings.Repeat("x", 1<<20) + `"}]}`:                OK,
		`{"content":[{"text":"` + strings.Repeat("x", 1<<20) + `"}],"isError":true}`: ToolFailed,
	} {
		if got := EndOf(time.Now(), jsonrpc.NewResult(jsonrpc.IntID(1), json.RawMessage(result))).Outcome; got != want {
			t.Errorf("%.80s: %s, want %s", result, got, want)
		}
	}
}

func BenchmarkEndOf(b *testing.B) {
	for name, result := range map[string]string{
		"small": `{"content":[{"type":"text","text":"` + strings.Repeat("some text ", 25) + `"}],"isError":false}`,
		"64KiB": `{"content":[{"type":"text","text":"` + strings.Repeat(`{\"a\":1, `, 8<<10) + `"}],"isError":false}`,
	} {
		answer := jsonrpc.NewResult(jsonrpc.IntID(1), json.RawMessage(result))
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				EndOf(time.Time{}, answer)
			}
		})
	}
}
