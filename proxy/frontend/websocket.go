package frontend

import (
	"net/http"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// serveWS is the WebSocket endpoint: one session for as long as the connection
// lives. A [Guard] has checked Host, Origin and token.
func (h *HTTP) serveWS(w http.ResponseWriter, r *http.Request, upstream string) {
	if r.Method != http.MethodGet {
		notAllowed(w, "GET")
		return
	}
	if !h.enter(w) {
		return
	}
	c, err := wsconn.Config{Limits: h.Limits}.Accept(w, r, refuse)
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
