package eras

import (
	"encoding/json"
	"testing"
)

func TestDigestIsOfWhatIsAsked(t *testing.T) {
	digest := func(method, params string) [32]byte { return digestOf(method, json.RawMessage(params)) }
	of := digest("tools/call", `{"name":"a","arguments":{"x":[1,{"b":1,"a":"é"}],"y":9007199254740993}}`)
	same := digest("tools/call", ` { "arguments" : {"y":9007199254740993, "x":[1,{"a":"\u00e9","b":1}]},"_meta":{"v":1},"name":"\u0061","requestState":"s","inputResponses":{}}`)
	if same != of {
		t.Error("written anew it is another")
	}
	for _, other := range []string{
		`{"name":"b","arguments":{"x":[1,{"b":1,"a":"é"}],"y":9007199254740993}}`,
		`{"name":"a","arguments":{"x":[1,{"b":1,"a":"é"}],"y":9007199254740992}}`,
		`{"name":"a","arguments":{"x":[{"b":1,"a":"é"},1],"y":9007199254740993}}`,
		`{"uri":"a","arguments":{"x":[1,{"b":1,"a":"é"}],"y":9007199254740993}}`,
		`{"name":"a"}`, `{"name":"a","arguments":{}}`, ``,
	} {
		if digest("tools/call", other) == of {
			t.Errorf("the same as %s", other)
		}
	}
	if digest("prompts/get", `{"name":"a"}`) == digest("tools/call", `{"name":"a"}`) {
		t.Error("the method does not count")
	}
}
