package wsconn

import (
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/gorilla/websocket"
)

// Subprotocols, as the handshake names them.
const (
	subprotocolMCP  = "mcp"
	subprotocolLink = "mcp-proxy-link"
)

// Accept upgrades r to a Conn. The caller has checked Host, Origin and token. Accept chooses the subprotocol "mcp" if
// the client offers it. The Conn does not use r and w, so the handler may return. If r cannot be upgraded, Accept calls
// refuse to answer it; nil answers in plain text.
func (cfg Config) Accept(w http.ResponseWriter, r *http.Request,
	refuse func(w http.ResponseWriter, status int, reason string),
) (*Conn, error) {
	u := upgrader(subprotocolMCP, readBuffer)
	if refuse != nil {
		u.Error = func(w http.ResponseWriter, _ *http.Request, status int, reason error) {
			refuse(w, status, reason.Error())
		}
	}
	frames, err := u.Upgrade(w, r, nil)
	if err != nil {
		return nil, err
	}
	return cfg.newConn(frames, frames.NetConn(), false), nil
}

// errNotLink refuses a client that does not offer the subprotocol of links.
var errNotLink = errors.New("subprotocol " + subprotocolLink + " is required")

// AcceptCarrier upgrades r, a request of [DialCarrier], to a carrier. As with [Config.Accept] the caller has checked
// the request, and the handler may return. A client that does not offer the subprotocol gets 400.
func AcceptCarrier(w http.ResponseWriter, r *http.Request) (net.Conn, error) {
	if !slices.Contains(websocket.Subprotocols(r), subprotocolLink) {
		http.Error(w, errNotLink.Error(), http.StatusBadRequest)
		return nil, errNotLink
	}
	u := upgrader(subprotocolLink, carrierBuffer)
	frames, err := u.Upgrade(w, r, nil)
	if err != nil {
		return nil, err
	}
	return newCarrier(frames, frames.NetConn(), false), nil
}

// upgrader has its own buffers, because the connection would otherwise keep the larger ones of net/http.
func upgrader(subprotocol string, buffer int) *websocket.Upgrader {
	return &websocket.Upgrader{
		ReadBufferSize:  buffer,
		WriteBufferSize: 1, // the frames that gorilla writes go without a buffer
		WriteBufferPool: &writeless,
		Subprotocols:    []string{subprotocol},
		CheckOrigin:     func(*http.Request) bool { return true },
	}
}

// writeless is gorilla's pool of write buffers. It stays empty, because gorilla writes no messages here.
var writeless sync.Pool
