package jsonrpc_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestFind(t *testing.T) {
	tests := []struct{ doc, name, meta string }{
		{`{"name":"a","_meta":{"x":1}}`, `"a"`, `{"x":1}`},
		{" { \"x\" : 1 , \"n\\u0061me\"\n:\t\"a\\n\" } ", `"a\n"`, ``},
		{`{"_meta":null,"name":[1,{"name":2}]}`, `[1,{"name":2}]`, `null`},
		{`{"arguments":{"name":1,"name":2,"Name":3}}`, ``, ``},
		{`{}`, ``, ``},
		{`{"":1,"nam":1,"names":1,"meta":1}`, ``, ``},
		{`{"x":1,"x":2,"X":3}`, ``, ``}, // duplicates of what nobody interprets
		{`["name",1]`, ``, ``},
		{`"name"`, ``, ``},
		{`null`, ``, ``},
		{``, ``, ``},
	}
	for _, tt := range tests {
		at := [2]jsonrpc.Span{{1, 2}, {3, 4}} // rubbish that must not survive
		if err := jsonrpc.Find([]byte(tt.doc), jsonrpc.Span{}, at[:], "name", "_meta"); err != nil {
			t.Errorf("Find in %s: %v", tt.doc, err)
		}
		if name, meta := string(at[0].Of([]byte(tt.doc))), string(at[1].Of([]byte(tt.doc))); name != tt.name || meta != tt.meta {
			t.Errorf("Find in %s: name %s, _meta %s, want %s, %s", tt.doc, name, meta, tt.name, tt.meta)
		}
	}
}

func TestFindNested(t *testing.T) {
	doc := []byte(` {"uri":"outer", "ref": { "type":"x","uri":"inner"} }`)
	var ref, uri [1]jsonrpc.Span
	if err := jsonrpc.Find(doc, jsonrpc.Span{}, ref[:], "ref"); err != nil {
		t.Fatal(err)
	}
	if err := jsonrpc.Find(doc, ref[0], uri[:], "uri"); err != nil {
		t.Fatal(err)
	}
	if got := string(uri[0].Of(doc)); got != `"inner"` {
		t.Errorf("ref.uri is %s", got)
	}
}

func TestFindRefuses(t *testing.T) {
	for _, doc := range []string{
		`{"name":"a","name":"b"}`,
		`{"name":"a","n\u0061me":"a"}`,
		`{"name":"a","Name":"b"}`,
		`{"NAME":"a"}`,
		`{"n\u0041me":"a"}`,
		`{"\u212aey":1}`,                       // the Kelvin sign folds to k
		"{\"\u212aey\":1}",                     // and so it does unescaped
		`{"key":1,"\u212aey":2}`,               // beside the key itself
		`{"uri\u017f":1}`,                      // ſ folds to s
		"{\"uri\u017f\":1}",                    //
		`{"name":"a"`, `{"name"}`, `{"a":1}{}`, // not JSON
	} {
		var at [3]jsonrpc.Span
		if err := jsonrpc.Find([]byte(doc), jsonrpc.Span{}, at[:], "name", "key", "uris"); err == nil {
			t.Errorf("Find accepts %s", doc)
		}
	}
}

func TestReplace(t *testing.T) {
	doc := json.RawMessage(`{"name": "old" ,"_meta":{"progressToken":9007199254740993},"x":"\ud800"}`)
	before := slices.Clone(doc)
	var at [2]jsonrpc.Span
	if err := jsonrpc.Find(doc, jsonrpc.Span{}, at[:], "_meta", "name"); err != nil {
		t.Fatal(err)
	}
	var token [1]jsonrpc.Span
	if err := jsonrpc.Find(doc, at[0], token[:], "progressToken"); err != nil {
		t.Fatal(err)
	}
	got := jsonrpc.Replace(doc,
		jsonrpc.Edit{Span: token[0], With: []byte(`7`)},
		jsonrpc.Edit{}, // an absent value
		jsonrpc.Edit{Span: at[1], With: []byte(`"new"`)})
	if want := `{"name": "new" ,"_meta":{"progressToken":7},"x":"\ud800"}`; string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if !slices.Equal(doc, before) {
		t.Error("Replace wrote to doc")
	}
}

func TestMember(t *testing.T) {
	if got, err := jsonrpc.Member([]byte(`{"a":1,"b": [2] }`), "b"); string(got) != `[2]` || err != nil {
		t.Errorf("b is %s, %v", got, err)
	}
	if got, err := jsonrpc.Member([]byte(`{"a":1}`), "b"); got != nil || err != nil {
		t.Errorf("absent b is %s, %v", got, err)
	}
	if _, err := jsonrpc.Member([]byte(`{"b":1,"B":1}`), "b"); err == nil {
		t.Error("b beside B accepted")
	}
}

func TestElements(t *testing.T) {
	got, err := jsonrpc.Elements([]byte(` [ 1 , {"a":[2]},"]" , null ] `))
	var texts []string
	for _, e := range got {
		texts = append(texts, string(e))
	}
	if want := `1|{"a":[2]}|"]"|null`; strings.Join(texts, "|") != want || err != nil {
		t.Errorf("got %s, %v, want %s", strings.Join(texts, "|"), err, want)
	}
	for _, bad := range []string{``, `{}`, `[1`, `[1,]`, `[1] 2`, `[1 2]`, `null`} {
		if _, err := jsonrpc.Elements([]byte(bad)); err == nil {
			t.Errorf("Elements accepts %s", bad)
		}
	}
}

func TestEach(t *testing.T) {
	var texts []string
	err := jsonrpc.Each([]byte(`{"a" : 1,"\u0061":{"b":2},"":[] }`), func(key string, value json.RawMessage) {
		texts = append(texts, key+"="+string(value))
	})
	if want := `a=1|a={"b":2}|=[]`; strings.Join(texts, "|") != want || err != nil {
		t.Errorf("got %s, %v, want %s", strings.Join(texts, "|"), err, want)
	}
}

func TestQuote(t *testing.T) {
	for _, s := range []string{"", "a", "\"\\/\b\n\x00", "<&>\u2028é😀"} {
		text := jsonrpc.Quote(s)
		if back, ok := jsonrpc.Unquote(text); !ok || back != s {
			t.Errorf("Quote(%q) = %s, read back as %q", s, text, back)
		}
	}
	for text, want := range map[string]string{
		`"\ud800"`: "\ufffd", `"a\udfffb"`: "a\ufffdb", `"\ud83d\ude00"`: "😀", `"\ud800\ud83d\ude00"`: "\ufffd😀",
	} {
		if got, ok := jsonrpc.Unquote([]byte(text)); !ok || got != want {
			t.Errorf("Unquote(%s) = %q, %v, want %q", text, got, ok, want)
		}
	}
	for _, text := range []string{``, `"`, `1`, `null`, `{"a":1}`} {
		if s, ok := jsonrpc.Unquote([]byte(text)); ok {
			t.Errorf("Unquote(%s) = %q", text, s)
		}
	}
}
