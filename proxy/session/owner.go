package session

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"

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
		r.whenAnswered(func(answer *jsonrpc.Message) { s.readAnswered(r, answer, key, uri) })
	}
	return s.toOwnerOf(r, mcp.Key)
}

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

// byURI forwards a request to the upstream that has the resource.
func (s *session) byURI(r *request) *jsonrpc.Error {
	if err := r.notes.Err(mcp.Key); err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	return s.toOwnerOf(r, mcp.Key)
}

// toOwnerOf forwards r to the upstream that lists the URI, else to one with a matching template,
// else to those that declare resources, in turn. A retry is sent to the upstream that asked for it.
func (s *session) toOwnerOf(r *request, in mcp.Member) *jsonrpc.Error {
	uri, ok := r.notes.Text(in)
	if !ok {
		return jsonrpc.InvalidParams(mcp.Missing("uri").Error())
	}
	k := catalog.Resources
	if in == mcp.RefURI { // of a resource or a template
		k = catalog.Templates
	}
	switch denied, answered := s.denied(r, k, nil, uri); {
	case answered:
		return nil
	case denied:
		s.noteDenial(r, "")
		return resourceNotFound(r.era, uri)
	}
	set := r.upstreams
	u := set.only()
	if u == nil {
		u = s.knownOwner(r, uri)
	}
	if u != nil {
		s.forward(r, u)
		return nil
	}
	s.work(r, func(ctx context.Context) {
		lists.Refresh(ctx, listsOf(set.conns), r.listClient(), catalog.Resources, catalog.Templates)
		if u := set.ownerOf(r.caps, uri); u != nil {
			s.forward(r, u)
			return
		}
		candidates := set.withResources()
		if len(candidates) == 0 {
			s.fail(r, cmp.Or(set.unreached(r.grant), resourceNotFound(r.era, uri)))
			return
		}
		s.toOneOf(ctx, r, candidates)
	})
	return nil
}

// toOneOf forwards a request about a resource to the candidates, in turn. A retry is for only one
// of them; plain reads find that one.
func (s *session) toOneOf(ctx context.Context, r *request, candidates []*upstreamConn) {
	if !r.retry {
		r.others, r.fallback = candidates[1:], r.upstreams.unreachedText(r.grant)
		s.forward(r, candidates[0])
		return
	}
	if u := s.whoAnswers(ctx, r, candidates, r.Method, r.plainRead()); u != nil {
		s.forward(r, u)
	}
}

// someUpstreams is the number of upstreams up to which look-ups do not allocate.
const someUpstreams = 8

// withResources returns the upstreams that may have a resource that they do not list. Living
// upstreams come first, because they answer at once, and if none of them has it the client should
// get the errors of the others. Late upstreams are left out, unless there are no others.
func (set *upstreamSet) withResources() []*upstreamConn {
	var alive, others, tardy []*upstreamConn
	for _, u := range set.conns {
		switch {
		case !u.lists.Says().Offers("resources"):
		case u.lists.IsLate(catalog.Resources.Method()):
			tardy = append(tardy, u)
		case u.alive():
			alive = append(alive, u)
		default:
			others = append(others, u)
		}
	}
	if alive == nil && others == nil {
		return tardy
	}
	return append(alive, others...)
}

// at returns the i-th upstream, nil for -1.
func (set *upstreamSet) at(i int) *upstreamConn {
	if i < 0 {
		return nil
	}
	return set.conns[i]
}

// offers appends the lists of a kind of all upstreams, as a view knows them.
func (set *upstreamSet) offers(caps catalog.Digest, k catalog.Kind, to []catalog.Offer) []catalog.Offer {
	for i, u := range set.conns {
		to = append(to, catalog.Offer{Prefix: set.prefix(k, i), Table: u.lists.Table(caps, k)})
	}
	return to
}

// ownerOf finds a URI, or the text of a template, in the tables of a view.
func (set *upstreamSet) ownerOf(caps catalog.Digest, uri string) *upstreamConn {
	var listed, matching [someUpstreams]catalog.Offer
	return set.at(catalog.OwnerOfURI(set.offers(caps, catalog.Resources, listed[:0]), set.offers(caps, catalog.Templates, matching[:0]), uri))
}

// resourceNotFound returns an error that has its own code only in the legacy era.
func resourceNotFound(era mcp.Era, uri string) *jsonrpc.Error {
	code := jsonrpc.CodeResourceNotFound
	if era == mcp.Modern {
		code = jsonrpc.CodeInvalidParams
	}
	return &jsonrpc.Error{Code: code, Message: "Resource not found", Data: map[string]string{"uri": uri}}
}
