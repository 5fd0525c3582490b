package session

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// told returns the errors of two calls to an upstream whose stream serve serves. It is one of two,
// because initialize of a sole one would fail.
func told(t *testing.T, serve func(stream *jsonrpc.PipeConn)) (all []toldError) {
	synctest.Test(t, func(t *testing.T) {
		p := &Router{Upstreams: []Upstream{{Name: "files"}, {Name: "away"}}, Dial: DialFunc(
			func(_ context.Context, upstream, _ string, _ mcp.Era) (jsonrpc.Conn, error) {
				if upstream == "away" {
					return nil, &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}
				}
				ours, theirs := jsonrpc.Pipe()
				go serve(ours)
				return theirs, nil
			})}
		client, theirs := jsonrpc.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- p.Serve(context.Background(), identity.Nobody, "", theirs) }()
		for id := range int64(3) {
			m := jsonrpc.NewRequest(jsonrpc.IntID(id), "tools/call", []byte(`{"name":"files__x"}`))
			if id == 0 {
				m = jsonrpc.NewRequest(jsonrpc.IntID(id), "initialize", []byte(`{"protocolVersion":"2025-11-25","capabilities":{}}`))
			}
			if err := client.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		for len(all) < 2 {
			m, err := client.Recv()
			if err != nil {
				t.Fatal(err)
			}
			var e toldError
			if m.Error != nil && json.Unmarshal(m.Error, &e) == nil {
				all = append(all, e)
			}
		}
		client.Close()
		<-ended
		time.Sleep(time.Second) // hosts that were to hang up
	})
	return all
}

// A toldError is the connection-closed error.
type toldError struct {
	Message string
	Data    jsonrpc.ErrorData
}

// A host's description of an end reaches the client unchanged, in the error of each lost request.
// If an older host sends no event, the proxy mints one.
func TestEndsAreToldAsTheHostSaysThem(t *testing.T) {
	refuse := func(stream *jsonrpc.PipeConn) {
		m, err := stream.Recv()
		if err != nil {
			return // the client has left
		}
		stream.Send(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -1, Message: "no"}))
	}
	for name, tt := range map[string]struct {
		serve     func(stream *jsonrpc.PipeConn)
		event     string // "" for any
		message   string
		retryable bool
	}{
		"it says all": {func(stream *jsonrpc.PipeConn) {
			stream.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed, Event: "k3v9x2ma", Says: "did not start: command not found", Lasting: true})
		}, "k3v9x2ma", "Connection closed: files did not start: command not found", false},
		"it says the cause": {func(stream *jsonrpc.PipeConn) {
			stream.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartFailed})
		}, "", "Connection closed: files did not start", true},
		"it says nothing": {func(stream *jsonrpc.PipeConn) {
			refuse(stream) // and does not hang up
		}, "", "Connection closed: files refused initialize", false},
		"it ends what refused": {func(stream *jsonrpc.PipeConn) {
			refuse(stream)
			stream.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused, Event: "k3v9x2ma", Err: errors.New("x")})
		}, "k3v9x2ma", "Connection closed: files refused initialize", false},
	} {
		for _, e := range told(t, tt.serve) {
			if e.Message != tt.message || e.Data.Retryable != tt.retryable || e.Data.Phase != jsonrpc.NotSent ||
				!jsonrpc.IsEvent(e.Data.Event) || tt.event != "" && e.Data.Event != tt.event {
				t.Errorf("%s: got %+v", name, e)
			}
		}
	}
}
