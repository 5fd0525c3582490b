package remote

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"os"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

const causeStopped = "host stopped" // the ctx of Dial is done

// A webSocket is a session with a server on a WebSocket: the connection is the
// session. It has no goroutines.
type webSocket struct {
	*wsconn.Conn
	ctx    context.Context // of Dial
	unhook func() bool     // from ctx
}

// dialWebSocket begins a session with a server at a ws or wss URL, as dialSocket
// does, and keeps it to MaxConcurrent.
func (s *Server) dialWebSocket(ctx context.Context) (jsonrpc.Conn, error) {
	w, err := s.dialSocket(ctx)
	if err != nil {
		return nil, err
	}
	if s.slots != nil {
		return newThrottle(w, s), nil
	}
	return w, nil
}

// dialSocket connects to a server at a ws or wss URL, within 10 s. A failure is a
// [*jsonrpc.ClosedError]: nothing was delivered.
func (s *Server) dialSocket(ctx context.Context) (*webSocket, error) {
	s.once.Do(s.prepare)
	header, err := s.upgradeHeader()
	if err != nil {
		return nil, &jsonrpc.ClosedError{Cause: "bad header file", Lasting: true, Err: err}
	}
	cfg := wsconn.Config{Limits: s.Limits, WriteTimeout: s.writeTimeout()}
	conn, err := cfg.Dial(ctx, s.URL, header, s.TLS)
	if err != nil {
		return nil, s.notDialled(ctx, err)
	}
	w := &webSocket{Conn: conn, ctx: ctx}
	w.unhook = context.AfterFunc(ctx, func() { conn.Close() })
	return w, nil
}

// upgradeHeader returns what the config wants to be sent, without what belongs to
// the handshake or to another transport.
func (s *Server) upgradeHeader() (http.Header, error) {
	header, err := s.header()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{
		"Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Extensions",
		"Sec-Websocket-Protocol",
	} {
		header.Del(name)
	}
	maps.DeleteFunc(header, func(name string, _ []string) bool { return isProtocols(name) })
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", "mcp-proxy")
	}
	return header, nil
}

// notDialled returns the end of a session that never began.
func (s *Server) notDialled(ctx context.Context, err error) *jsonrpc.ClosedError {
	end := &jsonrpc.ClosedError{Cause: causeOf(err), Lasting: isUntrusted(err), Err: err}
	status, answered := errors.AsType[*wsconn.StatusError](err)
	switch {
	case answered:
		f := refused(status.Code)
		f.oauth, f.err = f.denied() && asksForOAuth(status.Challenge), err
		if f.denied() {
			s.files.refused()
		}
		end = f.end()
	case ctx.Err() != nil:
		end.Cause = causeStopped
	case errors.Is(err, wsconn.ErrHandshake):
		end.Cause = wsconn.ErrHandshake.Error()
	}
	return end
}

// Recv implements jsonrpc.Conn. The end is a [*jsonrpc.ClosedError]; after Close
// it is jsonrpc.ErrClosed.
func (w *webSocket) Recv() (*jsonrpc.Message, error) {
	m, err := w.Conn.Recv()
	if err == nil || !errors.Is(err, jsonrpc.ErrClosed) {
		return m, err
	}
	return nil, w.ended(err)
}

// ended returns what err, the end of the connection, is to the host.
func (w *webSocket) ended(err error) error {
	end := &jsonrpc.ClosedError{Cause: "connection lost", Delivered: true, Err: err}
	closed, told := errors.AsType[*wsconn.CloseError](err)
	switch {
	case told:
		end.Cause = closed.Error()
	case errors.Is(err, wsconn.ErrSilent):
		end.Cause = wsconn.ErrSilent.Error()
	case errors.Is(err, wsconn.ErrTooLarge):
		end.Cause = wsconn.ErrTooLarge.Error()
	case errors.Is(err, os.ErrDeadlineExceeded):
		end.Cause = "write timeout"
	case err != jsonrpc.ErrClosed: // which is our own Close
	case w.ctx.Err() == nil:
		return err
	default:
		end.Cause, end.Err = causeStopped, context.Cause(w.ctx)
	}
	return end
}

// Close implements jsonrpc.Conn. What was sent before reaches the server, which
// has a second to take leave.
func (w *webSocket) Close() error {
	w.unhook()
	return w.Conn.Close()
}
