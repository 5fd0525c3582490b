//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A fakeModern is what a fake keeps for clients of the modern era.
type fakeModern struct {
	listens map[jsonrpc.ID]json.RawMessage // the filter of each listen
	states  map[string]string              // the original calls that asked, by requestState
}

func newFakeModern() fakeModern {
	return fakeModern{map[jsonrpc.ID]json.RawMessage{}, map[string]string{}}
}

// isModern reports whether a request is of the modern era.
func isModern(m *jsonrpc.Message) bool {
	meta, _ := mcp.Read(m).Claim()
	return meta.Claimed || m.Method == "server/discover" || m.Method == "subscriptions/listen"
}

// speaks reports whether the fake speaks the era of a request.
func (f *fake) speaks(m *jsonrpc.Message) bool {
	switch os.Getenv("FAKE_ERA") {
	case "modern":
		return isModern(m)
	case "both":
		return true
	}
	return !isModern(m)
}

// refuse answers a request of an era that the fake does not speak.
func (f *fake) refuse(m *jsonrpc.Message) {
	no := &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"}
	switch probed := os.Getenv("FAKE_PROBED"); {
	case os.Getenv("FAKE_ERA") == "modern":
		no = &jsonrpc.Error{Code: mcp.CodeUnsupportedVersion, Message: "Unsupported protocol version",
			Data: map[string]any{"supported": mcp.ModernVersions, "requested": "2025-11-25"}}
	case probed == "exit":
		os.Exit(1)
	case probed == "silent":
		return
	}
	reply := jsonrpc.NewError(m.ID, no)
	reply.Related = m.ID
	f.Send(reply)
}

// modernResult returns the result of a method with the members that the modern era requires.
func modernResult(method, result string) string {
	more := `"resultType":"complete"`
	if strings.HasSuffix(method, "/list") || method == "server/discover" {
		more += `,"ttlMs":0,"cacheScope":"public"`
	}
	if result != "{}" {
		more += ","
	}
	return "{" + more + result[1:]
}

// wantsLog reports whether a call asks for log messages.
func wantsLog(call *jsonrpc.Message) bool {
	meta, _ := mcp.Read(call).Claim()
	return !isModern(call) || meta.LogLevel != nil
}

// listen opens a listen and acknowledges its whole filter.
func (f *fake) listen(m *jsonrpc.Message) {
	f.listens[m.ID], _ = jsonrpc.Member(m.Params, "notifications")
	f.tellListen(m.ID, "notifications/subscriptions/acknowledged", `{"notifications":`+string(f.listens[m.ID])+`}`)
}

func (f *fake) tellListen(id jsonrpc.ID, method, params string) {
	if params == "" {
		params = "{}"
	}
	stamped := mcp.SetMeta(json.RawMessage(params), jsonrpc.Value{Key: mcp.KeySubscription, Text: json.RawMessage(id.String())})
	m := jsonrpc.NewNotification(method, stamped)
	m.Related = id
	f.Send(m)
}

// tellAll notifies the client of a legacy session, and the listens whose filters have kind.
func (f *fake) tellAll(kind, method, params string) {
	if os.Getenv("FAKE_ERA") != "modern" {
		f.tell(nil, method, params)
	}
	for id, filter := range f.listens {
		if want, _ := jsonrpc.Member(filter, kind); string(want) == "true" || strings.Contains(string(want), "fake://thing") {
			f.tellListen(id, method, params)
		}
	}
}

// oddState is a requestState that a careless proxy would change: unnecessary escapes, a lone
// surrogate, characters that HTML or SSE would escape.
const oddState = `"\u0041\/\ud800 é<&> \u2028 %d ==\"\\"`

// requireInput asks by a result. The retry must have the same bytes as the call, and the state.
// Then the fake answers it with the client's answer.
func (f *fake) requireInput(m *jsonrpc.Message, question string) {
	state, _ := jsonrpc.Member(m.Params, "requestState")
	call := string(jsonrpc.Set(mcp.SetMeta(m.Params, jsonrpc.Value{Key: "progressToken"}),
		jsonrpc.Value{Key: "requestState"}, jsonrpc.Value{Key: "inputResponses"}))
	if meta, _ := mcp.Read(m).Claim(); state == nil && !strings.Contains(string(meta.Capabilities), `"elicitation"`) {
		f.fail(m, mcp.MissingCapability(json.RawMessage(`{"elicitation":{}}`)))
		return
	}
	if state == nil {
		f.asked++
		text := fmt.Sprintf(oddState, f.asked)
		f.states[text] = call
		f.Send(&jsonrpc.Message{ID: m.ID, Related: m.ID, Result: json.RawMessage(`{"resultType":"input_required","inputRequests":{"q \u00e9":` +
			`{"method":"elicitation/create","params":` + question + `}},"requestState":` + text + `}`)})
		return
	}
	if first, known := f.states[string(state)]; !known || first != call {
		f.fail(m, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "not the call that asked", Data: map[string]any{"known": known, "first": first, "now": call}})
		return
	}
	answers, _ := jsonrpc.Member(m.Params, "inputResponses")
	answer, _ := jsonrpc.Member(answers, "q é")
	if answer == nil {
		answer = json.RawMessage(`{"action":"none"}`)
	}
	f.answer(m, string(answer))
}

func (f *fake) fail(m *jsonrpc.Message, err *jsonrpc.Error) {
	reply := jsonrpc.NewError(m.ID, err)
	reply.Related = m.ID
	f.Send(reply)
}
