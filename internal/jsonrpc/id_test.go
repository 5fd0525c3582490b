package jsonrpc_test

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestParseID(t *testing.T) {
	tests := []struct {
		text  string
		ok    bool
		n     int64
		isInt bool
	}{
		{`1`, true, 1, true},
		{`-1`, true, -1, true},
		{`0`, true, 0, true},
		{`1.0`, true, 1, true},
		{`1e2`, true, 100, true},
		{`-0.0`, true, 0, true},
		{`9007199254740993`, true, 9007199254740993, true}, // 2^53+1: no float64 on the way
		{`9223372036854775807`, true, 9223372036854775807, true},
		{`9223372036854775808`, true, 0, false}, // an id, though none of ours
		{`1e300`, true, 0, false},
		{`"1"`, true, 0, false},
		{`""`, true, 0, false},
		{`"\u0031"`, true, 0, false},
		{`"\ud800"`, true, 0, false},
		{`1.5`, false, 0, false},
		{`1e-2`, false, 0, false},
		{`1e999`, false, 0, false},
		{`null`, false, 0, false},
		{`true`, false, 0, false},
		{`{}`, false, 0, false},
		{`[1]`, false, 0, false},
		{``, false, 0, false},
	}
	for _, tt := range tests {
		id, ok := jsonrpc.ParseID([]byte(tt.text))
		if ok != tt.ok {
			t.Errorf("ParseID(%s) ok = %v, want %v", tt.text, ok, tt.ok)
		}
		if !ok {
			continue
		}
		if id.String() != tt.text || string(id.Raw()) != tt.text || id.IsZero() {
			t.Errorf("ParseID(%s) came back as %s", tt.text, id)
		}
		if n, isInt := id.Int(); n != tt.n || isInt != tt.isInt {
			t.Errorf("ID(%s).Int() = %d, %v, want %d, %v", tt.text, n, isInt, tt.n, tt.isInt)
		}
	}
}

// An id keeps its JSON type and spelling, so that different ids are different keys of a map.
func TestIDsAreDistinct(t *testing.T) {
	seen := map[jsonrpc.ID]string{}
	for _, text := range []string{`1`, `"1"`, `1.0`, `1e0`, `"\u0031"`} {
		id, _ := jsonrpc.ParseID([]byte(text))
		if other, taken := seen[id]; taken {
			t.Errorf("%s and %s are one id", text, other)
		}
		seen[id] = text
	}
	if one, _ := jsonrpc.ParseID([]byte(`1`)); one != jsonrpc.IntID(1) {
		t.Error("1 is not IntID(1)")
	}
}

func TestIDAnswered(t *testing.T) {
	for text, want := range map[string]int64{`5`: 5, `5.0`: 5, `"5"`: 5, `"x"`: -1, `""`: -1, `"\u0035"`: -1, `"5\""`: -1} {
		id, _ := jsonrpc.ParseID([]byte(text))
		if n, ok := id.Answered(); ok != (want >= 0) || ok && n != want {
			t.Errorf("ID(%s).Answered() = %d, %v", text, n, ok)
		}
	}
}
