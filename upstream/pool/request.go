package pool

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxSharedQuestions bounds the questions that one client has open. Those beyond
// are refused.
const maxSharedQuestions = 1024

// A sharedQuestion is a request of the server that a client has not answered.
type sharedQuestion struct {
	question
	to    *sharer
	id    jsonrpc.ID      // the server's
	n     int64           // minted for the client, and the progress token there
	token json.RawMessage // the server's; nil for none
	call  jsonrpc.ID      // the client's that it is shown as part of
}

// awaits reports whether c, a call of q's client, possibly waits for its answer.
func (q *sharedQuestion) awaits(c *sharedCall) bool {
	return c.sent && mcp.MethodOf(c.method).Works && c.n <= q.seq &&
		(q.related.IsZero() || q.related == jsonrpc.IntID(c.n)) && (q.task == "" || q.task == c.task)
}

// markLocked marks the calls that possibly wait for a question that gets the one
// error.
func (s *sharer) markLocked(q *sharedQuestion) {
	for _, c := range s.calls {
		c.marked = c.marked || q.awaits(c)
	}
}

// overLocked forgets the questions for which nobody waits but a call that is being
// cancelled: an error for them would tell the server a second time.
func (s *sharer) overLocked(cancelled *sharedCall) {
	for _, q := range s.questions {
		awaited := false
		for _, c := range s.calls {
			awaited = awaited || q.awaits(c)
		}
		if !awaited && q.awaits(cancelled) {
			s.sh.forgetQuestionLocked(q)
		}
	}
}

// question hands a request of the server to the one client that it belongs to. If
// that cannot be told it is refused, never guessed: it would show one client's
// affairs to another, and the answer likewise.
func (sh *shared) question(m *jsonrpc.Message, related jsonrpc.ID) {
	if m.Method == mcp.MethodPing {
		sh.reply(jsonrpc.NewResult(m.ID, noResult))
		return
	}
	meta, err := readMeta(m.Params)
	if err != nil {
		sh.reply(jsonrpc.NewError(m.ID, jsonrpc.InvalidParams(err.Error())))
		return
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.asked[m.ID] != nil {
		return // an answer would settle the first of that id
	}
	s, call, said := sh.ownerLocked(related, meta.task)
	if !said {
		s, call = sh.onlyCallerLocked()
	}
	switch {
	case s == nil && m.Method == mcp.MethodRootsList && sh.roots != nil && !said && !sh.busyLocked():
		sh.replyLocked(jsonrpc.NewResult(m.ID, rootsResult(sh.roots)))
	case s == nil:
		sh.replyLocked(jsonrpc.NewError(m.ID, &jsonrpc.Error{
			Code: jsonrpc.CodeInternalError, Message: "cannot attribute server request"}))
		if sh.unattributed != nil && !said {
			sh.wg.Go(func() { sh.unattributed(sh.name) })
		}
	case len(s.questions) >= maxSharedQuestions:
		sh.replyLocked(jsonrpc.NewError(m.ID, jsonrpc.Overloaded(sh.name)))
	default:
		if refusal := s.refuses(m); refusal != nil {
			sh.replyLocked(jsonrpc.NewError(m.ID, refusal))
			return
		}
		q := question{seq: sh.lastSent, task: meta.task}
		if n, ok := related.Answered(); ok {
			q.related = jsonrpc.IntID(n)
		}
		sh.askClientLocked(s, m, &sharedQuestion{question: q, to: s, id: m.ID, call: call}, meta.token)
	}
}

// ownerLocked returns the client that a message of the server belongs to by what
// the message says itself, and a call of that client for it. It reports whether
// the message says anything; then the client is nil if the call or the task is
// over, or if the two are not the same client's.
func (sh *shared) ownerLocked(related jsonrpc.ID, task string) (s *sharer, call jsonrpc.ID, said bool) {
	if related.IsZero() && task == "" {
		return nil, call, false
	}
	if !related.IsZero() {
		n, _ := related.Answered()
		c := sh.calls[n]
		if c != nil && c.by == nil {
			if c.serves == nil || task != "" { // about the server itself
				return nil, call, false
			}
			c = c.serves
		}
		if c == nil || c.orphan || c.by.ended {
			return nil, call, true
		}
		s, call = c.by, c.id
	}
	if task != "" {
		x := sh.tasks.byID[task]
		if x == nil || s != nil && x.by != s {
			return nil, jsonrpc.ID{}, true
		}
		s = x.by
	}
	if call.IsZero() {
		call = s.newestLocked()
	}
	return s, call, true
}

// onlyCallerLocked returns the only client with a call at the server, and its
// newest; nil if the question could be another's.
func (sh *shared) onlyCallerLocked() (only *sharer, call jsonrpc.ID) {
	now := time.Now()
	if sh.othersSpeakLocked(now) {
		return nil, call
	}
	for s := range sh.sharers {
		switch {
		case !s.speaksLocked(now):
		case only != nil:
			return nil, call
		default:
			only = s
		}
	}
	if only == nil || only.atServer == 0 {
		return nil, call
	}
	return only, only.newestLocked()
}

// othersSpeakLocked reports whether the server may have something to say because of a
// client that has left.
func (sh *shared) othersSpeakLocked(now time.Time) bool {
	return sh.fading > 0 || now.Before(sh.leftTill)
}

// speaksLocked reports whether the server may have something to ask for s: because
// of a call, one that was cancelled a moment ago, or a task, though a question of a
// task should say so.
func (s *sharer) speaksLocked(now time.Time) bool {
	return s.atServer > 0 || s.running > 0 || now.Before(s.lingers)
}

// busyLocked reports whether any client has a call at the server.
func (sh *shared) busyLocked() bool {
	for s := range sh.sharers {
		if s.atServer > 0 {
			return true
		}
	}
	return false
}

// newestLocked returns the newest call of s at the server, one that works if there
// is any; zero for none.
func (s *sharer) newestLocked() jsonrpc.ID {
	newest := &sharedCall{}
	for _, c := range s.calls {
		if w, most := mcp.MethodOf(c.method).Works, mcp.MethodOf(newest.method).Works; c.sent && (w == most && c.n > newest.n || w && !most || newest.n == 0) {
			newest = c
		}
	}
	return newest.id
}

func rootsResult(roots []string) json.RawMessage {
	list := make([][]byte, len(roots))
	for i, uri := range roots {
		list[i] = slices.Concat([]byte(`{"uri":`), jsonrpc.Quote(uri), []byte{'}'})
	}
	return slices.Concat([]byte(`{"roots":[`), bytes.Join(list, []byte{','}), []byte(`]}`))
}

// askClientLocked passes a question on, under an id of the client's stream.
func (sh *shared) askClientLocked(s *sharer, m *jsonrpc.Message, q *sharedQuestion, token jsonrpc.Span) {
	s.asked++
	q.n = s.asked
	params := m.Params
	if !token.IsZero() {
		q.token = bytes.Clone(token.Of(params))
		params = jsonrpc.Replace(params, jsonrpc.Edit{Span: token, With: jsonrpc.IntID(q.n).Raw()})
	}
	sh.asked[q.id], s.questions[q.n] = q, q
	if id, ok := jsonrpc.Unquote(json.RawMessage(member(m.Params, "elicitationId"))); ok {
		sh.elicitedLocked(s, id)
	}
	s.putLocked(&jsonrpc.Message{ID: jsonrpc.IntID(q.n), Method: m.Method, Params: params, Extra: m.Extra, Related: q.call})
}

// answered hands the client's answer to the server. An id that this client was
// not asked under is nobody's.
func (s *sharer) answered(m *jsonrpc.Message) {
	n, ok := m.ID.Answered()
	sh := s.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !ok || !s.waitForRoomLocked() {
		return
	}
	if q := s.questions[n]; q != nil {
		if isOurEnd(m.Error) { // the proxy's, whose client can answer no more
			s.markLocked(q)
		}
		sh.forgetQuestionLocked(q)
		sh.sendLocked(outgoing{m: &jsonrpc.Message{ID: q.id, Result: m.Result, Error: m.Error, Extra: m.Extra}, by: s})
	}
}

func (sh *shared) forgetQuestionLocked(q *sharedQuestion) {
	delete(q.to.questions, q.n)
	delete(sh.asked, q.id)
}

// withdrawn passes the server's cancellation of a question on to who was asked.
func (sh *shared) withdrawn(m *jsonrpc.Message) {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "requestId") != nil {
		return
	}
	id, ok := jsonrpc.ParseID(at[0].Of(m.Params))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	q := sh.asked[id]
	if !ok || q == nil {
		return
	}
	sh.forgetQuestionLocked(q)
	params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: jsonrpc.IntID(q.n).Raw()})
	q.to.putLocked(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: q.call})
}

// progress passes the client's progress on a question of its own to the server.
func (s *sharer) progress(m *jsonrpc.Message) {
	var at [1]jsonrpc.Span
	if jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "progressToken") != nil {
		return
	}
	id, _ := jsonrpc.ParseID(at[0].Of(m.Params))
	n, _ := id.Answered()
	sh := s.sh
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !s.waitForRoomLocked() {
		return
	}
	if q := s.questions[n]; q != nil && q.token != nil {
		params := jsonrpc.Replace(m.Params, jsonrpc.Edit{Span: at[0], With: q.token})
		sh.sendLocked(outgoing{m: &jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra}, by: s})
	}
}

// elicitedBy remembers who was told of elicitations in an error (-32042,
// 2025-11-25 client/elicitation).
func (sh *shared) elicitedBy(c *sharedCall, err json.RawMessage) {
	if member(err, "code") != "-32042" {
		return
	}
	data := json.RawMessage(member(err, "data"))
	all, _ := jsonrpc.Elements(json.RawMessage(member(data, "elicitations")))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, e := range all {
		if id, ok := jsonrpc.Unquote(json.RawMessage(member(e, "elicitationId"))); ok {
			sh.elicitedLocked(c.by, id)
		}
	}
}

// elicitedLocked remembers who hears of the completion of an elicitation.
func (sh *shared) elicitedLocked(s *sharer, id string) {
	if sh.urls[id] != nil || s.ended {
		return
	}
	if len(s.urls) >= maxSharerURLs {
		delete(sh.urls, s.urls[0])
		s.urls = slices.Delete(s.urls, 0, 1)
	}
	sh.urls[id] = s
	s.urls = append(s.urls, id)
}
