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

// A handler begins to answer a request of the client, in each era that has its method. It must not
// wait; session.work runs anything that does. If it returns an error, that is the answer.
type handler func(*session, *request) *jsonrpc.Error

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

// route calls the handler of a request. A request without a handler is sent to a sole upstream,
// never to several. A method that the modern era has removed is sent to nobody, even if an upstream
// knows it.
func (s *session) route(r *request) *jsonrpc.Error {
	row := r.notes.Method
	known := row.IsRequestOf(mcp.FromClient)
	var handle handler
	if known && row.In(r.era) {
		if handle = handlers[r.Method]; handle == nil {
			handle = finders[row.Owner]
		}
	}
	u := r.upstreams.only()
	removed := known && r.era == mcp.Modern && !row.In(mcp.Modern)
	switch {
	case handle != nil:
		return handle(s, r)
	case u != nil && !removed && s.unlisted(r):
		s.forward(r, u)
		return nil
	}
	return jsonrpc.MethodNotFound(r.Method)
}

// pong answers a ping, which only concerns this hop.
func (s *session) pong(r *request) *jsonrpc.Error {
	s.settleNow(r, jsonrpc.NewResult(r.ID, json.RawMessage(`{}`)))
	return nil
}

// notified handles a notification of the client. It ignores cancellations of unknown, settled or
// invalid ids, and of initialize, which must not be cancelled (2025-11-25
// basic/utilities/cancellation).
func (s *session) notified(m *jsonrpc.Message) {
	if m.Method == mcp.MethodCancelled || !s.admitsNotification(m) {
		return
	}
	n := mcp.Read(m)
	if claim, err := n.Claim(); s.ofPrincipal || err == nil && claim.Claimed {
		s.modernNotified(m)
		return
	}
	switch m.Method {
	case mcp.MethodInitialized:
		s.clientReady()
	case mcp.MethodProgress:
		s.taskProgress(m, n)
	case mcp.MethodRootsChanged:
		s.rootsChanged(m)
	case mcp.MethodTaskStatus:
		s.clientTaskStatus(m, n)
	default:
		if u := s.soleOf(mcp.Legacy, m); u != nil {
			u.tell(m)
			return
		}
		s.drop("no owner", m)
	}
}

// sentAgain returns the params that are kept to repeat a request at restarted upstreams: its key
// member and its _meta.
func (r *request) sentAgain(key string) (json.RawMessage, *jsonrpc.Error) {
	values := []jsonrpc.Value{{Key: key, Text: r.notes.Raw(mcp.Key)}}
	meta := r.notes.Raw(mcp.InMeta)
	switch {
	case len(meta) > maxKeptMeta:
		return nil, jsonrpc.InvalidParams(`"_meta" is longer than 4 KiB`)
	case meta != nil:
		values = append(values, jsonrpc.Value{Key: "_meta", Text: meta})
	}
	return jsonrpc.Set(nil, values...), nil
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
		s.whenAnswered(r, func(answer *jsonrpc.Message) {
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
