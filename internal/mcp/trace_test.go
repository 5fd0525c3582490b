package mcp

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A trace context is read from params, and replaced without other changes.
func TestTraceContext(t *testing.T) {
	ours := jsonrpc.TraceContext{Parent: "ours", State: "s=1"}
	for _, test := range []struct {
		params string
		says   jsonrpc.TraceContext
		become string // "" if they stay
	}{
		{`{}`, jsonrpc.TraceContext{}, `{"_meta":{"traceparent":"ours","tracestate":"s=1"}}`},
		{` { "a":1.0}`, jsonrpc.TraceContext{}, ` {"_meta":{"traceparent":"ours","tracestate":"s=1"}, "a":1.0}`},
		{`{"a":1,"_meta":{}}`, jsonrpc.TraceContext{}, `{"a":1,"_meta":{"traceparent":"ours","tracestate":"s=1"}}`},
		{`{"_meta":{ "progressToken":7}}`, jsonrpc.TraceContext{}, `{"_meta":{"traceparent":"ours","tracestate":"s=1", "progressToken":7}}`},
		{`{"_meta":{"traceparent":"a\u0062", "tracestate" : "c","baggage":"d"},"x":"traceparent"}`, jsonrpc.TraceContext{Parent: "ab", State: "c", Baggage: "d"},
			`{"_meta":{"traceparent":"ours", "tracestate" : "s=1","baggage":"d"},"x":"traceparent"}`},
		{`{"_meta":{"traceparent":5}}`, jsonrpc.TraceContext{}, `{"_meta":{"tracestate":"s=1","traceparent":"ours"}}`},
		{`{"_meta":{"traceparent":"a","traceparent":"b"}}`, jsonrpc.TraceContext{}, ""},
		{`{"_meta":{"Traceparent":"a"}}`, jsonrpc.TraceContext{}, ""},
		{`{"_meta":{},"_meta":{"traceparent":"a"}}`, jsonrpc.TraceContext{}, ""},
		{`{"_meta":null}`, jsonrpc.TraceContext{}, ""},
		{`[1]`, jsonrpc.TraceContext{}, ""},
	} {
		n := ReadParams(MethodToolsCall, []byte(test.params))
		if says := n.TraceContext(); says != test.says {
			t.Errorf("%s says %+v", test.params, says)
		}
		become := test.become
		if become == "" {
			become = test.params
		}
		if got := jsonrpc.Replace([]byte(test.params), n.TraceEdits(ours)...); string(got) != become {
			t.Errorf("%s became\n%s, want\n%s", test.params, got, become)
		}
	}
}

// A state that does not belong to our parent is emptied, and a baggage is kept.
func TestTraceEdits(t *testing.T) {
	params := []byte(`{"_meta":{"tracestate":"old","baggage":"own"}}`)
	n := ReadParams(MethodToolsCall, params)
	got := jsonrpc.Replace(params, n.TraceEdits(jsonrpc.TraceContext{Parent: "ours", Baggage: "other"})...)
	if want := `{"_meta":{"traceparent":"ours","tracestate":"","baggage":"own"}}`; string(got) != want {
		t.Error(string(got), "want", want)
	}
}

// After the edits, any params either have our trace context or are unchanged, and are as valid as
// before.
func FuzzTraceEdits(f *testing.F) {
	for _, seed := range []string{`{}`, `{"_meta":{}}`, ` {"_meta" : { "tracestate":"a" , "baggage":1},"x":[]} `, `{"_meta":[]}`, `{"\u005fmeta":{"trace\u0070arent":""}}`, `[`, `{"_meta":{"a":1}`, ``} {
		f.Add(seed)
	}
	ours := jsonrpc.TraceContext{Parent: "ours", Baggage: "k=v"}
	f.Fuzz(func(t *testing.T, params string) {
		n := ReadParams(MethodToolsCall, []byte(params))
		said, edits := n.TraceContext(), n.TraceEdits(ours)
		out := ReadParams(MethodToolsCall, jsonrpc.Replace([]byte(params), edits...))
		if len(edits) == 0 {
			return
		}
		says := out.TraceContext()
		if says.Parent != ours.Parent || says.State != "" || out.broken != nil || said.Baggage != "" && says.Baggage != said.Baggage {
			t.Errorf("%q became %q, which says %+v: %v", params, out.params, says, out.broken)
		}
	})
}
