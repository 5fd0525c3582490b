//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A modernWire makes a client one of the modern era. It adds _meta to requests and sends
// server/discover instead of initialize. An input_required result becomes its questions; when
// they are answered, the wire sends the request again, and passes on the answer to that. It
// removes the members that the era adds to other results, so that tests can compare them.
type modernWire struct {
	wire
	t     *testing.T
	heard func([]byte)
	last  atomic.Int64 // of the ids that the wire mints

	mu      sync.Mutex
	level   json.RawMessage                 // of log messages to ask for; nil for none
	sent    map[jsonrpc.ID]*jsonrpc.Message // requests without an answer, by their id on the wire
	first   map[jsonrpc.ID]jsonrpc.ID       // the client's id of a retry, by its id on the wire
	waiting map[jsonrpc.ID]*inputs          // by the ids of its questions
}

// inputs are the answers for which a request waits before it is sent again.
type inputs struct {
	request *jsonrpc.Message // with the client's id
	state   json.RawMessage  // nil for none
	keys    map[jsonrpc.ID]string
	answers []jsonrpc.Value
}

func modern(carry dial) dial {
	return func(s *site, heard func([]byte)) (wire, error) {
		w := &modernWire{t: s.t, heard: heard, sent: map[jsonrpc.ID]*jsonrpc.Message{},
			first: map[jsonrpc.ID]jsonrpc.ID{}, waiting: map[jsonrpc.ID]*inputs{}}
		var err error
		w.wire, err = carry(s, w.receive)
		return w, err
	}
}

func (w *modernWire) send(text string) error {
	m, err := jsonrpc.Decode([]byte(text))
	if err != nil {
		return w.wire.send(text)
	}
	switch m.Method {
	case "":
		return w.reply(m)
	case "notifications/initialized":
		return nil
	case "notifications/cancelled":
		return w.cancel(m)
	case "logging/setLevel":
		w.mu.Lock()
		w.level, _ = jsonrpc.Member(m.Params, "level")
		w.mu.Unlock()
		w.heard(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)).Append(nil))
		return nil
	case "initialize":
		m.Method, m.Params = "server/discover", nil
	}
	if m.IsNotification() {
		return w.wire.send(text)
	}
	return w.request(m, m.ID)
}

// request sends m, whose id for the client is known.
func (w *modernWire) request(m *jsonrpc.Message, known jsonrpc.ID) error {
	w.mu.Lock()
	m.Params = mcp.SetMeta(m.Params,
		jsonrpc.Value{Key: mcp.KeyVersion, Text: json.RawMessage(`"2026-07-28"`)},
		jsonrpc.Value{Key: mcp.KeyClientInfo, Text: json.RawMessage(`{"name":"t","version":"1"}`)},
		jsonrpc.Value{Key: mcp.KeyCapabilities, Text: json.RawMessage(`{"elicitation":{}}`)},
		jsonrpc.Value{Key: mcp.KeyLogLevel, Text: w.level})
	w.sent[m.ID] = m
	if m.ID != known {
		w.first[m.ID] = known
	}
	w.mu.Unlock()
	return w.wire.send(string(m.Append(nil)))
}

// cancel names the request by its id on the wire.
func (w *modernWire) cancel(m *jsonrpc.Message) error {
	raw, _ := jsonrpc.Member(m.Params, "requestId")
	id, _ := jsonrpc.ParseID(raw)
	w.mu.Lock()
	for retry, known := range w.first {
		if known == id {
			m.Params = jsonrpc.Set(m.Params, jsonrpc.Value{Key: "requestId", Text: json.RawMessage(retry.String())})
		}
	}
	w.mu.Unlock()
	return w.wire.send(string(m.Append(nil)))
}

// reply keeps the client's answer to a question, and after the last one sends the request
// again.
func (w *modernWire) reply(m *jsonrpc.Message) error {
	w.mu.Lock()
	in := w.waiting[m.ID]
	if in == nil {
		w.mu.Unlock()
		return fmt.Errorf("nobody asked %s", m.ID)
	}
	delete(w.waiting, m.ID)
	in.answers = append(in.answers, jsonrpc.Value{Key: in.keys[m.ID], Text: m.Result})
	complete := len(in.answers) == len(in.keys)
	w.mu.Unlock()
	if !complete {
		return nil
	}
	retry := jsonrpc.NewRequest(w.mint("retry"), in.request.Method, jsonrpc.Set(in.request.Params,
		jsonrpc.Value{Key: "inputResponses", Text: jsonrpc.Set(nil, in.answers...)}, jsonrpc.Value{Key: "requestState", Text: in.state}))
	return w.request(retry, in.request.ID)
}

func (w *modernWire) mint(what string) jsonrpc.ID {
	id, _ := jsonrpc.ParseID(jsonrpc.Quote(what + " " + strconv.FormatInt(w.last.Add(1), 10)))
	return id
}

func (w *modernWire) receive(text []byte) {
	m, err := jsonrpc.Decode(text)
	switch {
	case err != nil:
		w.heard(text)
	case m.IsRequest():
		w.t.Errorf("a client of the modern era was asked %s", text)
	case m.IsNotification():
		w.heard(text)
	default:
		w.response(m)
	}
}

func (w *modernWire) response(m *jsonrpc.Message) {
	w.mu.Lock()
	request, known := w.sent[m.ID], m.ID
	if first, ok := w.first[m.ID]; ok {
		known = first
	}
	delete(w.sent, m.ID)
	delete(w.first, m.ID)
	w.mu.Unlock()
	kind, _ := jsonrpc.Member(m.Result, "resultType")
	switch {
	case m.Error != nil:
	case request == nil:
		w.t.Errorf("nobody asked for the result %s", m.Append(nil))
	case string(kind) == `"input_required"`:
		w.ask(jsonrpc.NewRequest(known, request.Method, request.Params), m.Result)
		return
	case string(kind) != `"complete"`:
		w.t.Errorf("a result of type %s: %s", kind, m.Result)
	}
	if m.Result != nil {
		m.Result = mcp.SetMeta(jsonrpc.Set(m.Result, jsonrpc.Value{Key: "resultType"}), jsonrpc.Value{Key: mcp.KeyServerInfo})
	}
	m.ID = known
	w.heard(m.Append(nil))
}

// ask passes the questions of a result to the client: the id of each contains the id of the
// request, see ofCall.
func (w *modernWire) ask(request *jsonrpc.Message, result json.RawMessage) {
	in := &inputs{request: request, keys: map[jsonrpc.ID]string{}}
	in.state, _ = jsonrpc.Member(result, "requestState")
	wanted, _ := jsonrpc.Member(result, "inputRequests")
	var questions []*jsonrpc.Message
	jsonrpc.Each(wanted, func(key string, value json.RawMessage) {
		id := w.mint("question of " + request.ID.String())
		in.keys[id] = key
		method, _ := jsonrpc.Member(value, "method")
		name, _ := jsonrpc.Unquote(method)
		params, _ := jsonrpc.Member(value, "params")
		questions = append(questions, jsonrpc.NewRequest(id, name, params))
	})
	if len(questions) == 0 {
		w.t.Errorf("input is required, but nothing is asked: %s", result)
	}
	w.mu.Lock()
	for _, q := range questions {
		w.waiting[q.ID] = in
	}
	w.mu.Unlock()
	for _, q := range questions {
		w.heard(q.Append(nil))
	}
}

// ofCall returns the id of the call to which a question belongs.
func ofCall(question *jsonrpc.Message) string {
	text, _ := jsonrpc.Unquote(json.RawMessage(question.ID.String()))
	return strings.Fields(text)[2]
}

// listen opens a listen and waits until it is acknowledged.
func (c *client) listen(id int, filter string) {
	c.t.Helper()
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscriptions/listen","params":{"notifications":%s}}`, id, filter))
	eventually(c.t, "acknowledgement of the listen", func() bool { return c.heardOn(id, "acknowledged") > 0 })
}

// heardOn returns how many notifications that contain part came on a listen.
func (c *client) heardOn(id int, part string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, told := range c.told {
		_, params, _ := strings.Cut(told, " ")
		meta, _ := jsonrpc.Member(json.RawMessage(params), "_meta")
		if of, _ := jsonrpc.Member(meta, mcp.KeySubscription); string(of) == strconv.Itoa(id) && strings.Contains(told, part) {
			n++
		}
	}
	return n
}
