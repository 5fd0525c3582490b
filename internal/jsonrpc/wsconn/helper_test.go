package wsconn

import (
	"encoding/json"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// wantText compares a message with its JSON text.
func wantText(t *testing.T, m *jsonrpc.Message, want string) {
	t.Helper()
	if got := string(m.Append(nil)); got != want {
		t.Errorf("received %.200s, want %.200s", got, want)
	}
}

// echo answers requests with their params until c ends.
func echo(c jsonrpc.Conn) error {
	for {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		if result := m.Params; m.IsRequest() && result != nil {
			c.Send(jsonrpc.NewResult(m.ID, result))
		} else if m.IsRequest() {
			c.Send(jsonrpc.NewResult(m.ID, json.RawMessage("{}")))
		}
	}
}
