package frontend

import (
	"cmp"
	"net/http"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// A WebSocket makes Conns of WebSockets: each text frame is one message, the
// subprotocol "mcp" is offered and optional, there is no compression. Like stdio,
// the connection is the session: its end, whichever way, is the client's end, and
// there is no half-close. Bytes that are not a message cost that message; what
// breaks the framing ends the connection:
//
//	1000   answers the client's own close
//	1001   the proxy closes
//	1002   frames that break the protocol
//	1003   a binary frame
//	1007   text that is not UTF-8
//	1009   a message over the limit
//
// The zero value is ready to use.
type WebSocket struct {
	Limits jsonrpc.Limits

	// Ping is how often a client is pinged; zero means 20 s. A client that is
	// silent for two of these, without even a part of a message, is gone.
	Ping time.Duration

	// WriteTimeout is how long a client may take for 256 KiB before it is gone;
	// zero means 30 s.
	WriteTimeout time.Duration
}

const (
	defaultPing         = 20 * time.Second
	defaultWriteTimeout = 30 * time.Second
	closeTimeout        = time.Second // for the close handshake
	readBuffer          = 1 << 10     // kept by an idle connection; longer messages are read past it
)

// Upgrade makes a Conn of r, whose Host, Origin and token a [Guard] has checked:
// it checks none of them. The Conn does not use r or w any more, so the handler
// may return. If r cannot be upgraded, the client has been told.
func (ws *WebSocket) Upgrade(w http.ResponseWriter, r *http.Request) (jsonrpc.Conn, error) {
	// Buffers of its own, or the connection would keep all of net/http's.
	upgrader := websocket.Upgrader{
		ReadBufferSize:  readBuffer,
		WriteBufferSize: 1, // the frames that gorilla writes go without a buffer
		WriteBufferPool: noWrites{},
		Subprotocols:    []string{"mcp"},
		CheckOrigin:     func(*http.Request) bool { return true },
		Error: func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			refuse(w, status, reason.Error())
		},
	}
	frames, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, err
	}
	return newWSConn(frames, ws), nil
}

// serveWS is the WebSocket endpoint: one session for as long as the connection
// lives.
func (h *HTTP) serveWS(w http.ResponseWriter, r *http.Request, upstream string) {
	if r.Method != http.MethodGet {
		notAllowed(w, "GET")
		return
	}
	if !h.enter(w) {
		return
	}
	ws := WebSocket{Limits: h.Limits}
	c, err := ws.Upgrade(w, r)
	if err != nil {
		h.leave()
		return
	}
	go h.runWS(upstream, c) // the handler's goroutine has a large stack and holds the request
}

// runWS is the goroutine of a WebSocket client.
func (h *HTTP) runWS(upstream string, c jsonrpc.Conn) {
	defer h.leave()
	defer c.Close()
	log := h.logger()
	log.Debug("WebSocket opened", "upstream", upstream)
	err := h.Serve(h.ctx, upstream, c)
	log.Debug("WebSocket ended", "cause", jsonrpc.CauseOf(err))
}

// noWrites is the pool of write buffers for gorilla, which we never let write
// a message.
type noWrites struct{}

func (noWrites) Get() any { return nil }
func (noWrites) Put(any)  {}

func newWSConn(frames *websocket.Conn, ws *WebSocket) *wsConn {
	c := &wsConn{
		frames: frames, socket: frames.NetConn(), limits: ws.Limits,
		ping: cmp.Or(ws.Ping, defaultPing), writeTimeout: cmp.Or(ws.WriteTimeout, defaultWriteTimeout),
	}
	frames.SetReadLimit(int64(ws.Limits.MaxMessage()))
	frames.SetPingHandler(c.onPing)
	frames.SetPongHandler(c.onPong)
	frames.SetCloseHandler(c.onClose)
	c.heard.Store(true)                         // the request to upgrade
	c.timer = time.AfterFunc(time.Hour, c.tick) // tick uses c.timer: it must be set before it runs
	c.timer.Reset(c.ping)
	return c
}
