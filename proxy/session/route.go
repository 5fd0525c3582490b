package session

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// handlers are for methods that the session answers, or that it does not just forward.
var handlers map[string]handler

// finders forward a request to its owner.
var finders map[mcp.Owner]handler

func init() { // not literals, because the handlers refer to the tables
	handlers = map[string]handler{
		mcp.MethodInitialize:    (*session).initialize,
		mcp.MethodPing:          (*session).pong,
		mcp.MethodDiscover:      (*session).discover,
		mcp.MethodListen:        (*session).listen,
		mcp.MethodToolsList:     list(catalog.Tools),
		mcp.MethodPromptsList:   list(catalog.Prompts),
		mcp.MethodResourcesList: list(catalog.Resources),
		mcp.MethodTemplatesList: list(catalog.Templates),
		mcp.MethodTasksList:     (*session).listTasks,
		mcp.MethodSkillsList:    listExtension(&skillsList),
		mcp.MethodEventsList:    listExtension(&eventsList),
		mcp.MethodToolsCall:     (*session).callTool,
		mcp.MethodPromptsGet:    (*session).getPrompt,
		mcp.MethodResourcesRead: (*session).readResource,
		mcp.MethodSubscribe:     (*session).subscribe,
		mcp.MethodUnsubscribe:   (*session).unsubscribe,
		mcp.MethodSetLevel:      (*session).setLevel,
	}
	finders = map[mcp.Owner]handler{
		mcp.ByURI:  (*session).byURI,
		mcp.ByRef:  (*session).complete,
		mcp.ByTask: (*session).byTask,

		mcp.ByListed: (*session).byListed,
	}
}

// batch returns why an array of messages is refused: only one version has them (2025-03-26 basic:
// implementations MUST support receiving JSON-RPC batches). Each element is handled as a message;
// the answers are sent as one array.
func (s *session) batch(elements []*jsonrpc.Message) *jsonrpc.Error {
	_, version := s.handshake.said()
	initializes := func(m *jsonrpc.Message) bool { return m.Method == mcp.MethodInitialize }
	if version != batchVersion || slices.ContainsFunc(elements, initializes) {
		return noBatch
	}
	return nil
}

var noBatch = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: no batch is possible here"}

// request routes one request of the client.
func (s *session) request(pr *peer.Request) {
	r := pr.Value.(*request)
	pr.Message = nil // r has it
	if !s.admits(r) {
		return
	}
	bad := r.bad
	switch {
	case bad != nil:
	case len(r.notes.Raw(mcp.Token)) > maxToken, errors.Is(r.notes.Err(mcp.Token), mcp.ErrTooLong):
		bad = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: `Invalid request: "progressToken" is longer than 1 KiB`}
	case r.era == mcp.Modern && r.InArray(): // the modern era has no batches
		bad = noBatch
	case r.era == mcp.Legacy && r.Method != mcp.MethodInitialize && r.Method != mcp.MethodPing && !s.clientReady():
		bad = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: not initialized"}
	default:
		bad = s.route(r)
	}
	if bad != nil {
		s.fail(r, bad)
	}
}

// route calls the handler of a request. A request without a handler is of an extension. A method that the modern era
// has removed is sent to nobody, even if an upstream knows it, nor is a request with the name of a notification: some
// servers act on the name alone, and what it names by its id could belong to anybody.
func (s *session) route(r *request) *jsonrpc.Error {
	row := r.notes.Method
	known := row.IsRequestOf(mcp.FromClient)
	var handle handler
	if known && row.In(r.era) {
		if handle = handlers[r.Method]; handle == nil {
			handle = finders[row.Owner]
		}
	}
	removed := known && r.era == mcp.Modern && !row.In(mcp.Modern)
	switch {
	case handle != nil:
		return handle(s, r)
	case !removed && !row.IsNotification() && (row.Name == "" || r.upstreams.only() != nil):
		return s.toExtension(r)
	}
	return jsonrpc.MethodNotFound(r.Method)
}

// pong answers a ping, which only concerns this hop.
func (s *session) pong(r *request) *jsonrpc.Error {
	s.settleNow(r, jsonrpc.NewResult(r.ID, json.RawMessage(`{}`)))
	return nil
}

// setLevel sets the client's log level at all upstreams that log. Upstreams that start later get
// it, too.
func (s *session) setLevel(r *request) *jsonrpc.Error {
	err := r.notes.Err(mcp.Key)
	if level, ok := r.notes.Text(mcp.Key); err == nil && !(ok && slices.Contains(mcp.LogLevels, level)) {
		err = errors.New(`"level" is not a log level`)
	}
	if err != nil {
		return jsonrpc.InvalidParams(err.Error())
	}
	params, bad := r.sentAgain("level")
	if bad != nil {
		return bad
	}
	if u := r.upstreams.only(); u != nil {
		r.whenAnswered(func(answer *jsonrpc.Message) {
			if answer.Error == nil {
				s.handshake.setLevel(params)
			}
		})
		s.forward(r, u)
		return nil
	}
	s.handshake.setLevel(params) // before alive is read: an upstream that becomes alive now gets it replayed
	s.work(r, func(ctx context.Context) {
		logging := s.upstreams.of(mcp.Legacy).visibleTo(r.grant).filter(func(u *upstreamConn) bool { return u.alive() && u.lists.Says().Declares("logging") })
		lists.ForEach(ctx, listsOf(logging), func(ctx context.Context, i int) {
			_, _ = logging[i].ask(ctx, r.Method, params) // the answer changes nothing
		})
		s.settle(r, jsonrpc.NewResult(r.ID, json.RawMessage(`{}`)))
	})
	return nil
}

// begin creates the request of a peer.Request that is about to be entered. All requests begin here.
func (s *session) begin(pr *peer.Request) {
	r := &request{Request: pr, msg: pr.Message, notes: mcp.Read(pr.Message)}
	r.extension = r.notes.Method.Name == "" || r.notes.Method.OfExtension()
	if r.bad = s.classify(r); r.bad == nil {
		r.bad = r.overlong()
	}
	if r.forwarded = pr.Message.Forwarded; r.forwarded == nil {
		r.forwarded = s.surroundings.forwarded
	}
	s.router.Changing.RLock()
	r.grant = s.grantOf(pr.Message.From)
	r.upstreams = s.upstreams.of(r.era).visibleTo(r.grant)
	s.router.Changing.RUnlock()
	pr.Value = r
	s.observeRequest(r)
}

// overlong returns the error for a request with a name that is longer than any name here: it is
// unknown without a look-up. It returns nil for all other requests. The error omits the name.
func (r *request) overlong() *jsonrpc.Error {
	long := func(of mcp.Member) bool { return errors.Is(r.notes.Err(of), mcp.ErrTooLong) }
	owner, key := r.notes.Method.Owner, long(mcp.Key)
	switch {
	case long(mcp.Cursor):
		return unknownCursor
	case long(mcp.RelatedTaskID), key && owner == mcp.ByTask:
		return unknownTask
	case long(mcp.RefURI), key && owner == mcp.ByURI:
		err := resourceNotFound(r.era, "")
		err.Data = nil
		return err
	case long(mcp.RefName), key && owner == mcp.ByName:
		what := target{kind: catalog.Tools}
		if r.Method != mcp.MethodToolsCall {
			what.kind = catalog.Prompts
		}
		return unknown(what.what(), "its name "+mcp.ErrTooLong.Error())
	}
	return nil
}

// refuse returns the answer to a request that is not entered.
func (s *session) refuse(pr *peer.Request, why error, answer *jsonrpc.Message) *jsonrpc.Message {
	r := pr.Value.(*request)
	if why == peer.ErrDraining {
		answer = jsonrpc.NewError(r.ID, r.endingError(jsonrpc.NotSent))
	}
	s.observeAnswer(r, answer)
	return answer
}

// cancelled ends a request that the client cancels, by m, or that the end of the client has taken;
// then m is nil, and the streams to the upstreams end, too.
func (s *session) cancelled(pr *peer.Request, m *jsonrpc.Message, at jsonrpc.Span) {
	r := pr.Value.(*request)
	use := r.takeUse()
	r.stop()
	s.release(r)
	call := pr.Forwarded()
	switch {
	case m == nil:
		s.observeAnswer(r, s.lastAnswer(r))
		r.abandon(use)
	case call == nil:
		s.observeAnswer(r, nil)
		r.abandon(use)
	default:
		s.observeAnswer(r, nil)
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at, With: call.ID.Raw()})
		callOf(call).giveUp(use, &jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra})
	}
}

// lastAnswer returns the answer to a request that the end of the session takes. A subscription gets
// its result, as after a drain.
func (s *session) lastAnswer(r *request) *jsonrpc.Message {
	if r.told.Load() { // the client may have read the acknowledgment
		return r.over(s.upstreams.of(mcp.Modern))
	}
	return jsonrpc.NewError(r.ID, r.endingError(r.phase()))
}
