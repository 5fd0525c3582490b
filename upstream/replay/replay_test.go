package replay

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const hello = `
> {"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}
< {"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"real","version":"7"}}}
> {"method":"notifications/initialized"}
`

// Equal requests have the recorded answers in turn, and then the last one again.
func TestInTurn(t *testing.T) {
	r := dial(t, hello+`
> {"id":2,"method":"tools/call","params":{"name":"next","arguments":{"a":1,"b":[2,{"c":12345678901234567890}]}}}
< {"id":2,"result":{"n": 1,  "big":12345678901234567890,"html":"<&>"}}
> {"id":3,"method":"tools/call","params":{"name":"next","arguments":{"a":1,"b":[2,{"c":12345678901234567891}]}}}
< {"id":3,"result":{"n":"other"}}
s2:
> {"id":2,"method":"tools/call","params":{"name":"next","arguments":{"a":1,"b":[2,{"c":12345678901234567890}]}}}
< {"id":2,"error":{"code":-1,"message":"no more"}}
`)
	const call = `{"name":"next","arguments":{"b":[2.0,{"c":1234567890123456789e1}],"a":10e-1},"_meta":{"x":1}}`
	r.send(`{"id":7,"method":"tools/call","params":` + call + `}`)
	r.hears(`{"id":7,"result":{"n": 1,  "big":12345678901234567890,"html":"<&>"}}`)
	r.send(`{"id":"x","method":"tools/call","params":` + call + `}`)
	r.hears(`{"id":"x","error":{"code":-1,"message":"no more"}}`)
	r.send(`{"id":9,"method":"tools/call","params":` + call + `}`)
	r.hears(`{"id":9,"error":{"code":-1,"message":"no more"}}`)
	r.send(`{"id":10,"method":"tools/call","params":{"name":"next","arguments":{"b":[2,{"c":12345678901234567891}],"a":1}}}`)
	r.hears(`{"id":10,"result":{"n":"other"}}`)
}

// Another session begins at the beginning.
func TestEachSessionBeginsAnew(t *testing.T) {
	recording := opened(t, hello+`
> {"id":2,"method":"tools/call","params":{"name":"next"}}
< {"id":2,"result":{"n":1}}
> {"id":3,"method":"tools/call","params":{"name":"next"}}
< {"id":3,"result":{"n":2}}
`)
	for range 2 {
		r := begin(t, recording)
		r.send(`{"id":1,"method":"tools/call","params":{"name":"next"}}`)
		r.hears(`{"id":1,"result":{"n":1}}`)
	}
}

// Progress has the token of whoever asks now, and nobody who has none hears of it.
func TestProgress(t *testing.T) {
	r := dial(t, hello+`
> {"id":2,"method":"tools/call","params":{"name":"slow","_meta":{"progressToken":2}}}
> {"id":3,"method":"tools/call","params":{"name":"other","_meta":{"progressToken":3}}}
< {"method":"notifications/progress","params":{"progressToken":2,"progress":1}}
< {"method":"notifications/progress","params":{"progressToken":3,"progress":5}}
< {"method":"notifications/message","params":{"level":"info","data":"of the newest"}}
< {"id":3,"result":{"other":true}}
< {"id":2,"result":{"slow":true}}
< {"method":"notifications/tools/list_changed"}
`)
	r.send(`{"id":20,"method":"tools/call","params":{"name":"slow","_meta":{"progressToken":"tok"}}}`)
	r.hears(`{"method":"notifications/progress","params":{"progressToken":"tok","progress":1}}`, `{"id":20,"result":{"slow":true}}`,
		`{"method":"notifications/tools/list_changed"}`)
	r.send(`{"id":21,"method":"tools/call","params":{"name":"other"}}`)
	r.hears(`{"method":"notifications/message","params":{"level":"info","data":"of the newest"}}`, `{"id":21,"result":{"other":true}}`)
	r.silent()
}

// What says to which request it belongs comes with that.
func TestBelongs(t *testing.T) {
	r := dial(t, hello+`
> {"id":2,"method":"tools/call","params":{"name":"first"}}
> {"id":3,"method":"tools/call","params":{"name":"second"}}
<2 {"method":"notifications/message","params":{"level":"info","data":1}}
<3 {"method":"notifications/message","params":{"level":"info","data":2}}
< {"id":3,"result":{}}
<3 {"method":"notifications/message","params":{"level":"info","data":"late"}}
< {"id":2,"result":{}}
`)
	r.send(`{"id":1,"method":"tools/call","params":{"name":"first"}}`)
	r.hears(`{"method":"notifications/message","params":{"level":"info","data":1}}`,
		`{"method":"notifications/message","params":{"level":"info","data":"late"}}`, `{"id":1,"result":{}}`)
	r.send(`{"id":4,"method":"tools/call","params":{"name":"second"}}`)
	r.hears(`{"method":"notifications/message","params":{"level":"info","data":2}}`, `{"id":4,"result":{}}`)
}

// A request of the server is asked anew, and its call goes on when it is answered, whatever
// the answer is. What belongs to initialize waits for the client to be ready.
func TestServerAsks(t *testing.T) {
	r := dial(t, hello+`
< {"id":"r0","method":"roots/list"}
> {"id":"r0","result":{"roots":[]}}
< {"method":"notifications/message","params":{"level":"info","data":"ready"}}
> {"id":2,"method":"tools/call","params":{"name":"ask"}}
< {"id":"q1","method":"elicitation/create","params":{"message":"who?"}}
< {"id":"q2","method":"elicitation/create","params":{"message":"never mind"}}
< {"method":"notifications/cancelled","params":{"requestId":"q2","reason":"x"}}
> {"id":"q1","result":{"action":"accept","content":{"name":"ada"}}}
< {"id":2,"result":{"hello":"ada"}}
`)
	r.send(`{"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"roots":{}}}}`)
	r.hears(`{"id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"real","version":"7"}}}`)
	r.silent()
	r.send(`{"method":"notifications/initialized"}`)
	r.hears(`{"id":1,"method":"roots/list"}`)
	r.silent()
	r.send(`{"id":1,"error":{"code":-32601,"message":"no"}}`)
	r.hears(`{"method":"notifications/message","params":{"level":"info","data":"ready"}}`)

	r.send(`{"id":5,"method":"tools/call","params":{"name":"ask"}}`)
	r.hears(`{"id":2,"method":"elicitation/create","params":{"message":"who?"}}`,
		`{"id":3,"method":"elicitation/create","params":{"message":"never mind"}}`,
		`{"method":"notifications/cancelled","params":{"requestId":3,"reason":"x"}}`)
	r.silent()
	r.send(`{"id":2,"result":{"action":"decline"}}`)
	r.hears(`{"id":5,"result":{"hello":"ada"}}`)

	r.send(`{"id":6,"method":"tools/call","params":{"name":"ask"}}`)
	r.hears(`{"id":4,"method":"elicitation/create","params":{"message":"who?"}}`)
	r.send(`{"method":"notifications/cancelled","params":{"requestId":6}}`)
	r.send(`{"id":4,"result":{"action":"decline"}}`)
}

// What was cancelled waits to be cancelled, and what the recording ends before is an error.
func TestWithoutAnswer(t *testing.T) {
	r := dial(t, hello+`
> {"id":2,"method":"tools/call","params":{"name":"cancelled"}}
> {"method":"notifications/cancelled","params":{"requestId":2}}
> {"id":3,"method":"tools/call","params":{"name":"lost","_meta":{"progressToken":3}}}
< {"method":"notifications/progress","params":{"progressToken":3,"progress":1}}
`)
	r.send(`{"id":2,"method":"tools/call","params":{"name":"cancelled"}}`)
	r.silent()
	r.send(`{"method":"notifications/cancelled","params":{"requestId":2}}`)
	r.send(`{"id":3,"method":"tools/call","params":{"name":"lost","_meta":{"progressToken":9}}}`)
	r.hears(`{"method":"notifications/progress","params":{"progressToken":9,"progress":1}}`,
		`{"id":3,"error":{"code":-32603,"message":"The recording has no answer to this: see line 12","data":{"reason":"not_recorded"}}}`)
}

// What is not recorded is an error that shows the nearest.
func TestNearest(t *testing.T) {
	r := dial(t, hello+`
> {"id":2,"method":"tools/call","params":{"name":"read","arguments":{"path":"b"}}}
< {"id":2,"result":{}}
> {"id":3,"method":"tools/call","params":{"name":"write","arguments":{"path":"a","mode":1}}}
< {"id":3,"result":{}}
> {"id":4,"method":"tools/call","params":{"name":"write","arguments":{"path":"b","mode":2}}}
< {"id":4,"result":{}}
> {"id":5,"method":"tools/list"}
< {"id":5,"result":{"tools":[]}}
`)
	for _, test := range []struct{ send, want string }{
		{`"method":"tools/call","params":{"name":"write","arguments":{"path":"<b>","mode":2}}`,
			`{"code":-32602,"message":"Not in the recording: tools/call of write. The nearest is in line 16: arguments.path is \"b\" there, \"<b>\" here",` +
				`"data":{"reason":"not_recorded","nearest":{"line":16,"method":"tools/call","params":{"arguments":{"mode":2,"path":"b"},"name":"write"}},"differs":["arguments.path"]}}`},
		{`"method":"tools/call","params":{"name":"write"}`,
			`{"code":-32602,"message":"Not in the recording: tools/call of write. The nearest is in line 12: arguments is {\"mode\":1,\"path\":\"a\"} there, missing here",` +
				`"data":{"reason":"not_recorded","nearest":{"line":12,"method":"tools/call","params":{"arguments":{"mode":1,"path":"a"},"name":"write"}},"differs":["arguments"]}}`},
		{`"method":"tools/call","params":{"name":"delete","arguments":{"path":"b"}}`,
			`{"code":-32602,"message":"Not in the recording: tools/call of delete. The nearest is in line 8: name is \"read\" there, \"delete\" here",` +
				`"data":{"reason":"not_recorded","nearest":{"line":8,"method":"tools/call","params":{"arguments":{"path":"b"},"name":"read"}},"differs":["name"]}}`},
		{`"method":"prompts/get","params":{"name":"x"}`,
			`{"code":-32601,"message":"Not in the recording: prompts/get. It has initialize, tools/call, tools/list","data":{"reason":"not_recorded"}}`},
	} {
		r.send(`{"id":1,` + test.send + `}`)
		m, err := r.Recv()
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if json.Unmarshal(m.Error, &got) != nil || json.Unmarshal([]byte(test.want), &want) != nil || textOf(got) != textOf(want) {
			t.Errorf("%s:\ngot  %s\nwant %s", test.send, textOf(got), textOf(want))
		}
	}
	r.send(`{"id":1,"method":"tools/call","params":{"name":"write","arguments":{"a":"` + strings.Repeat("é", 9999) + `","b":1,"c":2,"d":3}}}`)
	m, _ := r.Recv()
	if len(m.Error) > 1000 || !strings.Contains(string(m.Error), "and 3 more") {
		t.Errorf("an error of %d bytes: %s", len(m.Error), m.Error)
	}
}

// A recording that began later has no handshake, so that is made up.
func TestMadeUp(t *testing.T) {
	r := dial(t, `
> {"id":4,"method":"resources/read","params":{"uri":"file:///a"}}
< {"id":4,"result":{"contents":[]}}
> {"id":5,"method":"prompts/list"}
< {"id":5,"error":{"code":-32601,"message":"no"}}
`)
	r.send(`{"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}`)
	r.hears(`{"id":1,"result":{"capabilities":{"resources":{}},"protocolVersion":"2025-06-18","serverInfo":{"name":"files","version":"recorded"}}}`)
	r.send(`{"method":"notifications/initialized"}`)
	r.silent()
}

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// A recording of the modern era answers in that era alone; retries have the answers of
// retries, and subscriptions the id of here.
func TestModern(t *testing.T) {
	recording := opened(t, strings.ReplaceAll(`
> {"id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},META}}
< {"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1},"notifications":{}}}
> {"id":2,"method":"tools/call","params":{"name":"ask",META}}
< {"id":2,"result":{"resultType":"input_required","requestState":"s1","inputRequests":{}}}
< {"method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}
> {"id":3,"method":"tools/call","params":{"name":"ask","requestState":"s1","inputResponses":{"q":{"action":"accept"}},META}}
< {"id":3,"result":{"resultType":"complete","content":[]}}
`, "META", modernMeta))
	r := begin(t, recording)
	r.send(`{"id":7,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + modernMeta + `}}`)
	r.hears(`{"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":{}}}`,
		`{"method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}`)
	for range 2 {
		r.send(`{"id":8,"method":"tools/call","params":{"name":"ask",` + modernMeta + `}}`)
		r.hears(`{"id":8,"result":{"resultType":"input_required","requestState":"s1","inputRequests":{}}}`)
		r.send(`{"id":9,"method":"tools/call","params":{"name":"ask","requestState":"s1","inputResponses":{"q":{"action":"decline"}},` + modernMeta + `}}`)
		r.hears(`{"id":9,"result":{"resultType":"complete","content":[]}}`)
	}
	r.send(`{"id":10,"method":"server/discover","params":{` + modernMeta + `}}`)
	r.hears(`{"id":10,"result":{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"files","version":"recorded"}},"cacheScope":"private",` +
		`"capabilities":{"tools":{}},"resultType":"complete","supportedVersions":["2026-07-28"],"ttlMs":0}}`)

	r = begin(t, recording)
	r.send(`{"id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	r.hears(`{"id":1,"error":{"code":-32601,"message":"Method not found: initialize"}}`)
}

// What cannot be used says why.
func TestUnusable(t *testing.T) {
	const begin = `{"recording":1,"version":"x","began":"2026-01-01T00:00:00Z"}` + "\n"
	const ping = `{"side":"upstream","way":"out","session":"a","upstream":"NAME","message":{"jsonrpc":"2.0","id":1,"method":"ping"}}` + "\n"
	line := func(name string) string { return strings.Replace(ping, "NAME", name, 1) }
	path := filepath.Join(t.TempDir(), "tape")
	for text, want := range map[string]string{
		"":                            "is not a recording of tap --record",
		line("files"):                 "is not a recording of tap --record",
		"\x00\n":                      "is not a recording of tap --record",
		`{"recording":2}`:             "is a recording of format 2, and this program reads format 1",
		begin:                         "has no message of an upstream",
		begin + "{}":                  "line 2: has no message, as a tap without --record",
		begin + line("files") + "x":   "line 3 does not belong in a recording: invalid character 'x' looking for beginning of value",
		begin + line("a") + line("b"): "has the upstreams a, b, and none named files",
		begin + `{"leftOut":3}`:       "line 2 says that messages were left out",
		begin + line("files") + `{"end":true,"messages":2}`:                                                                               "line 3 says that there are 2 messages, and there are 1",
		begin + line("files") + `{"end":false,"error":"it was too slow"}`:                                                                 `line 3 says that the recording is incomplete: "it was too slow"`,
		begin + `{"message":{"jsonrpc":"2.0","method":"a","params":{"a":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}}}`: "line 2: nested too deeply",
		begin + line("a") + line("c"): "has the upstreams a, c, and none named files",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, "files"); err == nil || err.Error() != path+" "+want {
			t.Errorf("%q: %v\nwant %s", text, err, want)
		}
	}
	if err := os.WriteFile(path, []byte(begin+line("other")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, "files"); err != nil {
		t.Errorf("the only upstream has another name: %v", err)
	}
	if err := os.WriteFile(path, []byte(begin+line("a")+line("b")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, "b"); err != nil {
		t.Errorf("one of two upstreams: %v", err)
	}
	if _, err := Open(path, ""); err == nil || !strings.HasSuffix(err.Error(), "choose one with --upstream") {
		t.Errorf("none of two upstreams: %v", err)
	}
	for _, file := range []string{t.TempDir(), path + ".none"} {
		if _, err := Open(file, ""); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// A client that leaves, with or without having read, ends the session.
func TestEnd(t *testing.T) {
	talk := hello + `> {"id":2,"method":"tools/call","params":{"name":"storm"}}` + "\n"
	talk += strings.Repeat(`< {"method":"notifications/message","params":{"level":"info","data":1}}`+"\n", 100)
	recording := opened(t, talk+`< {"id":2,"result":{}}`)
	for _, reads := range []bool{true, false} {
		near, far := jsonrpc.Pipe()
		ended := make(chan error)
		go func() { ended <- recording.Serve(far) }()
		m, _ := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"storm"}}`))
		near.Send(m)
		for m := (*jsonrpc.Message)(nil); reads && (m == nil || !m.IsResponse()); {
			m, _ = near.Recv()
		}
		near.Close()
		if err := <-ended; !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("reads %v: Serve = %v", reads, err)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, equal := range [][]string{
		{"0", "-0", "0.000", "0e5"}, {"1", "1.0", "10e-1", "0.1E+1", "1e0"}, {"-150", "-1.5e2", "-15e1"},
		{"9007199254740993", "9007199254740993.0"}, {"9007199254740992"}, {"0.1", "1e-1"}, {"1e400", "10e399"}, {"1e-400"}, {"1e99999999999"},
	} {
		for _, n := range equal {
			if got := normalNumber(json.Number(n)); got != normalNumber(json.Number(equal[0])) {
				t.Errorf("%s is %s, and %s is %s", n, got, equal[0], normalNumber(json.Number(equal[0])))
			}
		}
	}
	seen := make(map[json.Number]string)
	for _, n := range []string{"0", "1", "-1", "9007199254740993", "9007199254740992", "1e400", "1e-400", "1e99999999999", "1e99999999998"} {
		if other := seen[normalNumber(json.Number(n))]; other != "" {
			t.Errorf("%s is %s", n, other)
		}
		seen[normalNumber(json.Number(n))] = n
	}
}

// A recording may come from anywhere.
func FuzzRead(f *testing.F) {
	text, err := os.ReadFile(taped(f, hello))
	if err != nil {
		f.Skip(err)
	}
	f.Add(text, []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`))
	f.Fuzz(func(t *testing.T, file, message []byte) {
		r, err := read(strings.NewReader(string(file)), "files", jsonrpc.Limits{})
		if err != nil {
			return
		}
		for _, x := range r.exchanges {
			if r.equal[x.question.key()] == nil {
				t.Errorf("line %d is not found", x.line)
			}
		}
		if m, err := jsonrpc.Decode(message); err == nil && m.IsRequest() {
			if wire := r.refuse(questionOf(m)).Raw(); !json.Valid(wire) {
				t.Errorf("%s", wire)
			}
		}
	})
}
