package frontend

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A name is what a modern client calls something that one replica has: a suspended call, by its
// requestState, or a task. It begins with an id of that replica, so that the client may continue at
// each of them:
//
//	mcp-proxy:R4KQ2ZB7XWNTE.3NQJ6YFAVLXMPD4C2HGTKSR5ZW.QJ5T2M7XKBNFA:docs__786512e2
//
// Only the responses and requests of HTTP have it. Sessions and servers have the rest, byte for byte.
type name struct {
	own string // what the replica calls it
	via http.RoundTripper
	at  Where // the replica is, when the message arrived
}

const nameMark = "mcp-proxy:"

// newName returns a name for something of this replica.
func (l *relay) newName(own string) string { return nameMark + l.replicas.NewID() + ":" + own }

// readName reads a JSON string, and finds the replica. It returns the JSON text without what newName
// has added; false if no replica has added it.
func (l *relay) readName(raw json.RawMessage) (x name, own json.RawMessage, ok bool) {
	text, _ := jsonrpc.Unquote(raw)
	rest, marked := strings.CutPrefix(text, nameMark)
	id, rest, ok := strings.Cut(rest, ":")
	if !marked || !ok {
		return name{}, nil, false
	}
	x.own = rest
	if x.via, x.at = l.replicas.Owner(id); x.at == Nowhere {
		return name{}, nil, false
	}
	if after, literally := bytes.CutPrefix(raw, []byte(`"`+nameMark+id+":")); literally {
		return x, slices.Concat([]byte{'"'}, after), true
	}
	return x, jsonrpc.Quote(rest), true
}

// A given is what a message of a client names of what it was given.
type given struct {
	names  []name
	tasks  map[string]string // names of tasks, by what the replica calls them
	edits  []jsonrpc.Edit    // leave the params with what this replica calls them
	orphan bool              // another replica has one of them
}

// givenIn finds the names in a message of a client.
func (l *relay) givenIn(m *jsonrpc.Message) (g given) {
	if l == nil {
		return g
	}
	n := mcp.Read(m)
	for _, member := range [...]mcp.Member{mcp.RequestState, mcp.Key, mcp.RelatedTaskID} {
		if n.Has(member) && n.Err(member) == nil && (member != mcp.Key || n.Method.Owner == mcp.ByTask) {
			g.add(l, m.Params, n.At(member), member != mcp.RequestState)
		}
	}
	var at [1]jsonrpc.Span
	switch {
	case m.Method == mcp.MethodListen && n.Has(mcp.Key) && n.Err(mcp.Key) == nil:
		if jsonrpc.Find(m.Params, n.At(mcp.Key), at[:], "taskIds") == nil {
			g.addAll(l, m.Params, at[0])
		}
	case n.Method.Name == "" && bytes.Contains(m.Params, []byte(nameMark)):
		if jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "taskId") == nil {
			g.add(l, m.Params, at[0], true)
		}
	}
	return g
}

// add adds the name at a place, if there is one.
func (g *given) add(l *relay, params json.RawMessage, at jsonrpc.Span, task bool) {
	x, own, ok := l.readName(at.Of(params))
	if !ok {
		return
	}
	g.edits = append(g.edits, jsonrpc.Edit{Span: at, With: own})
	g.orphan = g.orphan || x.at != Here
	g.note(x, at.Of(params), task)
}

func (g *given) note(x name, raw json.RawMessage, task bool) {
	g.names = append(g.names, x)
	if !task {
		return
	}
	if g.tasks == nil {
		g.tasks = make(map[string]string)
	}
	g.tasks[x.own], _ = jsonrpc.Unquote(raw)
}

// addAll adds the tasks of a listen. A listen is at one replica, so those of others are left out, and
// the client does not find them in the acknowledgment.
func (g *given) addAll(l *relay, params json.RawMessage, at jsonrpc.Span) {
	elements, err := jsonrpc.Elements(at.Of(params))
	if err != nil || len(elements) > mcp.MaxWatched { // which is refused
		return
	}
	var here []json.RawMessage
	for _, raw := range elements {
		x, own, ok := l.readName(raw)
		if !ok {
			here = append(here, raw)
			continue
		}
		if x.at == Here {
			here = append(here, own)
		}
		g.note(x, raw, x.at == Here) // another replica may call its own likewise
	}
	if len(g.names) > 0 {
		g.edits = append(g.edits, jsonrpc.Edit{Span: at, With: jsonrpc.Array(here)})
	}
}

const namedAway = "the replica that has the call or the task cannot be reached"

// toGiver passes a message on to the replica that has what the first name is for. It returns false,
// and has not answered, if the message is to be served here: this replica has it, or no other that
// lives, or another replica has passed the message on.
func (l *relay) toGiver(w http.ResponseWriter, r *http.Request, who *identity.Identity, g given, body []byte) bool {
	if isFromReplica(r.Context()) {
		return false
	}
	for _, x := range g.names {
		switch x.at {
		case There:
			r.Body = &outBody{rest: body}
			l.pass(w, r, who, x.via, "")
			return true
		case Away:
			unavailable(w, namedAway)
			return true
		case Here:
			return false
		case Gone, Nowhere: // the next one decides; no name has the latter
		}
	}
	return false
}

// own leaves m with what this replica calls the things that it names.
func (g given) own(m *jsonrpc.Message) {
	if len(g.edits) > 0 {
		m.Params = jsonrpc.Replace(m.Params, g.edits...)
		m.Notes, m.Orphan = mcp.Read(m), g.orphan
	}
}

// give puts names into a message for the client of p. A task keeps the name that the request has for
// it.
func (l *relay) give(m *jsonrpc.Message, p *waiter) {
	switch {
	case l == nil:
	case m.Result != nil:
		m.Result = l.nameResult(m.Result, p.tasks)
	case m.Method != "" && mcp.MayHave(m.Params, keyTask):
		m.Params = l.nameParams(m, p.tasks)
	}
}

var (
	keyTask  = []byte("taskId") // and taskIds
	keyState = []byte("requestState")
)

func (l *relay) nameResult(result json.RawMessage, known map[string]string) json.RawMessage {
	var at [4]jsonrpc.Span
	if !mcp.MayHave(result, keyState) && !bytes.Contains(result, keyTask) ||
		jsonrpc.Find(result, jsonrpc.Span{}, at[:], "resultType", "requestState", "taskId", "_meta") != nil {
		return result
	}
	var edits []jsonrpc.Edit
	kind, _ := jsonrpc.Unquote(at[0].Of(result))
	if state := at[1].Of(result); kind == "input_required" && len(state) > 0 && state[0] == '"' {
		first := jsonrpc.Span{Start: at[1].Start, End: at[1].Start + 1}
		edits = append(edits, jsonrpc.Edit{Span: first, With: []byte(`"` + l.newName(""))})
	}
	if kind == "task" {
		known = l.created(at[2].Of(result), known)
	}
	edits = append(edits, renameTask(result, at[2], known)...)
	if !at[3].IsZero() {
		var related, id [1]jsonrpc.Span
		if jsonrpc.Find(result, at[3], related[:], mcp.KeyRelatedTask) == nil && !related[0].IsZero() &&
			jsonrpc.Find(result, related[0], id[:], "taskId") == nil {
			edits = append(edits, renameTask(result, id[0], known)...)
		}
	}
	return jsonrpc.Replace(result, edits...)
}

// created returns the name for a new task, unless that has one, or the name would be too long.
func (l *relay) created(raw json.RawMessage, known map[string]string) map[string]string {
	own, ok := jsonrpc.Unquote(raw)
	name := l.newName(own)
	if _, has := known[own]; has || !ok || mcp.IsTooLong(jsonrpc.Quote(name)) {
		return known
	}
	return map[string]string{own: name}
}

// renameTask returns the edits that put the client's name of a task in place of the replica's.
func renameTask(doc json.RawMessage, at jsonrpc.Span, known map[string]string) []jsonrpc.Edit {
	own, ok := jsonrpc.Unquote(at.Of(doc))
	if name, has := known[own]; ok && has {
		return []jsonrpc.Edit{{Span: at, With: jsonrpc.Quote(name)}}
	}
	return nil
}

func (l *relay) nameParams(m *jsonrpc.Message, known map[string]string) json.RawMessage {
	n := mcp.Read(m)
	edits := renameTask(m.Params, n.At(mcp.RelatedTaskID), known)
	switch m.Method {
	case mcp.MethodTask:
		edits = append(edits, renameTask(m.Params, n.At(mcp.Key), known)...)
	case mcp.MethodAcknowledged:
		var at [1]jsonrpc.Span
		if !n.Has(mcp.Key) || jsonrpc.Find(m.Params, n.At(mcp.Key), at[:], "taskIds") != nil {
			break
		}
		elements, _ := jsonrpc.Elements(at[0].Of(m.Params))
		for i, raw := range elements {
			own, _ := jsonrpc.Unquote(raw)
			if name, has := known[own]; has {
				elements[i] = jsonrpc.Quote(name)
			}
		}
		if elements != nil {
			edits = append(edits, jsonrpc.Edit{Span: at[0], With: jsonrpc.Array(elements)})
		}
	}
	return jsonrpc.Replace(m.Params, edits...)
}
