package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestRead(t *testing.T) {
	for _, c := range []struct {
		method, params string
		want           map[Member]string
	}{
		{"tools/call", `{"name":"t","arguments":{"name":"x"},"task":{},"_meta":{"progressToken":1,"a":2}}`,
			map[Member]string{Key: `"t"`, Arguments: `{"name":"x"}`, Task: `{}`, InMeta: `{"progressToken":1,"a":2}`, Token: `1`}},
		{"tools/call", `{"_meta":{"progressToken":null}}`, map[Member]string{InMeta: `{"progressToken":null}`}},
		{"tools/call", `[]`, nil},
		{"tools/call", ``, nil},
		{"prompts/list", `{"cursor":"c","name":"n"}`, map[Member]string{Cursor: `"c"`}},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"p"}}`,
			map[Member]string{Key: `{"type":"ref/prompt","name":"p"}`, RefType: `"ref/prompt"`, RefName: `"p"`}},
		{"resources/read", `{"uri":"u","requestState":"s","inputResponses":{}}`,
			map[Member]string{Key: `"u"`, RequestState: `"s"`, Responses: `{}`}},
		{"notifications/progress", `{"progressToken":"p","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}`,
			map[Member]string{Key: `"p"`, InMeta: `{"io.modelcontextprotocol/related-task":{"taskId":"t"}}`, RelatedTask: `{"taskId":"t"}`, RelatedTaskID: `"t"`}},
		{"vendor/thing", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"},"task":1}`,
			map[Member]string{InMeta: `{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`, Version: `"2026-07-28"`, Task: `1`}},
	} {
		n := ReadParams(c.method, json.RawMessage(c.params))
		for m := range members {
			if got := string(n.Raw(m)); got != c.want[m] || n.Has(m) != (got != "") {
				t.Errorf("%s %s: member %d is %q, want %q", c.method, c.params, m, got, c.want[m])
			}
		}
		if err := n.Err(Key, InMeta, Token); err != nil {
			t.Error(c.method, c.params, err)
		}
	}
}

// A fault concerns only the member that has it.
func TestReadFaults(t *testing.T) {
	for _, c := range []struct {
		params, want string
		of           Member
	}{
		{`{"name":"a","name":"b"}`, `duplicate key "name"`, Key},
		{`{"n\u0061me":"a","name":"b"}`, `duplicate key "name"`, Key},
		{`{"Name":"a"}`, `key "name" is not written that way`, Key},
		{`{"name":"a","NAME":"b"}`, `key "name" is not written that way`, Key},
		{`{"_meta":{"ProgressToken":1}}`, `key "progressToken" is not written that way`, Token},
		{`{"_meta":{},"_meta":{}}`, `duplicate key "_meta"`, InMeta},
	} {
		n := ReadParams(MethodToolsCall, json.RawMessage(c.params))
		for m := range members {
			err := n.Err(m)
			if (err != nil) != (m == c.of) || err != nil && err.Error() != c.want {
				t.Errorf("%s: member %d: %v", c.params, m, err)
			}
		}
	}
	if n := ReadParams(MethodToolsCall, json.RawMessage(`{"a"`)); n.Err() == nil {
		t.Error("what is no JSON has no fault")
	}
}

// Members that decide a route are bounded. Others may be longer.
func TestReadTooLong(t *testing.T) {
	fits, long := strings.Repeat("a", MaxRouted), strings.Repeat("a", MaxRouted+1)
	for _, c := range []struct {
		method, params string
		of             Member
		bounded        bool
	}{
		{MethodToolsCall, `{"name":"%s"}`, Key, true},
		{MethodPromptsGet, `{"name":"%s"}`, Key, true},
		{MethodResourcesRead, `{"uri":"%s"}`, Key, true},
		{MethodSubscribe, `{"uri":"%s"}`, Key, true},
		{MethodResourceUpdated, `{"uri":"%s"}`, Key, true},
		{MethodTasksGet, `{"taskId":"%s"}`, Key, true},
		{MethodToolsList, `{"cursor":"%s"}`, Cursor, true},
		{MethodTasksList, `{"cursor":"%s"}`, Cursor, true},
		{MethodComplete, `{"ref":{"type":"%s"}}`, RefType, true},
		{MethodComplete, `{"ref":{"name":"%s"}}`, RefName, true},
		{MethodComplete, `{"ref":{"uri":"%s"}}`, RefURI, true},
		{MethodToolsCall, `{"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"%s"}}}`, RelatedTaskID, true},
		{MethodElicit, `{"_meta":{"progressToken":"%s"}}`, Token, true},
		{MethodToolsCall, `{"arguments":"%s"}`, Arguments, false},
		{MethodResourcesRead, `{"requestState":"%s"}`, RequestState, false},
	} {
		n := ReadParams(c.method, fmt.Appendf(nil, c.params, fits))
		if text, ok := n.Text(c.of); n.Err(c.of) != nil || !ok || text != fits {
			t.Errorf("%s %s: what fits has a fault: %v", c.method, c.params, n.Err(c.of))
		}
		n = ReadParams(c.method, fmt.Appendf(nil, c.params, long))
		if errors.Is(n.Err(c.of), ErrTooLong) != c.bounded || n.Has(c.of) == c.bounded {
			t.Errorf("%s %s: one byte more: %v", c.method, c.params, n.Err(c.of))
		}
	}
}

// Notes are reused only for the same params.
func TestReadOnce(t *testing.T) {
	m := jsonrpc.NewRequest(jsonrpc.IntID(1), MethodToolsCall, json.RawMessage(`{"name":"a"}`))
	m.Notes = Read(m)
	again := *m
	if Read(&again) != m.Notes {
		t.Error("the params were read twice")
	}
	again.Params = json.RawMessage(`{"name":"b"}`)
	if name, _ := Read(&again).Text(Key); name != "b" {
		t.Errorf("other params have the notes of those before: %q", name)
	}
}

// Notes are as strict as a search for each key.
func FuzzRead(f *testing.F) {
	f.Add(`{"name":"a","_meta":{"progressToken":1,"io.modelcontextprotocol/related-task":{"taskId":"t"}}}`)
	f.Add(`{"ref":{"type":"ref/prompt","Name":"n","name":"m"},"REF":1}`)
	f.Add(`{"_meta":{"progresstoken":1,"io.modelcontextprotocol/protocolVersion":2},"_met\u0061":[]}`)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","method":"x","params":` + text + `}`))
		if err != nil || m.Batch != nil {
			return // params are valid JSON
		}
		for _, method := range []string{MethodToolsCall, MethodComplete, MethodProgress, "vendor/thing"} {
			n := ReadParams(method, m.Params)
			alike := func(in json.RawMessage, key string, member Member) {
				want, err := jsonrpc.Member(in, key)
				if errors.Is(n.Err(member), ErrTooLong) {
					return
				}
				if (err == nil) != (n.Err(member) == nil) {
					t.Errorf("%s %s: key %q: %v alone, %v in the notes", method, text, key, err, n.Err(member))
				}
				if got := n.Raw(member); err == nil && string(got) != string(want) && string(want) != "null" {
					t.Errorf("%s %s: key %q: %s alone, %s in the notes", method, text, key, want, got)
				}
			}
			for i, key := range n.Method.keys {
				alike(m.Params, key, n.Method.reads[i])
			}
			if n.Err(InMeta) == nil {
				for i, key := range metaKeys {
					alike(n.Raw(InMeta), key, Token+Member(i))
				}
			}
			if n.Method.Owner == ByRef && n.Err(Key) == nil {
				for i, key := range refKeys {
					alike(n.Raw(Key), key, RefType+Member(i))
				}
			}
		}
	})
}
