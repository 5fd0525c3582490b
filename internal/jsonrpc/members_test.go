package jsonrpc

import (
	"encoding/json"
	"testing"
)

func TestSet(t *testing.T) {
	for _, c := range []struct {
		object, want string
		values       []Value
	}{
		{`{"a":1,"b":2,"c":3}`, `{"a":1}`, []Value{{"b", nil}, {"c", nil}}},
		{`{"a":1,"b":2,"c":3}`, `{"b":2}`, []Value{{"a", nil}, {"c", nil}}},
		{`{ "a" : 1e2 , "b" : [ 2 ] }`, `{"a":1e2,"b":7,"z":8}`, []Value{{"b", json.RawMessage("7")}, {"z", json.RawMessage("8")}}},
		{`{"\u0061":1,"x\"y":2}`, `{"\u0061":5,"x\"y":2}`, []Value{{"a", json.RawMessage("5")}}},
		{`{"a":1,"a":2}`, `{"a":5}`, []Value{{"a", json.RawMessage("5")}}},
		{`{"a":1}`, `{"a":1}`, []Value{{"q", nil}}},
		{`{}`, `{"k":"v"}`, []Value{{"k", json.RawMessage(`"v"`)}}},
		{``, `{"k":"v"}`, []Value{{"k", json.RawMessage(`"v"`)}}},
		{`null`, `{}`, nil},
		{`[1]`, `{"k":1}`, []Value{{"k", json.RawMessage(`1`)}}},
		{`{"a":1,"b"`, `{"k":1}`, []Value{{"a", json.RawMessage(`9`)}, {"a", nil}, {"k", json.RawMessage(`1`)}}[1:]},
	} {
		before := string(c.object)
		if got := string(Set(json.RawMessage(c.object), c.values...)); got != c.want {
			t.Errorf("Set(%s, %v) = %s, want %s", c.object, c.values, got, c.want)
		}
		if before != c.object {
			t.Errorf("Set wrote to %s", before)
		}
	}
}

func TestSetOfNilIsAnObject(t *testing.T) {
	if got := Set(nil); string(got) != `{}` {
		t.Errorf("Set(nil) = %s", got)
	}
}
