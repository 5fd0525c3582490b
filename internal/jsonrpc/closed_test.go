package jsonrpc_test

import (
	"errors"
	"io"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// The message alone says which upstream ended and why. The rest is for programs.
func TestClosedErrorOnTheWire(t *testing.T) {
	for _, tt := range []struct {
		end  jsonrpc.ClosedError
		at   jsonrpc.Phase
		want string
	}{
		{jsonrpc.ClosedError{Cause: jsonrpc.ExitCause(3), Event: "k3v9x2ma"}, jsonrpc.InFlight,
			`{"code":-32603,"message":"Connection closed: files exited (exit status 3)","data":{"reason":"connection_closed","upstream":"files","cause":"exit status 3","phase":"in_flight","retryable":false,"event":"k3v9x2ma"}}`},
		{jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Says: "did not start: exit status 3"}, jsonrpc.NotSent,
			`{"code":-32603,"message":"Connection closed: files did not start: exit status 3","data":{"reason":"connection_closed","upstream":"files","cause":"start failed","phase":"not_sent","retryable":true}}`},
		{jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Says: "did not start: command not found", Lasting: true}, jsonrpc.NotSent,
			`{"code":-32603,"message":"Connection closed: files did not start: command not found","data":{"reason":"connection_closed","upstream":"files","cause":"start failed","phase":"not_sent","retryable":false}}`},
	} {
		if got := string(tt.end.Wire(jsonrpc.CodeInternalError, "files", tt.at).Raw()); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// An end with nothing but a cause, for example from an older host, gets words.
func TestCausesInWords(t *testing.T) {
	for cause, want := range map[string]string{
		"signal: killed":        "files was killed (signal: killed)",
		"exit status 0":         "files exited (exit status 0)",
		"stdout closed":         "files closed its stdout (stdout closed)",
		"start failed":          "files did not start",
		"start timeout":         "files did not start in time",
		"link lost":             "files is unreachable: link lost",
		"connection refused":    "files is unreachable: connection refused",
		"TLS handshake failed":  "files is unreachable: TLS handshake failed",
		"name lookup failed":    "files is unreachable: name lookup failed",
		"HTTP 401":              "files rejected our credentials (HTTP 401)",
		"HTTP 403":              "files refused the request (HTTP 403)",
		"HTTP 502":              "files answered with HTTP 502",
		"WebSocket closed 1006": "files is gone (WebSocket closed 1006)",
		"":                      "this session is over",
	} {
		got := jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, "files", jsonrpc.ParseCause(cause), jsonrpc.InFlight).Message
		if got != "Connection closed: "+want {
			t.Errorf("%q: %q, want %q", cause, got, want)
		}
	}
	if got := jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.CauseClientGone, jsonrpc.InFlight).Message; got != "Connection closed: client disconnected" {
		t.Error(got)
	}
}

func TestEvents(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		id := jsonrpc.NewEvent()
		if !jsonrpc.IsEvent(id) || seen[id] {
			t.Fatalf("%q is no event, or not a new one", id)
		}
		seen[id] = true
	}
	for _, id := range []string{"", "k3v9x2m", "k3v9x2maa", "K3v9x2ma", "k3v9x2m ", "k3v9x2m\n", "k3v9x2\u00e9"} {
		if jsonrpc.IsEvent(id) {
			t.Errorf("%q passes for an event", id)
		}
	}
}

func TestEndOf(t *testing.T) {
	end := &jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Event: "k3v9x2ma"}
	if got := jsonrpc.EndOf(errors.Join(io.EOF, end), jsonrpc.CauseLinkLost); got == end || *got != *end {
		t.Errorf("got %+v", got)
	}
	if got := jsonrpc.EndOf(io.EOF, jsonrpc.CauseLinkLost); *got != (jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true, Err: io.EOF}) {
		t.Errorf("got %+v", got)
	}
}
