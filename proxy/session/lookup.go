package session

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// callTool routes tools/call by the tool's name. Its params may be long, and are
// read once.
func (s *session) callTool(c *call) {
	if err := c.findTool(); err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	switch {
	case c.era == mcp.Modern && c.tasks:
		s.whenAnswered(c, func(answer *jsonrpc.Message) { answer.Result = s.modernTaskCreated(c, answer.Result) })
	case c.era == mcp.Legacy && !c.tool[2].IsZero():
		s.whenAnswered(c, func(answer *jsonrpc.Message) { answer.Result = s.taskCreated(c, answer.Result) })
	}
	c.meta = &c.tool[1]
	s.byName(c, tools, c.tool[0], "Unknown tool: ")
}

// A toolCall is where in the params of a tools/call stands what it is routed by.
type toolCall [3]jsonrpc.Span // of name, _meta and task

// findTool reads the params of a tools/call, unless that was done before.
func (c *call) findTool() error {
	if c.tool != nil {
		return nil
	}
	c.tool = new(toolCall)
	return jsonrpc.Find(c.msg.Params, jsonrpc.Span{}, c.tool[:], "name", "_meta", "task")
}

// getPrompt routes prompts/get by the prompt's name.
func (s *session) getPrompt(c *call) { s.byNameIn(c, jsonrpc.Span{}) }

// byNameIn routes a call by the name of a prompt in the object that in covers.
func (s *session) byNameIn(c *call, in jsonrpc.Span) {
	var at [1]jsonrpc.Span
	if err := jsonrpc.Find(c.msg.Params, in, at[:], "name"); err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	s.byName(c, prompts, at[0], "Unknown prompt: ")
}

// byName forwards a call to the upstream that offers the name that stands at a
// place in params, under its own name there.
func (s *session) byName(c *call, k kind, at jsonrpc.Span, unknown string) {
	params := c.msg.Params
	name, ok := jsonrpc.Unquote(at.Of(params))
	if !ok {
		s.fail(c, invalidParams(errMissing("name").Error()))
		return
	}
	var to func(l *leg, original string, listed bool)
	to = func(l *leg, original string, listed bool) {
		switch {
		case l == nil && c.lineup.prefixOf(name) == "" && !c.lineup.complete:
			s.fail(c, c.lineup.unreached())
			return
		case l == nil || k == tools && !l.up.allows(original):
			s.fail(c, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: unknown + name})
			return
		}
		bad, sure := c.checkHeaders(l, k, original)
		switch {
		case !sure && !listed:
			s.work(c, func(ctx context.Context) {
				l.learnTools(ctx, c.asker())
				to(l, original, true)
			})
		case bad != nil:
			s.fail(c, bad)
		case original == name:
			s.forward(c, l, params)
		default:
			s.forward(c, l, params, jsonrpc.Edit{Span: at, With: jsonrpc.Quote(original)})
		}
	}
	if l, original := c.lineup.owner(c.view, k, name); l != nil {
		to(l, original, false)
		return
	}
	s.work(c, func(ctx context.Context) {
		l, original := c.lineup.find(ctx, c.asker(), k, name)
		to(l, original, true)
	})
}

// owner looks a name up in the tables of a view: the exposed name first, then a bare name
// that exactly one upstream offers (apps and prompts mention those, and so do clients
// that were given it when there was but one). A session with one upstream and bare
// names needs no table.
func (v *lineup) owner(w *view, k kind, name string) (*leg, string) {
	if l := v.only(); l != nil && v.prefixes[0] == "" {
		return l, v.former(w, k, name)
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	for i, l := range v.legs {
		if original, ok := l.catalogLocked(w).tables[k].resolve(v.prefixes[i], name); ok {
			return l, original
		}
	}
	for _, l := range v.legs {
		if l.catalogLocked(w).tables[k] == nil {
			return nil, "" // it may offer the bare name, too
		}
	}
	return v.bareOwnerLocked(w, k, name), name
}

// former returns the only upstream's own name for one that a client was given when
// there were several. Any other name is the upstream's own.
func (v *lineup) former(w *view, k kind, name string) string {
	prefix := v.legs[0].up.Name + "__"
	if !v.s.follows || !strings.HasPrefix(name, prefix) {
		return name
	}
	v.s.mu.Lock()
	t := v.legs[0].catalogLocked(w).tables[k]
	v.s.mu.Unlock()
	if original, ok := t.resolve(prefix, name); ok && !t.names[name] {
		return original
	}
	return name
}

// bareOwnerLocked returns the one upstream that is known to offer a name of its
// own; nil if there are none or several.
func (v *lineup) bareOwnerLocked(w *view, k kind, name string) *leg {
	var only *leg
	for _, l := range v.legs {
		if t := l.catalogLocked(w).tables[k]; t != nil && t.names[name] {
			if only != nil {
				return nil
			}
			only = l
		}
	}
	return only
}

// find looks a name up after asking those upstreams that have not listed yet, or
// whose list changed: first the one whose prefix the name has, which gets the
// call if it cannot list now, so that its state is what the client hears.
func (v *lineup) find(ctx context.Context, who asker, k kind, name string) (*leg, string) {
	prefix := v.prefixOf(name)
	if prefix != "" {
		named := v.named(prefix)
		v.refresh(ctx, who, func(l *leg) bool { return slices.Contains(named, l) }, k)
		if l, original := v.owner(who.view, k, name); l != nil {
			return l, original
		}
		for _, l := range named {
			if l.stale(who.view, k) {
				return l, strings.TrimPrefix(name, prefix)
			}
		}
	}
	v.refresh(ctx, who, all, k)
	if l, original := v.owner(who.view, k, name); l != nil {
		return l, original
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	return v.bareOwnerLocked(who.view, k, name), name // whoever could not list now cannot be asked either
}

// prefixOf returns the longest prefix of an upstream that a name begins with.
func (v *lineup) prefixOf(name string) string {
	longest := ""
	for _, prefix := range v.prefixes {
		if len(prefix) > len(longest) && strings.HasPrefix(name, prefix) {
			longest = prefix
		}
	}
	return longest
}

// named returns the upstreams whose names have a prefix.
func (v *lineup) named(prefix string) (found []*leg) {
	for i, l := range v.legs {
		if v.prefixes[i] == prefix {
			found = append(found, l)
		}
	}
	return found
}

// prefix is that of what the i-th upstream lists of a kind: URIs stay as they are.
func (v *lineup) prefix(k kind, i int) string {
	if k.named() {
		return v.prefixes[i]
	}
	return ""
}

// complete routes completion/complete by what it refers to.
func (s *session) complete(c *call) {
	var ref, in [2]jsonrpc.Span
	err := jsonrpc.Find(c.msg.Params, jsonrpc.Span{}, ref[:1], "ref")
	if err == nil && !ref[0].IsZero() {
		err = jsonrpc.Find(c.msg.Params, ref[0], in[:], "type", "uri")
	}
	if err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	switch kindOfRef, _ := jsonrpc.Unquote(in[0].Of(c.msg.Params)); kindOfRef {
	case "ref/prompt":
		s.byNameIn(c, ref[0])
	case "ref/resource":
		s.toOwnerOf(c, in[1].Of(c.msg.Params))
	default:
		if l := c.lineup.only(); l != nil {
			s.forward(c, l, c.msg.Params)
			return
		}
		s.fail(c, invalidParams(`"ref" is neither a prompt nor a resource`))
	}
}

// byURI forwards a call to the upstream that has the resource.
func (s *session) byURI(c *call) {
	uri, err := jsonrpc.Member(c.msg.Params, "uri")
	if err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	s.toOwnerOf(c, uri)
}

// toOwnerOf forwards c to the upstream that lists the URI, else to one with a
// template that matches, else to those that declare resources, one by one. A retry
// goes to who has asked for it.
func (s *session) toOwnerOf(c *call, raw json.RawMessage) {
	uri, ok := jsonrpc.Unquote(raw)
	if !ok {
		s.fail(c, invalidParams(errMissing("uri").Error()))
		return
	}
	v := c.lineup
	if l := v.only(); l != nil {
		s.forward(c, l, c.msg.Params)
		return
	}
	if l := s.knownOwner(c, uri); l != nil {
		s.forward(c, l, c.msg.Params)
		return
	}
	s.work(c, func(ctx context.Context) {
		v.refresh(ctx, c.asker(), all, resources, templates)
		if l := v.ownerOf(c.view, uri); l != nil {
			s.forward(c, l, c.msg.Params)
			return
		}
		candidates := v.withResources()
		if len(candidates) == 0 {
			s.fail(c, orDefault(v.unreached(), resourceNotFound(c.era, uri)))
			return
		}
		s.toOneOf(ctx, c, candidates)
	})
}

// toOneOf forwards a call about a resource to those that may have it, in turn. A retry
// is for one of them only, who a plain read finds.
func (s *session) toOneOf(ctx context.Context, c *call, candidates []*leg) {
	if !c.retry {
		c.others = candidates[1:]
		s.forward(c, candidates[0], c.msg.Params)
		return
	}
	if l := s.whoAnswers(ctx, c, candidates, c.method, c.plainRead()); l != nil {
		s.forward(c, l, c.msg.Params)
	}
}

// resourceNotFound has a code of its own in the legacy era only.
func resourceNotFound(era mcp.Era, uri string) *jsonrpc.Error {
	code := jsonrpc.CodeResourceNotFound
	if era == mcp.Modern {
		code = jsonrpc.CodeInvalidParams
	}
	return &jsonrpc.Error{Code: code, Message: "Resource not found", Data: map[string]string{"uri": uri}}
}

// withResources returns the upstreams that may know a resource that they do not
// list. Those alive come first: they answer at once, and if none of them has it,
// the state of the others is what the client should hear. Nobody waits for one that
// was late, unless there is no other.
func (v *lineup) withResources() []*leg {
	var alive, others, tardy []*leg
	for _, l := range v.legs {
		switch {
		case !l.offers("resources"):
		case l.late(kindInfo[resources].method):
			tardy = append(tardy, l)
		case l.alive():
			alive = append(alive, l)
		default:
			others = append(others, l)
		}
	}
	if alive == nil && others == nil {
		return tardy
	}
	return append(alive, others...)
}

// ownerOf looks a URI, or a template as such, up in the tables of a view.
func (v *lineup) ownerOf(w *view, uri string) *leg {
	if l := v.listedBy(w, uri); l != nil {
		return l
	}
	for _, l := range v.legs {
		v.s.mu.Lock()
		t := l.catalogLocked(w).tables[templates]
		v.s.mu.Unlock()
		if t.covers(uri) {
			return l
		}
	}
	return nil
}

func (v *lineup) listedBy(w *view, uri string) *leg {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	for _, k := range []kind{resources, templates} {
		for _, l := range v.legs {
			if t := l.catalogLocked(w).tables[k]; t != nil && t.names[uri] {
				return l
			}
		}
	}
	return nil
}

// A subscription is what the client subscribed to and who serves it, so that it
// survives a restart of the upstream.
type subscription struct {
	leg    *leg
	params json.RawMessage
}

// maxSubscriptions bounds how many subscriptions of one client are remembered.
const maxSubscriptions = 10000

// subscribe routes resources/subscribe and remembers what succeeded.
func (s *session) subscribe(c *call) {
	params := bytes.Clone(c.msg.Params)
	s.whenAnswered(c, func(answer *jsonrpc.Message) {
		raw, err := jsonrpc.Member(params, "uri")
		uri, _ := jsonrpc.Unquote(raw)
		if answer.Error != nil || err != nil || c.request == nil {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.subs) < maxSubscriptions && !c.request.leg.closed {
			s.subs[uri] = subscription{c.request.leg, params}
		}
	})
	s.byURI(c)
}

// unsubscribe goes where the subscription is.
func (s *session) unsubscribe(c *call) {
	raw, err := jsonrpc.Member(c.msg.Params, "uri")
	if err != nil {
		s.fail(c, invalidParams(err.Error()))
		return
	}
	uri, _ := jsonrpc.Unquote(raw)
	s.mu.Lock()
	sub, ok := s.subs[uri]
	delete(s.subs, uri)
	s.mu.Unlock()
	if ok {
		s.forward(c, sub.leg, c.msg.Params)
		return
	}
	s.toOwnerOf(c, raw)
}
