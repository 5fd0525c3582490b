package wsconn

import (
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Config is what a [Conn] is made with. The zero value is ready to use.
type Config struct {
	Limits jsonrpc.Limits

	// Ping is how often the peer is pinged; zero means 20 s. A peer that is
	// silent for two of these, without even a part of a message, is gone.
	Ping time.Duration

	// WriteTimeout is how long the peer may take for 256 KiB before it is gone;
	// zero means 30 s.
	WriteTimeout time.Duration
}

// A CloseError is the close frame of the peer, as the cause of an end.
type CloseError struct {
	Code int // 1005 if the frame carried none
}

// Error implements error.
func (e *CloseError) Error() string { return "WebSocket closed " + strconv.Itoa(e.Code) }
