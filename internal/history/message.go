package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// A message is one of JSON-RPC. The checker reads messages with the standard library alone, so that
// it shares no defect with what it checks.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

func (m *message) isRequest() bool  { return m.Method != "" && m.ID != nil }
func (m *message) isResponse() bool { return m.Method == "" }

func (m *message) bytes() []byte {
	m.Version = "2.0"
	return encode(m)
}

// object is a JSON object that is being made.
type object map[string]any

// encode returns the JSON of a value that always has one.
func encode(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("%#v: %v", v, err))
	}
	return text
}

// Names of the revision 2026-07-28.
const (
	modernVersion = "2026-07-28"
	legacyVersion = "2025-11-25"

	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaLogLevel     = "io.modelcontextprotocol/logLevel"
	metaClient       = "io.modelcontextprotocol/clientInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// params are what the checker reads of the params of any message.
type params struct {
	Name      string `json:"name,omitempty"`
	Arguments call   `json:"arguments"`
	Meta      struct {
		ProgressToken json.RawMessage `json:"progressToken,omitempty"`
		Version       string          `json:"io.modelcontextprotocol/protocolVersion,omitempty"`
		LogLevel      string          `json:"io.modelcontextprotocol/logLevel,omitempty"`
		Capabilities  struct {
			Extensions map[string]json.RawMessage `json:"extensions,omitempty"`
		} `json:"io.modelcontextprotocol/clientCapabilities,omitzero"`
	} `json:"_meta"`
	InputResponses map[string]json.RawMessage `json:"inputResponses,omitempty"`
	RequestState   string                     `json:"requestState,omitempty"`

	RequestID     json.RawMessage `json:"requestId,omitempty"`     // of a cancellation
	ProgressToken json.RawMessage `json:"progressToken,omitempty"` // of progress; clients give a nonce
	Progress      float64         `json:"progress,omitempty"`      // some write 1.0
	Message       string          `json:"message,omitempty"`       // of progress and elicitation: the nonce of the call
	Messages      []struct {      // of sampling
		Content struct{ Text string }
	}

	Task          json.RawMessage `json:"task,omitempty"` // legacy: asks for a task
	TaskID        string          `json:"taskId,omitempty"`
	Data          string          `json:"data,omitempty"`         // of a log message: the nonce of the call
	URI           string          `json:"uri,omitempty"`          // of a subscription, and of an update
	Cause         string          `json:"cause,omitempty"`        // of an update: the nonce of the call, which is ours alone
	Notifications notifications   `json:"notifications,omitzero"` // of a listen, and of its acknowledgment
}

// notifications are what a listen of the modern era is for.
type notifications struct {
	ResourceSubscriptions []string `json:"resourceSubscriptions,omitempty"`
	ToolsListChanged      bool     `json:"toolsListChanged,omitempty"`
}

// thingOf returns the URI of the one resource of a server, and serverOf the server.
func thingOf(server string) string { return "history://" + server + "/thing" }

func serverOf(uri string) string {
	return strings.TrimSuffix(strings.TrimPrefix(uri, "history://"), "/thing")
}

func (m *message) params() (p params, err error) {
	if m.Params != nil {
		err = json.Unmarshal(m.Params, &p)
	}
	return p, err
}

// nonce returns the nonce that a client gave as the token of progress; "" for another token.
func (p *params) nonce() (nonce string) {
	_ = json.Unmarshal(p.ProgressToken, &nonce)
	return nonce
}

// A call is what clients ask of servers: the arguments of the one tool.
type call struct {
	Nonce    string `json:"nonce"`
	MS       int    `json:"ms,omitempty"`       // how long it takes
	Progress int    `json:"progress,omitempty"` // how many notifications it sends
	Log      int    `json:"log,omitempty"`      // how many log messages it sends
	Task     string `json:"task,omitempty"`     // it is run as a task, whose result the client gets, or which it cancels: result, cancel
	Ask      string `json:"ask,omitempty"`      // the method of the question that it asks its client before its effect

	// Instead of nothing, of a register of the server: get returns its value, set sets it to Value, and add counts
	// it up by one and returns the sum. Touch updates the server's resource. Grow gives the server another list of
	// tools, and returns its number.
	Do    string `json:"do,omitempty"`
	Key   string `json:"key,omitempty"`
	Value int    `json:"value,omitempty"`
}

// An answer is the structured content of a result.
type answer struct {
	Nonce  string `json:"nonce"`
	Server string `json:"server"` // with its process
	Reply  string `json:"reply,omitempty"`
	Value  int    `json:"value"`
}
