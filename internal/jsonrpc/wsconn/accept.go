package wsconn

import (
	"errors"
	"net"
	"net/http"
	"slices"

	"github.com/gorilla/websocket"
)

// Subprotocols, as the handshake names them.
const (
	subprotocolMCP  = "mcp"
	subprotocolLink = "mcp-proxy-link"
)

// Accept makes a Conn of r. It does not look at Host, Origin or any token: the
// caller has. The subprotocol "mcp" is chosen if the client offers it. The Conn
// does not use r or w any more, so the handler may return. If r cannot be
// upgraded, refuse has told the client before Accept returns; nil answers in
// plain text.
func (cfg Config) Accept(w http.ResponseWriter, r *http.Request, refuse func(w http.ResponseWriter, status int, reason string)) (*Conn, error) {
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

// errNotLink refuses a client that does not ask for a link.
var errNotLink = errors.New("subprotocol " + subprotocolLink + " is required")

// AcceptCarrier makes a carrier of r, as [DialCarrier] asks for one. Like
// [Config.Accept] it checks nothing else, and the handler may return. A client
// that does not offer the subprotocol is answered with 400.
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

// upgrader has buffers of its own, or the connection would keep all of
// net/http's.
func upgrader(subprotocol string, buffer int) *websocket.Upgrader {
	return &websocket.Upgrader{
		ReadBufferSize:  buffer,
		WriteBufferSize: 1, // the frames that gorilla writes go without a buffer
		WriteBufferPool: noWrites{},
		Subprotocols:    []string{subprotocol},
		CheckOrigin:     func(*http.Request) bool { return true },
	}
}

// noWrites is the pool of write buffers for gorilla, which we never let write
// a message.
type noWrites struct{}

func (noWrites) Get() any { return nil }
func (noWrites) Put(any)  {}
