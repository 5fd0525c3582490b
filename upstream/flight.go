package upstream

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxTasks bounds the unfinished tasks that are remembered on one stream. Those
// beyond are not cancelled when it ends; they expire.
const maxTasks = 1024

// maxQuestions bounds the open questions that are remembered on one stream. Those
// beyond are told nothing when it ends.
const maxQuestions = 4096

// A flight is what is open on one stream, in both directions, so that it can be
// cleared up when the stream ends. It knows of a message what this takes; on the
// hot path that is its kind and its id.
type flight struct {
	// Static.
	guess     bool // whether up sets Related
	modern    bool // which has neither initialize nor tasks that end with a stream
	discovers bool // and whose first request asks whether the server is there

	mu        sync.Mutex // guards the fields below
	calls     map[jsonrpc.ID]call
	questions map[jsonrpc.ID]question // of the upstream, not answered by the proxy
	tasks     map[string]struct{}     // unfinished, by the JSON text of their id
	seq       int                     // of the newest call
	highest   int64                   // integer id so far
	sent      bool                    // a request besides initialize went to the upstream
	answered  bool                    // the upstream answered a request, or is there without being asked
	refused   bool                    // the proxy is told that initialize was not answered with a result
}

// A call is a request of the proxy that the upstream has not answered.
type call struct {
	seq   int
	kind  callKind
	works bool   // see mcp.Method
	task  string // the task that the call is about, as in flight.tasks

	// marked tells that a question which it may wait on got our own error. That
	// ends it: a cancellation besides has servers of the Python SDK (1.x) answer
	// it twice and die.
	marked bool
}

// A question is a request of the upstream that the proxy has not answered.
type question struct {
	seq     int        // of the newest call when it came
	related jsonrpc.ID // the call that it surely belongs to; zero if the upstream did not say
	task    string     // the task that it belongs to, likewise
}

// waits reports whether the call of that id possibly waits for the answer to q.
func (q question) waits(id jsonrpc.ID, c call) bool {
	return c.works && c.seq <= q.seq && (q.related.IsZero() || q.related == id) && (q.task == "" || q.task == c.task)
}

type callKind byte

const (
	ordinary    callKind = iota
	initialize           // never cancelled
	createsTask          // cancelled as a task, once that is known
	readsTask            // tasks/get: its result tells whether the task is finished
	endsTask             // tasks/result, tasks/cancel: its result means that it is
	discover             // the first one of a server that many streams share; never cancelled
	listen               // modern: nobody waits for its answer
)

// starts reports whether the server has started when it has answered.
func (k callKind) starts() bool { return k == initialize || k == discover }

// news is what a message of an upstream means for the stream beside its content.
type news byte

const (
	nothing  news = iota
	first         // the first answer
	greeting      // that, and it is initialize's
	refusal       // initialize is refused
)

// down notes a message on its way to the upstream. It reports whether that is
// the request that starts the server.
func (f *flight) down(m *jsonrpc.Message) (starts bool) {
	elements := m.Batch
	if elements == nil {
		elements = []*jsonrpc.Message{m}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range elements {
		switch {
		case e.IsRequest():
			starts = f.addLocked(e) || starts
		case e.IsResponse():
			f.repliedLocked(e)
		case e.Method == mcp.MethodCancelled:
			f.cancelLocked(e)
		}
	}
	return starts
}

func (f *flight) addLocked(m *jsonrpc.Message) (starts bool) {
	f.seq++
	if n, ok := m.ID.Int(); ok {
		f.highest = max(f.highest, n)
	}
	c := call{seq: f.seq, works: mcp.MethodOf(m.Method).Works}
	switch {
	case f.modern:
		if f.discovers && f.seq == 1 {
			c.kind = discover
		} else if m.Method == mcp.MethodListen {
			c.kind = listen
		}
	case m.Method == mcp.MethodInitialize:
		c.kind = initialize
	case m.Method == mcp.MethodTasksGet:
		c.kind, c.task = readsTask, member(m.Params, "taskId")
	case m.Method == mcp.MethodTasksResult, m.Method == mcp.MethodTasksCancel:
		c.kind, c.task = endsTask, member(m.Params, "taskId")
	default:
		if bytes.Contains(m.Params, []byte(`"task"`)) && member(m.Params, "task") != "" {
			c.kind = createsTask
		}
	}
	if f.calls == nil {
		f.calls = make(map[jsonrpc.ID]call)
	}
	f.calls[m.ID] = c
	f.sent = f.sent || !c.kind.starts()
	return c.kind.starts()
}

// repliedLocked forgets a question that is answered. What waits for it and gets the
// one error, which is the proxy's and no client's, is marked.
func (f *flight) repliedLocked(m *jsonrpc.Message) {
	if q, ok := f.questions[m.ID]; ok && isOurEnd(m.Error) {
		f.markLocked(q)
	}
	delete(f.questions, m.ID)
}

// isOurEnd reports whether an error is the one connection-closed error.
func isOurEnd(e json.RawMessage) bool {
	return e != nil && member(json.RawMessage(member(e, "data")), "reason") == `"`+jsonrpc.ReasonClosed+`"`
}

func (f *flight) markLocked(q question) {
	for id, c := range f.calls {
		if q.waits(id, c) {
			c.marked = true
			f.calls[id] = c
		}
	}
}

// cancelLocked forgets a call that the proxy cancels: no answer is expected. A
// question for which nobody else waits is over, too: an error for it would tell the
// upstream a second time.
func (f *flight) cancelLocked(m *jsonrpc.Message) {
	id, ok := f.findLocked(requestID(m))
	if !ok || f.calls[id].kind.starts() {
		return
	}
	c := f.calls[id]
	delete(f.calls, id)
	maps.DeleteFunc(f.questions, func(_ jsonrpc.ID, q question) bool { return q.waits(id, c) && !f.awaitedLocked(q) })
}

// awaitedLocked reports whether a call possibly waits for the answer to q.
func (f *flight) awaitedLocked(q question) bool {
	for id, c := range f.calls {
		if q.waits(id, c) {
			return true
		}
	}
	return false
}

// up notes a message from the upstream and, with guess, sets its Related: a stdio
// server has no way to say to which request something belongs, so it is the only
// call in flight, else the newest. m must be fresh from its decoder. up reports
// what is new with m.
func (f *flight) up(m *jsonrpc.Message) (n news) {
	elements := m.Batch
	if elements == nil {
		elements = []*jsonrpc.Message{m}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range elements {
		switch {
		case e.IsResponse():
			n = max(n, f.settleLocked(e.ID, e.Result))
			continue
		case e.IsRequest():
			f.askedLocked(e, cmp.Or(e.Related, m.Related))
		case e.Method == mcp.MethodCancelled:
			delete(f.questions, requestID(e))
		case e.Method == mcp.MethodTaskStatus:
			f.taskLocked(member(e.Params, "taskId"), e.Params)
		}
		if f.guess && e.Method != mcp.MethodProgress { // that has its token
			m.Related = f.newestLocked()
		}
	}
	return n
}

// askedLocked keeps a question. related is what its stream says of it, before any
// guess.
func (f *flight) askedLocked(m *jsonrpc.Message, related jsonrpc.ID) {
	if len(f.questions) >= maxQuestions {
		return
	}
	if f.questions == nil {
		f.questions = make(map[jsonrpc.ID]question)
	}
	meta := json.RawMessage(member(m.Params, "_meta"))
	task := json.RawMessage(member(meta, mcp.KeyRelatedTask))
	f.questions[m.ID] = question{seq: f.seq, related: related, task: member(task, "taskId")}
}

// settle takes a call out whose answer could not be used. It reports whether it
// was there, and what is new with that.
func (f *flight) settle(id jsonrpc.ID) (mine jsonrpc.ID, ok bool, n news) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if mine, ok = f.findLocked(id); ok {
		n = f.settleLocked(mine, nil)
	}
	return mine, ok, n
}

func (f *flight) settleLocked(id jsonrpc.ID, result json.RawMessage) news {
	id, ok := f.findLocked(id)
	if !ok {
		return nothing // late, a duplicate, or unknown: the proxy drops it
	}
	c := f.calls[id]
	delete(f.calls, id)
	if c.kind == initialize && (result == nil || result[0] != '{') {
		return refusal
	}
	switch {
	case result == nil:
	case c.kind == createsTask:
		f.createdLocked(json.RawMessage(member(result, "task")))
	case c.kind == readsTask:
		f.taskLocked(c.task, result)
	case c.kind == endsTask:
		delete(f.tasks, c.task)
	}
	again := f.answered
	f.answered = true
	switch {
	case c.kind == initialize:
		return greeting
	case again:
		return nothing
	}
	return first
}

// findLocked returns the id under which a call is kept. A server that answers 5
// with 5.0 or "5" means 5.
func (f *flight) findLocked(id jsonrpc.ID) (jsonrpc.ID, bool) {
	if _, ok := f.calls[id]; ok {
		return id, true
	}
	n, ok := id.Answered()
	if !ok {
		return id, false
	}
	id = jsonrpc.IntID(n)
	_, ok = f.calls[id]
	return id, ok
}

// createdLocked keeps the task of a CreateTaskResult.
func (f *flight) createdLocked(task json.RawMessage) {
	id := member(task, "taskId")
	if id == "" || len(f.tasks) >= maxTasks {
		return
	}
	if f.tasks == nil {
		f.tasks = make(map[string]struct{})
	}
	f.tasks[id] = struct{}{}
	f.taskLocked(id, task)
}

// taskLocked forgets a task when the status that stands in object is a last one.
func (f *flight) taskLocked(id string, object json.RawMessage) {
	switch member(object, "status") {
	case `"completed"`, `"failed"`, `"cancelled"`:
		delete(f.tasks, id)
	}
}

// newestLocked returns the newest call, one that works if there is any; zero if
// there is none. Few calls are in flight when a server asks something, and calls
// come and go more often than questions: a search is cheaper than an order kept.
func (f *flight) newestLocked() jsonrpc.ID {
	var id jsonrpc.ID
	newest := call{seq: -1}
	for i, c := range f.calls {
		if c.works == newest.works && c.seq > newest.seq || c.works && !newest.works {
			id, newest = i, c
		}
	}
	return id
}

// state returns what decides how an end is reported. A listen is not in flight: its
// end is no loss.
func (f *flight) state() (inFlight int, sent, answered, refused bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	inFlight = len(f.calls)
	if f.modern {
		for _, c := range f.calls {
			if c.kind == listen {
				inFlight--
			}
		}
	}
	return inFlight, f.sent, f.answered, f.refused
}

// refuse notes that the proxy is told of a refusal: if it hangs up, that is why.
func (f *flight) refuse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = true
}

// begun notes that a server is there which need not be asked.
func (f *flight) begun() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered = true
}

// snubbed reports whether initialize was sent and not answered with a result.
func (f *flight) snubbed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.kind == initialize {
			return !f.answered
		}
	}
	return false
}

// farewell returns the messages that clear up what is open: one for each call. A
// question gets the one error, which ends the calls that possibly wait for it; all
// others are cancelled. The end of the stream, which follows, is for those too that
// go on all the same.
func (f *flight) farewell() []*jsonrpc.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	var last []*jsonrpc.Message
	add := func(m *jsonrpc.Message) { last = append(last, m) }
	byText := func(a, b jsonrpc.ID) int { return cmp.Compare(a.String(), b.String()) }
	for _, id := range slices.SortedFunc(maps.Keys(f.questions), byText) {
		add(jsonrpc.NewError(id, jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", "", jsonrpc.InFlight)))
		f.markLocked(f.questions[id])
	}
	bySeq := func(a, b jsonrpc.ID) int { return cmp.Compare(f.calls[a].seq, f.calls[b].seq) }
	for _, id := range slices.SortedFunc(maps.Keys(f.calls), bySeq) {
		if c := f.calls[id]; !c.kind.starts() && c.kind != createsTask && !c.marked {
			add(mcp.Cancellation(id, "client disconnected"))
		}
	}
	for _, task := range slices.Sorted(maps.Keys(f.tasks)) {
		f.highest++
		add(jsonrpc.NewRequest(jsonrpc.IntID(f.highest), mcp.MethodTasksCancel, json.RawMessage(`{"taskId":`+task+`}`)))
	}
	return last
}

// requestID returns which request a notifications/cancelled is about.
func requestID(m *jsonrpc.Message) jsonrpc.ID {
	id, _ := jsonrpc.ParseID([]byte(member(m.Params, "requestId")))
	return id
}

// member returns the JSON text of a member of an object, "" if it has none that
// can be read.
func member(object json.RawMessage, key string) string {
	value, err := jsonrpc.Member(object, key)
	if err != nil {
		return ""
	}
	return string(value)
}
