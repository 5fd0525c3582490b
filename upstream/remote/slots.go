package remote

import (
	"context"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// takesSlot reports whether a request counts for MaxConcurrent. What ends a task
// must not wait for the calls before it, and calls must not wait for a listen,
// which lives as long as its client.
func takesSlot(method string) bool {
	return method != mcp.MethodTasksCancel && method != mcp.MethodListen
}

// acquire waits until a request may be sent. With true release gives its slot
// back, and may be called repeatedly.
func (s *Server) acquire(ctx context.Context, method string) (release func(), ok bool) {
	if s.slots == nil || !takesSlot(method) {
		return func() {}, true
	}
	select {
	case s.slots <- struct{}{}:
		return sync.OnceFunc(func() { <-s.slots }), true
	case <-ctx.Done():
		return nil, false
	}
}

// refusal returns the answer to a request that cannot be taken where that many are
// open, nil if it can. An answer with an id that is in use would be taken for that
// of the first.
func (s *Server) refusal(id jsonrpc.ID, used bool, open int) *jsonrpc.Message {
	switch {
	case used:
		return jsonrpc.NewError(jsonrpc.ID{}, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Duplicate request id"})
	case open >= maxOpen:
		return jsonrpc.NewError(id, jsonrpc.Overloaded(s.Name))
	}
	return nil
}

// ownID returns the id of a request that is not the client's. Its clients' ids are
// integers.
func ownID(name string) jsonrpc.ID {
	id, _ := jsonrpc.ParseID(jsonrpc.Quote("mcp-proxy:" + name))
	return id
}
