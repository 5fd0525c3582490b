package mcp_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

func TestEncodeHeader(t *testing.T) {
	for value, want := range map[string]string{
		"us-west1":             "us-west1",
		"":                     "=?base64??=",
		"a b c":                "a b c",
		"a\tb":                 "=?base64?YQli?=",
		"Hello, 世界":            "=?base64?SGVsbG8sIOS4lueVjA==?=",
		" padded ":             "=?base64?IHBhZGRlZCA=?=",
		"line1\nline2":         "=?base64?bGluZTEKbGluZTI=?=",
		"=?base64?literal?=":   "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
		"=?base64?=":           "=?base64?PT9iYXNlNjQ/PQ==?=",
		"=?BASE64?literal?=":   "=?BASE64?literal?=",
		"=?base64?literal":     "=?base64?literal",
		"\t":                   "=?base64?CQ==?=",
		"file:///a/b%20c.json": "file:///a/b%20c.json",
	} {
		got := mcp.EncodeHeader(value)
		if got != want {
			t.Errorf("%q is encoded as %q, want %q", value, got, want)
		}
		if back, ok := mcp.DecodeHeader(" " + got + "\t"); !ok || back != value {
			t.Errorf("%q comes back as %q, %v", value, back, ok)
		}
	}
}

func TestDecodeHeaderPlain(t *testing.T) {
	for _, header := range []string{"", "a\tb", "=?base64?=", "=?base64?YQ==", "YQ==?=", "=?BASE64?YQ==?="} {
		if got, ok := mcp.DecodeHeader(header); !ok || got != header {
			t.Errorf("%q is decoded as %q, %v", header, got, ok)
		}
	}
}

func TestDecodeHeaderRefuses(t *testing.T) {
	for _, header := range []string{
		"caf\xc3\xa9", "a\x00b", "a\nb", "a\x7f",
		"=?base64?SGVsbG8?=",   // no padding
		"=?base64?SGVs!G8=?=",  // not its alphabet
		"=?base64?SGVsbG9=?=",  // bits after the end
		"=?base64?SGVs bG8=?=", // a space
	} {
		if got, ok := mcp.DecodeHeader(header); ok {
			t.Errorf("%q is decoded as %q", header, got)
		}
	}
}

func FuzzDecodeHeader(f *testing.F) {
	for _, seed := range []string{"", "a", " a", "=?base64?YQ==?=", "=?base64?=", "世界", "\x80", "a\r\nb"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, x string) {
		header := mcp.EncodeHeader(x)
		if strings.Trim(header, " \t") != header || strings.ContainsFunc(header, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') }) {
			t.Fatalf("%q cannot be a header", header)
		}
		if got, ok := mcp.DecodeHeader(header); !ok || got != x {
			t.Fatalf("%q came back as %q, %v", x, got, ok)
		}
		mcp.DecodeHeader(x) // must not fall over
	})
}

func TestMirrors(t *testing.T) {
	schema := `{"type":"object","x-vendor":{"a":[1]},"properties":{
		"region":{"type":"string","x-mcp-header":"Region","description":"\u0041"},
		"x-mcp-header":{"type":"string"},
		"properties":{"type":"object","properties":{"n":{"x\u002dmcp-header":"Count","type":"integer"}}},
		"list":{"type":"array","items":{"type":"object","default":{"x-mcp-header":1}}},
		"on":{"type":"boolean","x-mcp-header":"on!","enum":[{"x-mcp-header":"data"}]}},
		"$defs":{"x-mcp-header":{"type":"string"}}}`
	got, err := mcp.Mirrors(json.RawMessage(schema))
	want := []mcp.Mirror{
		{"Mcp-Param-Region", []string{"region"}, "string"},
		{"Mcp-Param-Count", []string{"properties", "n"}, "integer"},
		{"Mcp-Param-on!", []string{"on"}, "boolean"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, none := range []string{``, `{}`, `true`, `{"description":"\u0041"}`, `{"properties":{"a":{"type":"string"}}}`} {
		if got, err := mcp.Mirrors(json.RawMessage(none)); got != nil || err != nil {
			t.Errorf("%s has %v, %v", none, got, err)
		}
	}
}

func TestMirrorsRefuses(t *testing.T) {
	at := func(property string) string { return `{"type":"object","properties":{"a":` + property + `}}` }
	for name, schema := range map[string]string{
		"empty":        at(`{"type":"string","x-mcp-header":""}`),
		"no string":    at(`{"type":"string","x-mcp-header":5}`),
		"space":        at(`{"type":"string","x-mcp-header":"a b"}`),
		"colon":        at(`{"type":"string","x-mcp-header":"a:b"}`),
		"line break":   at(`{"type":"string","x-mcp-header":"a\r\nb"}`),
		"not ASCII":    at(`{"type":"string","x-mcp-header":"é"}`),
		"number":       at(`{"type":"number","x-mcp-header":"A"}`),
		"object":       at(`{"type":"object","x-mcp-header":"A"}`),
		"no type":      at(`{"x-mcp-header":"A"}`),
		"two types":    at(`{"type":["string","null"],"x-mcp-header":"A"}`),
		"root":         `{"type":"string","x-mcp-header":"A"}`,
		"items":        at(`{"type":"array","items":{"type":"string","x-mcp-header":"A"}}`),
		"in items":     at(`{"items":{"properties":{"b":{"type":"string","x-mcp-header":"A"}}}}`),
		"prefixItems":  at(`{"prefixItems":[{"type":"string","x-mcp-header":"A"}]}`),
		"oneOf":        `{"oneOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}`,
		"then":         `{"then":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`,
		"$defs":        `{"$defs":{"a":{"type":"string","x-mcp-header":"A"}}}`,
		"additional":   `{"additionalProperties":{"type":"string","x-mcp-header":"A"}}`,
		"twice":        at(`{"type":"string","x-mcp-header":"A","x-mcp-header":"B"}`),
		"same name":    `{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`,
		"far too deep": strings.Repeat(`{"properties":{"a":`, 70) + `{"type":"string","x-mcp-header":"A"}` + strings.Repeat(`}}`, 70),
	} {
		if got, err := mcp.Mirrors(json.RawMessage(schema)); err == nil {
			t.Errorf("%s: taken, %v", name, got)
		}
	}
}

func TestMirrorAgrees(t *testing.T) {
	m := mcp.Mirror{Header: "Mcp-Param-A", Path: []string{"o", "a"}}
	one := func(v string) []string { return []string{v} }
	for _, c := range []struct {
		header    []string
		arguments string
		want      bool
	}{
		{one("x"), `{"o":{"a":"x"}}`, true},
		{one(" x\t"), `{"o":{"a":"x","A":"y"}}`, true},
		{one("=?base64?eA==?="), `{"o":{"a":"x"}}`, true},
		{one("=?base64?eA?="), `{"o":{"a":"x"}}`, false},
		{one("X"), `{"o":{"a":"x"}}`, false},
		{[]string{"x", "x"}, `{"o":{"a":"x"}}`, false},
		{one(""), `{"o":{"a":""}}`, true},
		{one("5"), `{"o":{"a":"5"}}`, true},
		{one("5.0"), `{"o":{"a":"5"}}`, false},
		{one("5.0"), `{"o":{"a":5}}`, true},
		{one("5"), `{"o":{"a":5.0}}`, true},
		{one("500"), `{"o":{"a":5e2}}`, true},
		{one("-7"), `{"o":{"a":-7}}`, true},
		{one("0x5"), `{"o":{"a":5}}`, false},
		{one("0x1p2"), `{"o":{"a":4}}`, false},
		{one("5"), `{"o":{"a":6}}`, false},
		{one("9223372036854775807"), `{"o":{"a":9223372036854775807}}`, true},
		{one("9007199254740992.0"), `{"o":{"a":9007199254740993}}`, false},
		{one("12345678901234567890123"), `{"o":{"a":12345678901234567890123}}`, true},
		{one("1.5"), `{"o":{"a":1.5}}`, true},
		{one("true"), `{"o":{"a":true}}`, true},
		{one("True"), `{"o":{"a":true}}`, false},
		{nil, `{"o":{"a":null}}`, true},
		{nil, `{"o":{}}`, true},
		{nil, `{"o":5}`, true},
		{nil, ``, true},
		{one("null"), `{"o":{"a":null}}`, false},
		{one("x"), `{}`, false},
		{nil, `{"o":{"a":"x"}}`, false},
		{nil, `{"o":{"a":{"b":1}}}`, true},
		{one("x"), `{"o":{"a":"x","a":"y"}}`, false},
		{one("y"), `{"o":{"a":"x","a":"y"}}`, false},
	} {
		if got := m.Agrees(c.header, json.RawMessage(c.arguments)); got != c.want {
			t.Errorf("%q with %s: %v", c.header, c.arguments, got)
		}
		if v, ok := m.Value(json.RawMessage(c.arguments)); ok && !m.Agrees(one(v), json.RawMessage(c.arguments)) {
			t.Errorf("%q does not agree with %s", v, c.arguments)
		}
	}
}

func TestMirrorValue(t *testing.T) {
	m := mcp.Mirror{Path: []string{"a"}}
	for arguments, want := range map[string]string{
		`{"a":"x"}`: "x", `{"a":" x"}`: "=?base64?IHg=?=", `{"a":"\u00e9"}`: "=?base64?w6k=?=",
		`{"a":42}`: "42", `{"a":42.0}`: "42", `{"a":4.2e1}`: "42", `{"a":-7}`: "-7", `{"a":false}`: "false", `{"a":1.5}`: "1.5",
		`{"a":12345678901234567890123}`: "12345678901234567890123",
	} {
		if got, ok := m.Value(json.RawMessage(arguments)); !ok || got != want {
			t.Errorf("%s: %q, %v", arguments, got, ok)
		}
	}
	for _, none := range []string{``, `{}`, `{"a":null}`, `{"a":[1]}`, `{"a":{}}`, `[]`, `{"a":1,"a":2}`} {
		if got, ok := m.Value(json.RawMessage(none)); ok {
			t.Errorf("%s: %q", none, got)
		}
	}
}

// A tool with more headers than servers accept is unusable, and is rejected quickly.
func TestManyMirrors(t *testing.T) {
	properties := func(n int) json.RawMessage {
		var text []string
		for i := range n {
			text = append(text, fmt.Sprintf(`"p%d":{"type":"string","x-mcp-header":"H%d"}`, i, i))
		}
		return json.RawMessage(`{"type":"object","properties":{` + strings.Join(text, ",") + `}}`)
	}
	if found, err := mcp.Mirrors(properties(128)); err != nil || len(found) != 128 {
		t.Errorf("%d mirrors, %v", len(found), err)
	}
	if _, err := mcp.Mirrors(properties(100_000)); err == nil {
		t.Error("100,000 mirrors are no error")
	}
}
