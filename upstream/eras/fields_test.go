package eras

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestResultToLegacy(t *testing.T) {
	const audio, link = `{"type":"audio","data":"aa"}`, `{"type":"resource_link","uri":"a:b","name":"n"}`
	for name, c := range map[string]struct{ method, version, result, want string }{
		"alone":                {"tools/call", "2025-11-25", `{"resultType":"complete"}`, `{}`},
		"between":              {"tools/call", "2025-11-25", `{"a":1, "resultType" : "complete" , "b":2}`, `{"a":1, "b":2}`},
		"last":                 {"tools/list", "2025-11-25", `{"tools":[],"cacheScope":"public","ttlMs":1 ,"resultType":"complete" }`, `{"tools":[] }`},
		"written with escapes": {"tools/call", "2025-11-25", `{"\u0072esultType":"complete","a":1}`, `{"a":1}`},
		"of other methods":     {"tools/call", "2025-11-25", `{"ttlMs":1,"cacheScope":"x"}`, `{"ttlMs":1,"cacheScope":"x"}`},
		"meta": {"tools/call", "2025-11-25",
			`{"_meta":{"io.modelcontextprotocol/serverInfo":{},"v/x":1e400,"io.modelcontextprotocol\/subscriptionId":1}}`, `{"_meta":{"v/x":1e400}}`},
		"meta, empty":  {"tools/call", "2025-11-25", `{"a":1,"_meta":{"io.modelcontextprotocol/serverInfo":{}}}`, `{"a":1}`},
		"structured":   {"tools/call", "2025-11-25", `{"content":[],"structuredContent":{"a":1.0}}`, `{"content":[],"structuredContent":{"a":1.0}}`},
		"unstructured": {"tools/call", "2025-11-25", `{"content":[{"type":"text","text":"1"}],"structuredContent":[1.0]}`, `{"content":[{"type":"text","text":"1"}]}`},
		"said once":    {"tools/call", "2025-11-25", `{"structuredContent":null,"content":[ ]}`, `{"content":[{"type":"text","text":"null"}]}`},
		"newest":       {"tools/call", "2025-06-18", `{"content":[` + audio + `,` + link + `]}`, `{"content":[` + audio + `,` + link + `]}`},
		"no links":     {"tools/call", "2025-03-26", `{"content":[` + audio + `,` + link + `]}`, `{"content":[` + audio + `,{"type":"text","text":"Resource: a:b"}]}`},
		"oldest": {"tools/call", "2024-11-05", `{"content":[` + audio + `,` + link + `],"structuredContent":1}`,
			`{"content":[{"type":"text","text":"(audio omitted)"},{"type":"text","text":"Resource: a:b"}]}`},
		"prompt": {"prompts/get", "2024-11-05", `{"messages":[{"role":"user","content":` + audio + `},{"role":"user"},7]}`,
			`{"messages":[{"role":"user","content":{"type":"text","text":"(audio omitted)"}},{"role":"user"},7]}`},
		"tools": {"tools/list", "2025-11-25",
			`{"tools":[{"outputSchema":{"type":["object"]},"name":"a"},{"name":"b","outputSchema":true},{"name":"c","outputSchema":{"type":"object"}},7]}`,
			`{"tools":[{"name":"a"},{"name":"b"},{"name":"c","outputSchema":{"type":"object"}},7]}`},
		"no list": {"tools/list", "2025-11-25", `{"tools":7}`, `{"tools":7}`},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := readModernResult(json.RawMessage(c.result))
			if err != nil || r.kind != resultComplete {
				t.Fatal(r.kind, err)
			}
			if got := string(r.toLegacy(c.method, c.version)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestResultThatCannotBeRead(t *testing.T) {
	for _, text := range []string{``, `null`, `[]`, `"x"`, `{"resultType":7}`, `{"resultType":"complete","resultType":"task"}`, `{"ResultType":"complete"}`} {
		if _, err := readModernResult(json.RawMessage(text)); err == nil {
			t.Errorf("%s was read", text)
		}
	}
}

func TestResultToModern(t *testing.T) {
	for name, c := range map[string]struct{ method, result, info, want string }{
		"call":      {"tools/call", `{"content":[]}`, `{"name":"s"}`, `{"content":[],"resultType":"complete","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}}`},
		"list":      {"tools/list", `{"tools":[]}`, ``, `{"tools":[],"resultType":"complete","ttlMs":0,"cacheScope":"private"}`},
		"its own":   {"resources/read", `{"ttlMs":9,"resultType":"x"}`, ``, `{"ttlMs":0,"resultType":"complete","cacheScope":"private"}`},
		"meta":      {"prompts/get", `{"_meta":{"io.modelcontextprotocol/subscriptionId":1,"v":1e400}}`, ``, `{"_meta":{"v":1e400},"resultType":"complete"}`},
		"meta gone": {"prompts/get", `{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}`, ``, `{"resultType":"complete"}`},
	} {
		t.Run(name, func(t *testing.T) {
			var info json.RawMessage
			if c.info != "" {
				info = json.RawMessage(c.info)
			}
			if got := string(toModernResult(c.method, json.RawMessage(c.result), info)); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestErrorsOfTheOtherEra(t *testing.T) {
	for name, c := range map[string]struct{ method, text, legacy, modern string }{
		"in words":    {"resources/read", `{"code":-32602,"message":"Resource NOT found","data":{"uri":"a"}}`, `{"code":-32002,"message":"Resource NOT found","data":{"uri":"a"}}`, ``},
		"of Python":   {"resources/read", `{"code":-32602,"message":"Unknown resource: a","data":{"uri":"a"}}`, `{"code":-32002,"message":"Unknown resource: a","data":{"uri":"a"}}`, ``},
		"in data":     {"resources/read", `{"code":-32602,"message":"x","data":{"reason":"not_found"}}`, `{"code":-32002,"message":"x","data":{"reason":"not_found"}}`, ``},
		"other words": {"resources/read", `{"code":-32602,"message":"bad uri","data":{"uri":"a"}}`, ``, ``},
		"of a tool":   {"tools/call", `{"code":-32602,"message":"tool not found"}`, ``, ``},
		"resource":    {"resources/read", `{"code": -32002 ,"message":"x","data":{"uri":"a"}}`, ``, `{"code": -32602 ,"message":"x","data":{"uri":"a"}}`},
		"header":      {"tools/call", `{"message":"x","code":-32020}`, `{"message":"x","code":-32603}`, `{"message":"x","code":-32603}`},
		"capability":  {"tools/call", `{"code":-32021,"message":"x","data":{"a":1.0}}`, `{"code":-32603,"message":"x","data":{"a":1.0}}`, `{"code":-32603,"message":"x","data":{"a":1.0}}`},
		"named":       {"tools/call", `{"code":-32021,"message":"x","data":{"requiredCapabilities":{"sampling":{}}}}`, `{"code":-32603,"message":"x","data":{"requiredCapabilities":{"sampling":{}}}}`, ``},
		"named badly": {"tools/call", `{"code":-32021,"message":"x","data":{"requiredCapabilities":[]}}`, `{"code":-32603,"message":"x","data":{"requiredCapabilities":[]}}`, `{"code":-32603,"message":"x","data":{"requiredCapabilities":[]}}`},
		"version":     {"tools/call", `{"code":-32022,"message":"x"}`, `{"code":-32603,"message":"x"}`, `{"code":-32603,"message":"x"}`},
		"URL":         {"tools/call", `{"code":-32042,"message":"x"}`, ``, `{"code":-32603,"message":"x"}`},
		"its own":     {"acme/read", `{"code":-32002,"message":"x"}`, ``, ``},
		"its own URL": {"acme/visit", `{"code":-32042,"message":"x"}`, ``, ``},
		"its version": {"acme/do", `{"code":-32022,"message":"x"}`, `{"code":-32603,"message":"x"}`, `{"code":-32603,"message":"x"}`},
		"vendor":      {"tools/call", `{"code":12345,"message":"x","data":1e400}`, ``, ``},
		"no code":     {"tools/call", `{"message":"x"}`, ``, ``},
		"two codes":   {"tools/call", `{"code":-32022,"code":1}`, ``, ``},
	} {
		t.Run(name, func(t *testing.T) {
			if got, want := string(toLegacyError(c.method, json.RawMessage(c.text))), or(c.legacy, c.text); got != want {
				t.Errorf("to legacy: got %s, want %s", got, want)
			}
			if got, want := string(toModernError(c.method, json.RawMessage(c.text))), or(c.modern, c.text); got != want {
				t.Errorf("to modern: got %s, want %s", got, want)
			}
		})
	}
}

func or(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

func TestCapabilitiesOfTheOtherEra(t *testing.T) {
	for text, want := range map[string]string{
		``:   `{}`,
		`{}`: `{}`,
		`{"roots":{"listChanged":true},"tasks":{},"vendor":1e400}`:                                     `{"roots":{"listChanged":true},"vendor":1e400}`,
		`{"extensions":{"io.modelcontextprotocol/tasks":{}}}`:                                          `{}`,
		`{"extensions":{"io.modelcontextprotocol/tasks":{},"io.modelcontextprotocol/ui":{"a":[]}}}`:    `{"extensions":{"io.modelcontextprotocol/ui":{"a":[]}}}`,
		`{"elicitation":{},"sampling":{"tools":{}},"experimental":{"x":{}},"tools":{"listChanged":1}}`: `{"elicitation":{},"sampling":{"tools":{}},"experimental":{"x":{}},"tools":{"listChanged":1}}`,
	} {
		if got := string(withoutTasks(json.RawMessage(text))); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

func TestStamped(t *testing.T) {
	const stamp = `"io.modelcontextprotocol/protocolVersion":"v"`
	for name, c := range map[string]struct{ params, want, token string }{
		"none":       {``, `{"_meta":{S}}`, ``},
		"empty":      {`{ }`, `{"_meta":{S} }`, ``},
		"no meta":    {`{"a":1e400}`, `{"_meta":{S},"a":1e400}`, ``},
		"empty meta": {`{"a":1,"_meta":{}}`, `{"a":1,"_meta":{S}}`, ``},
		"token":      {`{"_meta":{ "progressToken" : "\u0041" }}`, `{"_meta":{S, "progressToken" : 9 }}`, `"\u0041"`},
		"null":       {`null`, `{"_meta":{S}}`, ``},
		"null meta":  {`{"a":1,"_meta":null}`, `{"a":1,"_meta":{S}}`, ``},
		"null token": {`{"_meta":{"v":1,"progressToken":null}}`, `{"_meta":{S,"v":1}}`, ``},
		"vendor":     {`{"_meta":{"traceparent":"x"}}`, `{"_meta":{S,"traceparent":"x"}}`, ``},
		"reserved":   {`{"_meta":{"io.modelcontextprotocol/logLevel":"debug","v":1,"progressToken":1}}`, `{"_meta":{S,"v":1,"progressToken":9}}`, `1`},
	} {
		t.Run(name, func(t *testing.T) {
			var params json.RawMessage
			if c.params != "" {
				params = json.RawMessage(c.params)
			}
			got, token, err := stamped(params, []byte(stamp), jsonrpc.IntID(9))
			if want := strings.ReplaceAll(c.want, "S", stamp); err != nil || string(got) != want || string(token) != c.token {
				t.Errorf("got %s, %s, %v; want %s", got, token, err, want)
			}
		})
	}
	for _, params := range []string{`[]`, `7`, `{"_meta":7}`, `{"_meta":{},"_meta":{}}`, `{"_Meta":{}}`, `{"_meta":{"progresstoken":1}}`} {
		if _, _, err := stamped(json.RawMessage(params), []byte(stamp), jsonrpc.IntID(9)); err == nil {
			t.Errorf("%s was stamped", params)
		}
	}
}

// FuzzEdited compares edited with jsonrpc.Set, which does the same more slowly.
func FuzzEdited(f *testing.F) {
	f.Add([]byte(`{"a":1, "b" : [2] ,"c":{"a":"\""},"d":4}`), uint8(0))
	f.Add([]byte(`{ "\u0061" : 1 ,"d":"x"}`), uint8(0x55))
	f.Add([]byte(`{"c":1,"d":2}`), uint8(0xff))
	f.Fuzz(func(t *testing.T, object []byte, what uint8) {
		keys := []string{"a", "b", "c", "d"}
		var at [4]jsonrpc.Span
		if _, err := jsonrpc.Decode(append(append([]byte(`{"jsonrpc":"2.0","method":"m","params":`), object...), '}')); err != nil ||
			jsonrpc.Find(object, jsonrpc.Span{}, at[:], keys...) != nil || len(object) == 0 || object[0] != '{' {
			return
		}
		var edits []jsonrpc.Edit
		var values []jsonrpc.Value
		for i, key := range keys {
			var with json.RawMessage
			if what>>(2*i)&1 != 0 {
				with = json.RawMessage(`"new"`)
			}
			if what>>(2*i)&2 == 0 && !at[i].IsZero() {
				edits, values = append(edits, jsonrpc.Edit{Span: at[i], With: with}), append(values, jsonrpc.Value{Key: key, Text: with})
			}
		}
		var got, want map[string]json.RawMessage
		if err := json.Unmarshal(edited(object, edits...), &got); err != nil {
			t.Fatalf("%v: %s became %s", err, object, edited(object, edits...))
		}
		_ = json.Unmarshal(jsonrpc.Set(object, values...), &want)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s became %s, not %s", object, got, want)
		}
	})
}

// FuzzModernResult reads results of a hostile server: a legacy client gets JSON without unknown
// members.
func FuzzModernResult(f *testing.F) {
	f.Add([]byte(`{"resultType":"complete","content":[{"type":"audio"}],"structuredContent":[1],"_meta":{"a":1}}`))
	f.Add([]byte(`{"messages":[{"content":{"type":"resource_link"}}],"tools":[{"outputSchema":{"type":[]}}],"ttlMs":1}`))
	f.Add([]byte(`{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list","params":{"mode":"url"}}},"requestState":"x"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := jsonrpc.Decode(append(append([]byte(`{"jsonrpc":"2.0","id":1,"result":`), text...), '}'))
		if err != nil {
			return
		}
		r, err := readModernResult(m.Result)
		if err != nil {
			return
		}
		if state, asks, err := readInput(m.Result); err == nil && state == nil && len(asks) == 0 && !strings.Contains(string(text), "inputRequests") &&
			!strings.Contains(string(text), `\u`) {
			t.Errorf("%s asks for input", text)
		}
		for _, method := range []string{"tools/call", "tools/list", "prompts/get", "resources/read"} {
			for _, version := range []string{"2025-11-25", "2024-11-05"} {
				legacy := r.toLegacy(method, version)
				if kind, err := jsonrpc.Member(legacy, "resultType"); err != nil || kind != nil || !json.Valid(legacy) {
					t.Errorf("%s of %s became %s", method, text, legacy)
				}
			}
		}
	})
}
