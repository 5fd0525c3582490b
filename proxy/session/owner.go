package session

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"strconv"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// When an upstream has asked a client something, the answer and the state of the request are only
// for that upstream (2026-07-28 basic/patterns/mrtr), and never for another one that may have the
// resource or the task.

// readerKey returns the key of a read in readers.
func (r *request) readerKey(uri string) (key catalog.Digest) {
	hash := sha256.New()
	hash.Write(r.identity()) // an object, so the URI is not part of it
	hash.Write([]byte(uri))
	hash.Sum(key[:0])
	return key
}

// readResource routes resources/read, which may be a retry in the modern era.
func (s *session) readResource(r *request) *jsonrpc.Error {
	if r.era == mcp.Legacy {
		return s.byURI(r)
	}
	n := r.notes
	if err := n.Err(mcp.Key, mcp.Responses, mcp.RequestState); err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	r.retry = isGiven(n.Raw(mcp.Responses)) || isGiven(n.Raw(mcp.RequestState))
	if uri, ok := n.Text(mcp.Key); ok && r.upstreams.only() == nil {
		key := r.readerKey(uri)
		s.whenAnswered(r, func(answer *jsonrpc.Message) { s.readAnswered(r, answer, key, uri) })
	}
	return s.toOwnerOf(r, mcp.Key)
}

// isGiven reports whether a member is present and not null.
func isGiven(value json.RawMessage) bool { return value != nil && string(value) != "null" }

// readAnswered records the upstream that answered a read. If the last upstream that was asked has
// no resources at all, the client gets the error that no upstream has this one.
func (s *session) readAnswered(r *request, answer *jsonrpc.Message, key catalog.Digest, uri string) {
	if lists.IsUnsupported(answer.Error) {
		answer.Error = resourceNotFound(mcp.Modern, uri).Raw()
	}
	if answer.Error == nil && r.sent != nil {
		s.readers.Add(key, r.sent.conn)
	}
}

// knownOwner returns the upstream that is known to have a resource: for a retry the one that asked
// for it, else one that lists it or has a template for it.
func (s *session) knownOwner(r *request, uri string) *upstreamConn {
	if r.retry {
		if u := s.readers.Get(r.readerKey(uri)); u != nil {
			return u
		}
	}
	return r.upstreams.ownerOf(r.caps, uri)
}

// plainRead returns the params of a retry as those of a first read.
func (r *request) plainRead() json.RawMessage {
	return jsonrpc.Set(r.msg.Params, jsonrpc.Value{Key: "_meta", Text: r.identity()},
		jsonrpc.Value{Key: "inputResponses"}, jsonrpc.Value{Key: "requestState"})
}

// lacksResource reports whether an error means that the upstream does not have a resource, or never
// got the request, so that another one may have it. Any other error comes from the upstream that
// has it. Servers without a code for it send 0.
func lacksResource(text json.RawMessage) bool {
	raw, err := jsonrpc.Member(text, "code")
	if err != nil {
		return false
	}
	switch code, _ := strconv.Atoi(string(raw)); code {
	case jsonrpc.CodeResourceNotFound, jsonrpc.CodeInvalidParams, jsonrpc.CodeMethodNotFound, 0:
		return true
	}
	data := jsonrpc.ReadErrorData(text)
	return data.Reason == jsonrpc.ReasonClosed && data.Phase == jsonrpc.NotSent
}

// whoAnswers asks upstreams in turn and returns the first one that returns a result. If there is
// none, it answers r with the first error that is not "unknown", else with the last error.
func (s *session) whoAnswers(ctx context.Context, r *request, conns []*upstreamConn, method string, params json.RawMessage) *upstreamConn {
	var refusal *jsonrpc.Message
	vague := false
	for _, u := range conns {
		answer := u.askWithin(ctx, method, params)
		switch {
		case ctx.Err() != nil:
			return nil // r was taken
		case answer.Error == nil:
			return u
		}
		if refusal == nil || vague {
			refusal, vague = r.checked(u, answer), lacksResource(answer.Error)
		}
	}
	s.settle(r, refusal)
	return nil
}

// askWithin is ask with the list timeout, after which the answer is an error.
func (u *upstreamConn) askWithin(ctx context.Context, method string, params json.RawMessage) *jsonrpc.Message {
	ctx, cancel := context.WithTimeout(ctx, u.s.router.listTimeout())
	defer cancel()
	answer, err := u.ask(ctx, method, params)
	if err != nil {
		return jsonrpc.NewError(jsonrpc.ID{}, jsonrpc.TimedOut(u.up.Name))
	}
	return answer
}
