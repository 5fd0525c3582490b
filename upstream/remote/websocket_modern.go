package remote

import (
	"context"
	"log/slog"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A modernSocket is a stream of the modern era on a WebSocket, where all that comes
// comes on one connection: it says of notifications which request they belong to,
// where they name it, and drops requests, which the era does not have.
type modernSocket struct {
	jsonrpc.Conn
	log *slog.Logger
}

func (s *Server) dialModernWebSocket(ctx context.Context) (jsonrpc.Conn, error) {
	conn, err := s.dialWebSocket(ctx)
	if err != nil {
		return nil, err
	}
	return &modernSocket{conn, s.tally.log}, nil
}

// Recv implements jsonrpc.Conn.
func (w *modernSocket) Recv() (*jsonrpc.Message, error) {
	for {
		m, err := w.Conn.Recv()
		switch {
		case err != nil:
			return nil, err
		case m.IsRequest():
			w.log.Debug("request dropped, the modern era has none from servers", "method", m.Method)
		case m.IsNotification():
			related := *m
			related.Related = relation(m)
			return &related, nil
		default:
			return m, nil
		}
	}
}

// relation returns the request that a notification names: a listen by its
// subscription, or when the server ends it; others by their progress token, which
// is the id.
func relation(m *jsonrpc.Message) jsonrpc.ID {
	text := member(member(m.Params, "_meta"), mcp.KeySubscription)
	switch m.Method {
	case mcp.MethodProgress:
		text = member(m.Params, "progressToken")
	case mcp.MethodCancelled:
		text = member(m.Params, "requestId")
	}
	id, _ := jsonrpc.ParseID(text)
	n, ok := id.Answered()
	if !ok {
		return jsonrpc.ID{}
	}
	return jsonrpc.IntID(n)
}
