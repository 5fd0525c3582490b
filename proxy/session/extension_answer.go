package session

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// ofExtension returns the answer to a request of an extension with the client's own id, wherever it has
// ours as a subscription id.
func (c *call) ofExtension(answer *jsonrpc.Message) *jsonrpc.Message {
	r := c.request
	if r.seeks {
		answer = r.searched(c.conn, answer)
	}
	out := *answer
	out.Result, out.Error = mcp.AnsweredAs(answer.Result, c.ID, r.ID), mcp.AnsweredAs(answer.Error, c.ID, r.ID)
	return &out
}

// searched returns the answer to a request of an unknown method, and remembers the upstream that
// gave a result.
func (r *request) searched(u *upstreamConn, answer *jsonrpc.Message) *jsonrpc.Message {
	switch {
	case answer.Error == nil:
		r.upstreams.noteKnows(r.Method, u)
		if kind, _ := catalog.ResultType(answer.Result); r.era == mcp.Modern && kind == catalog.ResultInputRequired {
			raw, _ := jsonrpc.Member(answer.Result, "requestState")
			state, _ := jsonrpc.Unquote(raw)
			r.upstreams.s.readers.Add(r.stateKey(state), u)
		}
	case !r.unknownTo(answer.Error):
	default:
		return &jsonrpc.Message{ID: answer.ID, Error: r.unknownToAll()}
	}
	return answer
}

// unknownTo reports whether an upstream does not know the method of an unknown request, or did not
// get it, so that another one may get it.
func (r *request) unknownTo(text json.RawMessage) bool {
	if data := jsonrpc.ReadErrorData(text); data.Reason == jsonrpc.ReasonClosed && data.Phase == jsonrpc.NotSent {
		if r.fallback == nil {
			r.fallback = text
		}
		return true
	}
	return catalog.IsUnknownMethod(text)
}

// noteKnows remembers that an upstream knows an unknown method.
func (set *upstreamSet) noteKnows(method string, u *upstreamConn) {
	if _, known := set.knows.Load(method); !known && set.known.Add(1) > maxKnows {
		return
	}
	set.knows.Store(method, u)
}

// maxKnows bounds the unknown methods whose owners a session remembers.
const maxKnows = 256

// stateKey returns the key of a state in readers: of a call of an unknown method that asks the client
// something.
func (r *request) stateKey(state string) (key catalog.Digest) {
	hash := sha256.New()
	hash.Write(r.caps[:])
	hash.Write([]byte(r.Method + "\x00" + state))
	hash.Sum(key[:0])
	return key
}
