package upstream

import (
	"bytes"
	"cmp"
	"encoding/json"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxTasks bounds the unfinished tasks that are remembered on one stream. Those
// beyond are not cancelled when it ends; they expire.
const maxTasks = 1024

// maxServerRequests bounds the requests of the server that are remembered on one
// stream. Those beyond are told nothing when it ends.
const maxServerRequests = 4096

// An inFlight is what is open on one stream, in both directions, so that it can be
// cleared up when the stream ends. It only watches the messages pass, and reads of them
// no more than that needs: on the hot path the kind and the id.
type inFlight struct {
	// Static after construction.
	modern    bool // which has neither initialize nor tasks that end with a stream
	discovers bool // modern, and the first request is server/discover
	guesses   bool // fromServer sets Related

	mu       sync.Mutex // guards the fields below
	calls    jsonrpc.Table[jsonrpc.ID, *openCall]
	requests jsonrpc.Table[jsonrpc.ID, serverRequest] // not answered by the proxy
	tasks    jsonrpc.Table[string, struct{}]          // unfinished, by the JSON text of their id
	seq      int                                      // of the newest call
	highest  int64                                    // integer id so far
	watch    *requestWatch                            // of calls; nil for none, and once lost was called
	progress
}

// A progress is how far the start of a server has come.
type progress struct {
	sent     bool            // a request besides initialize went to the server
	answered bool            // the server answered a request, or is there without being asked
	refused  bool            // the proxy is told that initialize was not answered with a result
	refusal  json.RawMessage // the error that it was answered with; nil for none
}

// An openCall is a request of the proxy that the server has not answered.
type openCall struct {
	id    jsonrpc.ID
	seq   int
	kind  callKind
	works bool   // a server works on something for it, and may ask about that
	task  string // the task that the call is about, as in inFlight.tasks

	began  time.Time // if somebody watches; zero for nobody
	method string    // likewise
	params []byte    // likewise, of a call of a tool, if they are few

	// marked tells that a request of the server which it may wait for got our own
	// error. That ends it: a cancellation besides has servers of the Python SDK (1.x)
	// answer it twice and die.
	marked bool
}

// A serverRequest is a request of the server that the proxy has not answered.
type serverRequest struct {
	seq     int        // of the newest call when it came
	related jsonrpc.ID // the call that it surely belongs to; zero if the server did not say
	task    string     // the task that it belongs to, likewise
}

// awaitedBy reports whether a call possibly waits for the answer to r.
func (r serverRequest) awaitedBy(c *openCall) bool {
	return c.works && c.seq <= r.seq && (r.related.IsZero() || r.related == c.id) && (r.task == "" || r.task == c.task)
}

type callKind byte

const (
	ordinary    callKind = iota
	initialize           // never cancelled
	createsTask          // cancelled as a task, once that is known
	readsTask            // tasks/get: its result tells whether the task is finished
	endsTask             // tasks/result, tasks/cancel: its result means that it is
	discover             // modern: the first one to a server that many streams share; never cancelled
	listen               // modern: nobody waits for its answer
)

// starts reports whether the server has started when it has answered.
func (k callKind) starts() bool { return k == initialize || k == discover }

// startSign is what a message of the server means for the start of that.
type startSign byte

const (
	nothing  startSign = iota
	first              // the first answer
	greeting           // that, and it is initialize's
	refusal            // initialize is refused
)

func newInFlight(modern, discovers, guesses bool) *inFlight {
	f := &inFlight{modern: modern, discovers: discovers, guesses: guesses}
	f.requests.Max, f.tasks.Max = maxServerRequests, maxTasks
	return f
}

// toServer notes a message on its way to the server. It reports whether that is the
// request that starts the server.
func (f *inFlight) toServer(m *jsonrpc.Message) (starts bool) {
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

func (f *inFlight) addLocked(m *jsonrpc.Message) (starts bool) {
	f.seq++
	if n, ok := m.ID.Int(); ok {
		f.highest = max(f.highest, n)
	}
	c := &openCall{id: m.ID, seq: f.seq, works: mcp.MethodOf(m.Method).Works}
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
		c.kind, c.task = readsTask, string(mcp.Read(m).Raw(mcp.Key))
	case m.Method == mcp.MethodTasksResult, m.Method == mcp.MethodTasksCancel:
		c.kind, c.task = endsTask, string(mcp.Read(m).Raw(mcp.Key))
	case c.works && bytes.Contains(m.Params, []byte(`"task"`)) && mcp.Read(m).Has(mcp.Task):
		c.kind = createsTask
	}
	if f.calls.Add(m.ID, c) == nil { // the proxy uses no id twice
		f.watch.began(c, m)
	}
	f.sent = f.sent || !c.kind.starts()
	return c.kind.starts()
}

// repliedLocked forgets a request of the server that is answered. What waits for it and
// gets the one error, which is the proxy's and no client's, is marked.
func (f *inFlight) repliedLocked(m *jsonrpc.Message) {
	if r, ok := f.requests.TakeKey(m.ID); ok && jsonrpc.IsClosed(m.Error) {
		f.markLocked(r)
	}
}

func (f *inFlight) markLocked(r serverRequest) {
	f.calls.Any(func(c *openCall) bool { // none ends the search: all are looked at, in no order
		c.marked = c.marked || r.awaitedBy(c)
		return false
	})
}

// cancelLocked forgets a call that the proxy cancels: no answer is expected. A request
// of the server for which nobody else waits is over, too: an error for it would tell the
// server a second time.
func (f *inFlight) cancelLocked(m *jsonrpc.Message) {
	id, c := f.findLocked(requestID(m))
	if c == nil || c.kind.starts() {
		return
	}
	f.calls.Take(id, c)
	f.watch.ended(c, nil)
	for of, r := range f.requests.Each {
		if r.awaitedBy(c) && !f.calls.Any(r.awaitedBy) {
			f.requests.TakeKey(of)
		}
	}
}

// fromServer notes a message from the server and, if it guesses, sets its Related: a
// stdio server has no way to say to which request something belongs, so it is the only
// call in flight, else the newest. m must be fresh from its decoder. fromServer reports
// what is new with m.
func (f *inFlight) fromServer(m *jsonrpc.Message) (n startSign) {
	elements := m.Batch
	if elements == nil {
		elements = []*jsonrpc.Message{m}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range elements {
		switch {
		case e.IsResponse():
			n = max(n, f.settleLocked(e.ID, e))
			continue
		case e.IsRequest():
			f.askedLocked(e, cmp.Or(e.Related, m.Related))
		case e.Method == mcp.MethodCancelled:
			f.requests.TakeKey(requestID(e))
		case e.Method == mcp.MethodTaskStatus:
			notes := mcp.Read(e)
			f.taskLocked(string(notes.Raw(mcp.Key)), notes.Raw(mcp.Status))
		}
		if f.guesses && e.Method != mcp.MethodProgress { // that has its token
			m.Related = f.newestLocked()
		}
	}
	return n
}

// askedLocked keeps a request of the server. related is what its stream says of it,
// before any guess.
func (f *inFlight) askedLocked(m *jsonrpc.Message, related jsonrpc.ID) {
	task := string(mcp.Read(m).Raw(mcp.RelatedTaskID))
	_ = f.requests.Add(m.ID, serverRequest{seq: f.seq, related: related, task: task}) // or there are too many
}

// newestLocked returns the newest call, one that works if there is any; zero if there
// is none.
func (f *inFlight) newestLocked() jsonrpc.ID {
	id, _, ok := f.calls.Newest(func(c *openCall) bool { return c.works })
	if !ok {
		id, _, _ = f.calls.Newest(nil)
	}
	return id
}

// settle takes a call out whose answer could not be used. It reports whether it
// was there, and what is new with that.
func (f *inFlight) settle(id jsonrpc.ID) (mine jsonrpc.ID, ok bool, n startSign) {
	f.mu.Lock()
	defer f.mu.Unlock()
	mine, c := f.findLocked(id)
	if c != nil {
		n = f.settleLocked(mine, jsonrpc.NewError(mine, jsonrpc.InvalidResponse("", "")))
	}
	return mine, c != nil, n
}

func (f *inFlight) settleLocked(id jsonrpc.ID, answer *jsonrpc.Message) startSign {
	id, c := f.findLocked(id)
	if c == nil {
		return nothing // late, a duplicate, or unknown: the proxy drops it
	}
	f.calls.Take(id, c)
	f.watch.ended(c, answer)
	result := answer.Result
	if c.kind == initialize && (result == nil || result[0] != '{') {
		return refusal
	}
	switch {
	case result == nil:
	case c.kind == createsTask:
		f.createdLocked(member(result, "task"))
	case c.kind == readsTask:
		f.taskLocked(c.task, member(result, "status"))
	case c.kind == endsTask:
		f.tasks.TakeKey(c.task)
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

// findLocked returns a call, nil if there is none, and the id under which it is kept. A
// server that answers 5 with 5.0 or "5" means 5.
func (f *inFlight) findLocked(id jsonrpc.ID) (jsonrpc.ID, *openCall) {
	if c := f.calls.Get(id); c != nil {
		return id, c
	}
	n, ok := id.Answered()
	if !ok {
		return id, nil
	}
	id = jsonrpc.IntID(n)
	return id, f.calls.Get(id)
}

// createdLocked keeps the task of a CreateTaskResult.
func (f *inFlight) createdLocked(task json.RawMessage) {
	if id := string(member(task, "taskId")); id != "" {
		_ = f.tasks.Add(id, struct{}{}) // or there are too many
		f.taskLocked(id, member(task, "status"))
	}
}

// taskLocked forgets a task whose status is a last one.
func (f *inFlight) taskLocked(id string, status json.RawMessage) {
	switch string(status) {
	case `"completed"`, `"failed"`, `"cancelled"`:
		f.tasks.TakeKey(id)
	}
}

// state returns what decides how an end is reported. A listen is not in flight: its
// end is no loss.
func (f *inFlight) state() (calls int, _ progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls.Each {
		if c.kind != listen {
			calls++
		}
	}
	return calls, f.progress
}

// refuse notes that the proxy is told of a refusal: if it hangs up, that is why.
func (f *inFlight) refuse(failed json.RawMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused, f.refusal = true, bytes.Clone(failed)
}

// begun notes that a server is there which need not be asked.
func (f *inFlight) begun() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered = true
}

// awaitsInitialize reports whether initialize was sent and nothing was answered.
func (f *inFlight) awaitsInitialize() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls.Each {
		if c.kind == initialize {
			return !f.answered
		}
	}
	return false
}

// lost tells who watches of the end of all calls that are open, and of nothing more. end is
// that of the server; nil: the proxy has hung up.
func (f *inFlight) lost(end *jsonrpc.ClosedError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watch == nil {
		return
	}
	for _, c := range f.calls.Each {
		f.watch.lost(c, end)
	}
	f.watch = nil
}

// lastWords returns the messages that clear up what is open: one for each call. A
// request of the server gets the one error, which ends the calls that possibly wait for
// it; all others are cancelled. The end of the stream, which follows, is for those too
// that go on all the same.
func (f *inFlight) lastWords() (last []*jsonrpc.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, r := range f.requests.Each {
		last = append(last, jsonrpc.NewError(id, jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.Cause{}, jsonrpc.InFlight)))
		f.markLocked(r)
	}
	for id, c := range f.calls.Each {
		if !c.kind.starts() && c.kind != createsTask && !c.marked {
			last = append(last, mcp.Cancellation(id, "client disconnected"))
		}
	}
	for task := range f.tasks.Each {
		f.highest++
		last = append(last, jsonrpc.NewRequest(jsonrpc.IntID(f.highest), mcp.MethodTasksCancel, json.RawMessage(`{"taskId":`+task+`}`)))
	}
	return last
}

// requestID returns which request a notifications/cancelled is about.
func requestID(m *jsonrpc.Message) jsonrpc.ID {
	id, _ := mcp.Read(m).ID(mcp.Key)
	return id
}

// member returns a member of an object, nil if it has none that can be read.
func member(object json.RawMessage, key string) json.RawMessage {
	value, err := jsonrpc.Member(object, key)
	if err != nil {
		return nil
	}
	return value
}
