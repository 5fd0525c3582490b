//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// The schema of the tool types key=value. Unknown keys are refused if the schema allows no
// others.
func TestToolArguments(t *testing.T) {
	const schema = `{"type":"object","required":["n"],"$defs":{"Color":{"type":"string","enum":["red"]},"Self":{"$ref":"#/$defs/Self"}},"properties":{
		"s":{"type":"string"},"n":{"type":"integer"},"f":{"type":"number"},"b":{"type":"boolean"},
		"maybe":{"anyOf":[{"type":"integer"},{"type":"null"}]},"or":{"type":["string","integer"]},
		"list":{"type":"array","items":{"type":"integer"}},"names":{"anyOf":[{"type":"array","items":{"type":"string"}},{"type":"null"}]},
		"o":{"type":"object"},"color":{"$ref":"#/$defs/Color"},"self":{"$ref":"#/$defs/Self"},"any":{},"enum":{"enum":[1,2]},"x:":{"type":"string"}}}`
	for words, want := range map[string]string{
		``:                    `{}`,
		`s=1`:                 `{"s":"1"}`,
		`s=`:                  `{"s":""}`,
		`s=a=b`:               `{"s":"a=b"}`,
		`n=9007199254740993`:  `{"n":9007199254740993}`,
		`n=1.5`:               `! n: "1.5" is not of the type that the tool takes: integer`,
		`n=x`:                 `! n: "x" is not of the type that the tool takes: integer`,
		`f=1e3|b=true|n=-1`:   `{"f":1e3,"b":true,"n":-1}`,
		`b=yes`:               `! b: "yes" is not of the type that the tool takes: boolean`,
		`maybe=null`:          `{"maybe":null}`,
		`maybe=3`:             `{"maybe":3}`,
		`or=3`:                `{"or":3}`,
		`or=three`:            `{"or":"three"}`,
		`list=1`:              `{"list":[1]}`,
		`list=1|list=2`:       `{"list":[1,2]}`,
		`list=[1,2]`:          `{"list":[1,2]}`,
		`list=a`:              `! list: "a" is not of the type that the tool takes: integer`,
		`names=a|s=1|names=2`: `{"names":["a","2"],"s":"1"}`,
		`names=null`:          `{"names":null}`,
		`o={"a":1}`:           `{"o":{"a":1}}`,
		`o=1`:                 `! o: "1" is not of the type that the tool takes: object`,
		`color=red`:           `{"color":"red"}`,
		`self=1`:              `{"self":"1"}`,
		`any=1`:               `{"any":"1"}`,
		`any:=1`:              `{"any":1}`,
		`any:={`:              `! any: "{" is not JSON`,
		`x:=1`:                `{"x:":"1"}`,
		`enum=2`:              `{"enum":2}`,
		`s=1|s=2`:             `! s is given twice, but is not an array`,
		`nn=1`:                `! the tool takes no nn; did you mean n?`,
		`something=1`:         `! the tool takes no something, but any, b, color, enum, f, list, maybe, n, names, o, or, s, self, x:; a JSON object goes as it is`,
		`=1`:                  `! "=1" is neither key=value nor a JSON object`,
		`word`:                `! "word" is neither key=value nor a JSON object`,
		`{"nn": 1.0}`:         `{"nn": 1.0}`,
		`{"nn": 1.0} {}`:      `! the arguments are not one JSON object`,
		`-`:                   `{"from": "stdin"}`,
		"s=\xff":              `! "s=\xff" is not UTF-8`,
		`s="quoted"|f=` + strings.Repeat("9", 30): `{"s":"\"quoted\"","f":` + strings.Repeat("9", 30) + `}`,
	} {
		var all []string
		if words != "" {
			all = strings.Split(words, "|")
		}
		got, err := toolArguments(all, json.RawMessage(schema), strings.NewReader("\ufeff {\"from\": \"stdin\"}\n"))
		text := string(got)
		if err != nil {
			text = "! " + err.Error()
		}
		if text != want {
			t.Errorf("%s\ngot  %s\nwant %s", words, text, want)
		}
	}
	manifold := `{"$defs":{"v":{"anyOf":[` + strings.Repeat(`{"$ref":"#/$defs/v"},`, 40) + `{}]}},"properties":{"x":{"$ref":"#/$defs/v"},"n":{"type":"integer"}}}`
	if _, err := toolArguments([]string{"n=1", "x=1"}, json.RawMessage(manifold), nil); err == nil || err.Error() != "x: its schema refers to too many others: give a JSON object, or x:=JSON" {
		t.Errorf("endless references: %v", err)
	}
	if got, err := toolArguments([]string{"n=1", "x:=1"}, json.RawMessage(manifold), nil); err != nil || string(got) != `{"n":1,"x":1}` {
		t.Errorf("JSON in spite of endless references: %s, %v", got, err)
	}
	if got, err := toolArguments([]string{"a=1"}, nil, nil); err != nil || string(got) != `{"a":"1"}` {
		t.Errorf("without a schema: %s, %v", got, err)
	}
}

// A terminal obeys nothing in the text of a server.
func TestPrintable(t *testing.T) {
	if got := printable("a\x1b[31m\tb\r\u202e\r\n\u00e4\xff\u009b\x7f\xe2\x82"); got != `a\u001b[31m b\u000d\u202e`+"\n\u00e4\ufffd"+`\u009b\u007f`+"\ufffd" {
		t.Errorf("%q", got)
	}
	if got := oneLine(" \u00e4bcdef\nnext", 4); got != "\u00e4bc…" {
		t.Errorf("%q", got)
	}
}

func FuzzToolArguments(f *testing.F) {
	f.Add("a=1", `{"properties":{"a":{"type":"integer"}}}`)
	f.Add(`a:={"b":1}`, `{"properties":{"a":{"$ref":"#/properties/a"}}}`)
	f.Add("unknown=", `{"properties":{"":{}}}`)
	f.Fuzz(func(t *testing.T, word, schema string) {
		got, err := toolArguments([]string{word}, json.RawMessage(schema), strings.NewReader(""))
		if err == nil && !json.Valid(got) {
			t.Errorf("%q makes %q", word, got)
		}
	})
}
