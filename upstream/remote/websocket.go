package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// isSocket reports whether a server's URL is one of a WebSocket, rather than of HTTP. The
// error is for any other URL.
func isSocket(t *transport) (bool, error) {
	u, err := url.Parse(t.url)
	if err != nil {
		return false, fmt.Errorf("dial %s: the URL cannot be read", t.name) // url.Error would quote it
	}
	switch u.Scheme {
	case "http", "https":
		return false, nil
	case "ws", "wss":
		return true, nil
	}
	return false, fmt.Errorf("dial %s: unknown scheme %q", t.name, u.Scheme)
}

// A webSocket is a session on a WebSocket, which ends with the connection. It has no
// goroutines.
type webSocket struct {
	*wsconn.Conn
	ctx    context.Context // of Dial
	unhook func() bool     // from ctx
}

// dialSocket connects to a server at a ws or wss URL, within 10 s. A failure is a
// [*jsonrpc.ClosedError]: nothing was delivered.
func dialSocket(ctx context.Context, t *transport) (*webSocket, error) {
	for round := 0; ; round++ {
		header, f := t.header(ctx, round > 0)
		if f != nil {
			return nil, f.end()
		}
		for _, name := range handshakeHeaders {
			header.Del(name)
		}
		w, err := dialOnce(ctx, t, header)
		status, answered := errors.AsType[*wsconn.StatusError](err)
		switch {
		case err == nil:
			return w, nil
		case !answered:
			return nil, notDialled(ctx, err)
		}
		resp := &http.Response{StatusCode: status.Code, Header: http.Header{"Www-Authenticate": status.Challenge}, Body: http.NoBody}
		again, f := t.proveAnew(ctx, resp, header, round)
		if !again && f == nil {
			f = t.refusedBy(resp)
			f.err = err
		}
		if f != nil {
			return nil, f.end()
		}
	}
}

// handshakeHeaders cannot be configured.
var handshakeHeaders = []string{
	"Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Extensions", "Sec-Websocket-Protocol",
}

// dialOnce connects, with the header of the handshake request.
func dialOnce(ctx context.Context, t *transport, header http.Header) (*webSocket, error) {
	cfg := wsconn.Config{Limits: t.limits, WriteTimeout: t.writeTimeout}
	conn, err := cfg.Dial(ctx, t.url, header, t.tls)
	if err != nil {
		return nil, err
	}
	w := &webSocket{Conn: conn, ctx: ctx}
	w.unhook = context.AfterFunc(ctx, func() { conn.Close() })
	return w, nil
}

// notDialled returns the end of a session whose handshake got no response.
func notDialled(ctx context.Context, err error) *jsonrpc.ClosedError {
	end := &jsonrpc.ClosedError{Cause: CauseOf(err), Lasting: isUntrusted(err), Err: err}
	switch {
	case ctx.Err() != nil:
		end.Cause = jsonrpc.CauseHostStopped
	case errors.Is(err, wsconn.ErrHandshake):
		end.Cause = jsonrpc.CauseBadHandshake
	}
	return end
}

// Recv implements jsonrpc.Conn. The error at the end is a [*jsonrpc.ClosedError], or
// jsonrpc.ErrClosed after Close.
func (w *webSocket) Recv() (*jsonrpc.Message, error) {
	m, err := w.Conn.Recv()
	if err == nil || !errors.Is(err, jsonrpc.ErrClosed) {
		return m, err
	}
	return nil, w.ended(err)
}

// ended returns err, the end of the connection, as an error for the host.
func (w *webSocket) ended(err error) error {
	end := &jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionLost, Delivered: true, Err: err}
	closed, told := errors.AsType[*wsconn.CloseError](err)
	switch {
	case told:
		end.Cause = jsonrpc.WebSocketCause(closed.Code)
	case errors.Is(err, wsconn.ErrSilent):
		end.Cause = jsonrpc.CauseSilent
	case errors.Is(err, wsconn.ErrTooLarge):
		end.Cause = jsonrpc.CauseTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		end.Cause = jsonrpc.CauseWriteTimeout
	case err != jsonrpc.ErrClosed: // not our own Close
	case w.ctx.Err() == nil:
		return err
	default:
		end.Cause, end.Err = jsonrpc.CauseHostStopped, context.Cause(w.ctx)
	}
	return end
}

// Close implements jsonrpc.Conn. Messages that were sent before still go out, and the
// server has a second for the closing handshake.
func (w *webSocket) Close() error {
	w.unhook()
	return w.Conn.Close()
}

// A modernSocket is a stream of the modern era on a WebSocket, where all messages come on
// one connection. It sets Related of notifications that name a call, and drops requests,
// which the era does not have.
type modernSocket struct {
	jsonrpc.Conn
	log *slog.Logger
}

// Recv implements jsonrpc.Conn.
func (w *modernSocket) Recv() (*jsonrpc.Message, error) {
	for {
		m, err := w.Conn.Recv()
		switch {
		case err != nil:
			return nil, err
		case m.IsRequest():
			w.log.Debug("request dropped: modern servers do not send any", "method", m.Method)
		case m.IsNotification():
			related := *m
			related.Related = relation(m)
			return &related, nil
		default:
			return m, nil
		}
	}
}

// relation returns the id of the call that a notification names: by subscription id, by
// progress token, which is the id, or because it cancels the call; zero for none.
func relation(m *jsonrpc.Message) jsonrpc.ID {
	of := mcp.Subscription
	if m.Method == mcp.MethodProgress || m.Method == mcp.MethodCancelled {
		of = mcp.Key
	}
	id, _ := mcp.Read(m).ID(of)
	n, ok := id.Answered()
	if !ok {
		return jsonrpc.ID{}
	}
	return jsonrpc.IntID(n)
}
