package catalog

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

var glances = []string{
	`{}`, `{ }`, `{"a":1}`, `{"resultType":"complete"}`, `{"resultType" : "complete" , "b":[]}`,
	`{"content":[],"resultType":"input_required"}`, `{"content":[{"text":"\\"}],"resultType":"task"}`,
	`{"a":{"resultType":"task"}}`, `{"a":{"resultType":"task"},"resultType":"complete"}`,
	`{"a":[{"resultType":"task"}],"b":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}`,
	`{"a":"\"resultType\":\"task\""}`, `{"a":"x,\"resultType","b":{}}`, `{"a":"resultType","b":[]}`,
	`{"a":"{","resultType":"complete","b":"}}}\"{\\\""}`, `{"a":"]\\","resultType":"com\"plete"}`,
	`{"resultType":1}`, `{"resultType":null,"b":1}`, `{"resultType":true}`, `{"resultType":{"a":"}"}}`, `{"resultType":[]}`,
	`{"result\u0054ype":"task"}`, `{"resultType":"a","resultType":"b"}`, `{"resultType":"a","result\u0054ype":"b"}`,
	`{"resultType":"\u00e9"}`, `{"mimeType":"Type\"","resultType":"complete"}`, `{"":"Type","Type":""}`,
}

// glance finds what Member finds, however the result is written.
func TestGlance(t *testing.T) {
	for _, text := range glances {
		glanced(t, text)
	}
}

func FuzzGlance(f *testing.F) {
	for _, text := range glances {
		f.Add(text)
	}
	f.Fuzz(glanced)
}

func glanced(t *testing.T, text string) {
	if !json.Valid([]byte(text)) || text[0] != '{' {
		t.Skip()
	}
	got, gotErr := glance(json.RawMessage(text), "resultType")
	want, wantErr := jsonrpc.Member(json.RawMessage(text), "resultType")
	if wantErr != nil && strings.Contains(wantErr.Error(), "written") {
		return // differs in case, which a glance need not see
	}
	if string(got) != string(want) || (gotErr == nil) != (wantErr == nil) {
		t.Errorf("%s:\n got %s, %v\nwant %s, %v", text, got, gotErr, want, wantErr)
	}
}
