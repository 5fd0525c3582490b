package upstream

import (
	"bytes"
	"cmp"
	"encoding/json"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// maxTasks bounds the unfinished tasks that are remembered on one stream. Further ones are
// not cancelled when the stream ends; they expire.
const maxTasks = 1024

// maxServerRequests bounds the requests of the server that are remembered on one stream.
// Further ones get no answer when the stream ends.
const maxServerRequests = 4096

// An inFlight records what is in flight on one stream, in both directions, so that it can
// be cleared up when the stream ends. It only reads the messages that pass, and of most
// only the kind and the id.
type inFlight struct {
	// Static after construction.
	modern    bool // without initialize, and without tasks that end with a stream
	discovers bool // modern, and the first request is server/discover
	guesses   bool // fromServer sets Related

	mu       sync.Mutex // guards the fields below
	calls    jsonrpc.Table[jsonrpc.ID, *openCall]
	requests jsonrpc.Table[jsonrpc.ID, serverRequest] // of the server
	tasks    jsonrpc.Table[string, struct{}]          // unfinished, by the JSON text of their id
	seq      int                                      // of the newest call
	highest  int64                                    // integer id of a call so far
	watch    *callWatch                               // reports calls to hooks; nil for none, and after lost
	progress
}

// A progress is the state of a server's start.
type progress struct {
	asks     bool            // the client of initialize declares sampling or elicitation
	sent     bool            // a request besides initialize was sent to the server
	answered bool            // the server answered a request, or needs no first request
	refused  bool            // the proxy gets no result for initialize
	refusal  json.RawMessage // the error instead; nil for none
}

// A startSign is what a message of the server means for its start.
type startSign byte

const (
	nothing  startSign = iota
	first              // the first answer
	greeting           // the result of initialize
	refusal            // initialize is refused
)

func newInFlight(modern, discovers, guesses bool) *inFlight {
	f := &inFlight{modern: modern, discovers: discovers, guesses: guesses}
	f.requests.Max, f.tasks.Max = maxServerRequests, maxTasks
	return f
}

// toServer records a message to the server. It reports whether it is the call whose answer
// completes the start.
func (f *inFlight) toServer(m *jsonrpc.Message) (starts bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for e := range m.Each {
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

// canBeAsked reports whether the client of initialize declares that servers may ask its model or
// its user.
func canBeAsked(m *jsonrpc.Message) bool {
	capabilities, _ := jsonrpc.Member(m.Params, "capabilities")
	can, _ := mcp.ReadAbilities(capabilities)
	return can.Sampling || can.Form || can.URL
}

// asksClient reports whether a server may ask the client.
func (f *inFlight) asksClient() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asks
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
		f.asks = canBeAsked(m)
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

// repliedLocked forgets a request of the server that is answered. If the answer is the
// connection-closed error, which is the proxy's own, it marks the calls that wait for it.
func (f *inFlight) repliedLocked(m *jsonrpc.Message) {
	if r, ok := f.requests.TakeKey(m.ID); ok && jsonrpc.IsClosed(m.Error) {
		f.markLocked(r)
	}
}

func (f *inFlight) markLocked(r serverRequest) {
	f.calls.Any(func(c *openCall) bool { // false: visit all
		c.marked = c.marked || r.awaitedBy(c)
		return false
	})
}

// cancelLocked forgets a call that the proxy cancels. It also forgets the server's requests
// for that call alone: an error for them would be a second stimulus.
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

// fromServer records a message from the server. If f guesses, it sets Related: in the legacy era
// to the newest call, since a stdio server cannot tell which call a message belongs to, and in
// the modern era, where messages can name their call, of those that do not to the only one. No
// other goroutine may use m yet.
func (f *inFlight) fromServer(m *jsonrpc.Message) (n startSign) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for e := range m.Each {
		task := "" // that a request is about
		switch {
		case e.IsResponse():
			n = max(n, f.settleLocked(e.ID, e))
			continue
		case e.IsRequest():
			task = f.askedLocked(e, cmp.Or(e.Related, m.Related))
		case e.Method == mcp.MethodCancelled:
			f.requests.TakeKey(requestID(e))
		case e.Method == mcp.MethodTaskStatus:
			notes := mcp.Read(e)
			f.taskLocked(string(notes.Raw(mcp.Key)), notes.Raw(mcp.Status))
		}
		switch {
		case !f.guesses || e.Method == mcp.MethodProgress: // that has its token
		case !f.modern:
			m.Related = f.newestLocked(task)
		case m.Related.IsZero():
			m.Related = f.onlyLocked()
		}
	}
	return n
}

// askedLocked records a request of the server, and returns the task that it belongs to. related is not guessed.
func (f *inFlight) askedLocked(m *jsonrpc.Message, related jsonrpc.ID) (task string) {
	task = string(mcp.Read(m).Raw(mcp.RelatedTaskID))
	_ = f.requests.Add(m.ID, serverRequest{seq: f.seq, related: related, task: task}) // fails if there are too many
	return task
}

// newestLocked returns the newest call that works, of those for a task if there are any, or else the newest call; zero
// for none. A client waits with tasks/result for what is asked about a task.
func (f *inFlight) newestLocked(task string) (id jsonrpc.ID) {
	ok := false
	if task != "" {
		id, _, ok = f.calls.Newest(func(c *openCall) bool { return c.works && c.task == task })
	}
	if !ok {
		id, _, ok = f.calls.Newest(func(c *openCall) bool { return c.works })
	}
	if !ok {
		id, _, _ = f.calls.Newest(nil)
	}
	return id
}

// onlyLocked returns the only call besides subscriptions; zero if there are none or several.
func (f *inFlight) onlyLocked() (only jsonrpc.ID) {
	for id, c := range f.calls.Each {
		switch {
		case c.kind == listen:
		case !only.IsZero():
			return jsonrpc.ID{}
		default:
			only = id
		}
	}
	return only
}

// settle takes out a call whose answer was invalid. mine is the id under which it was kept,
// and ok whether there was one.
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
		return nothing // late, duplicate, or unknown: the proxy drops it
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
		f.createdLocked(jsonrpc.Get(result, "task"))
	case c.kind == readsTask:
		f.taskLocked(c.task, jsonrpc.Get(result, "status"))
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

// findLocked returns a call, nil for none, and the id under which it is kept. Some servers
// answer 5 with 5.0 or "5".
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

// createdLocked records the task of a CreateTaskResult.
func (f *inFlight) createdLocked(task json.RawMessage) {
	if id := string(jsonrpc.Get(task, "taskId")); id != "" {
		_ = f.tasks.Add(id, struct{}{}) // fails if there are too many
		f.taskLocked(id, jsonrpc.Get(task, "status"))
	}
}

// taskLocked forgets a task whose status is final.
func (f *inFlight) taskLocked(id string, status json.RawMessage) {
	switch string(status) {
	case `"completed"`, `"failed"`, `"cancelled"`:
		f.tasks.TakeKey(id)
	}
}

// state returns the number of calls in flight, without listens, and the progress.
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

// len returns the number of calls in flight.
func (f *inFlight) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls.Len()
}

// refuse records that the proxy gets a refusal, and may close the stream because of it.
func (f *inFlight) refuse(failed json.RawMessage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused, f.refusal = true, bytes.Clone(failed)
}

// begun records that a server has started which needs no first call.
func (f *inFlight) begun() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered = true
}

// awaitsInitialize reports whether initialize was sent and the server has answered nothing.
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

// seen returns the calls that are watched, without listens, which clients do not wait for.
func (f *inFlight) seen() (all []observe.OpenRequest) {
	var open []*openCall
	f.mu.Lock()
	for _, c := range f.calls.Each {
		if c.kind != listen && !c.began.IsZero() {
			open = append(open, c)
			all = append(all, observe.OpenRequest{Method: c.method, Began: c.began, WaitsFor: f.waitLocked(c)})
		}
	}
	f.mu.Unlock()
	for i, c := range open {
		all[i].Tool = c.tool()
	}
	return all
}

func (f *inFlight) waitLocked(c *openCall) observe.Wait {
	if f.requests.Any(func(r serverRequest) bool { return r.awaitedBy(c) }) {
		return observe.ForClient
	}
	return observe.ForUpstream
}

// lost reports the end of all open calls to the hooks, and stops watching. end is the
// server's; nil if the proxy closed the stream.
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

// lastWords returns the messages that clear up what is in flight, one stimulus for each
// call: a request of the server gets the connection-closed error, which ends the calls that
// may wait for it, and all other calls are cancelled. Calls that go on regardless end with
// the stream.
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

// requestID returns the id in a notifications/cancelled.
func requestID(m *jsonrpc.Message) jsonrpc.ID {
	id, _ := mcp.Read(m).ID(mcp.Key)
	return id
}
