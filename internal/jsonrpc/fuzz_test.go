package jsonrpc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// FuzzDecode checks that an accepted message is valid JSON for everybody, is written unchanged, and
// is read again as the same message.
func FuzzDecode(f *testing.F) {
	for _, text := range append(agreed, attacks...) {
		f.Add([]byte(text))
	}
	f.Add([]byte(`[{"jsonrpc":"2.0","id":null,"error":{}},` + "\r\n" + `{"jsonrpc":"2.0","method":"a","x":[1,` + "\n" + `2]}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := jsonrpc.Decode(text)
		if err != nil {
			wantUsable(t, err)
			return
		}
		if !json.Valid(text) || !utf8.Valid(text) {
			t.Fatal("accepted what is not JSON")
		}
		wantAliases(t, text, m)
		for e := range m.Each {
			if e.Unusable != nil {
				wantUsable(t, e.Unusable)
				return // Append has no text for it
			}
		}
		line := m.Append(nil)
		if text := m.Text(); !bytes.Equal(text, line) {
			t.Fatalf("Text is %s, Append %s", text, line)
		}
		if bytes.ContainsAny(line, "\r\n") {
			t.Errorf("a line break in %q", line)
		}
		again, err := jsonrpc.Decode(line)
		if err != nil {
			t.Fatalf("Append wrote %q: %v", line, err)
		}
		if second := again.Append(nil); !bytes.Equal(second, line) {
			t.Errorf("%q was read again as %q", line, second)
		}
		if !bytes.ContainsAny(text, "\r\n") && !reflect.DeepEqual(m, again) {
			t.Errorf("%+v was read again as %+v", m, again)
		}
		if own, err := jsonrpc.DecodeOwn(line); err != nil || !reflect.DeepEqual(own, again) {
			t.Errorf("%q is %+v on the other side of a link, %v", line, own, err)
		}
	})
}

// wantUsable checks that the error for a rejected message can be sent.
func wantUsable(t *testing.T, err error) {
	var invalid *jsonrpc.InvalidError
	if !errors.As(err, &invalid) {
		t.Fatalf("error is %T", err)
	}
	if line := jsonrpc.NewError(invalid.ID, invalid.Wire()).Append(nil); !json.Valid(line) || !utf8.Valid(line) {
		t.Errorf("the answer would be %q", line)
	}
}

// wantAliases checks that the raw members of m alias text.
func wantAliases(t *testing.T, text []byte, m *jsonrpc.Message) {
	for _, e := range m.Batch {
		wantAliases(t, text, e)
	}
	for _, raw := range []json.RawMessage{m.Params, m.Result, m.Error, m.ID.Raw()} {
		if !bytes.Contains(text, raw) {
			t.Errorf("%q is no part of %q", raw, text)
		}
	}
}

// FuzzLineReader checks that the lines do not depend on how the bytes arrive, and equal those of a
// simple reader.
func FuzzLineReader(f *testing.F) {
	f.Add([]byte("a\r\n\n{}\n  \nlast"), 100)
	f.Add([]byte("{\"id\":1,\"x\":\"too long\"}\n{}\n{\"x\":\"too long\",\"id\":\"2\"}"), 5)
	f.Fuzz(func(t *testing.T, text []byte, limit int) {
		limit = 1 + (limit&0xffff)%5000
		whole := linesOf(t, bytes.NewReader(text), limit)
		pieces := linesOf(t, iotest.OneByteReader(bytes.NewReader(text)), limit)
		if !slices.Equal(whole, pieces) {
			t.Errorf("%q became %q whole, and %q byte by byte", text, whole, pieces)
		}
		var want []string
		for line := range bytes.SplitSeq(text, []byte("\n")) {
			if len(line) > limit {
				want = append(want, "too long")
			} else if line = bytes.Trim(line, " \t\r\n"); len(line) > 0 {
				want = append(want, string(line))
			}
		}
		if !slices.Equal(whole, want) {
			t.Errorf("%q became %q, want %q", text, whole, want)
		}
	})
}

func linesOf(t *testing.T, r io.Reader, limit int) []string {
	lines := jsonrpc.NewLineReader(r, jsonrpc.Limits{Message: limit})
	var got []string
	for {
		line, err := lines.ReadLine()
		var invalid *jsonrpc.InvalidError
		switch {
		case errors.As(err, &invalid):
			wantUsable(t, err)
			got = append(got, "too long")
		case err == io.EOF:
			return got
		case err != nil:
			t.Fatal(err)
		default:
			got = append(got, string(line))
		}
	}
}

// FuzzSplice checks that finding a value and splicing another one in does what encoding/json does,
// and changes no other byte.
func FuzzSplice(f *testing.F) {
	f.Add([]byte(`{"name":"a","_meta":{"progressToken":1}}`))
	f.Add([]byte(` {"x":[{"name":1}], "n\u0061me" : null ,"_meta":"\ud800"} `))
	f.Add([]byte(`{"name":"a","Name":"b"}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		var at [2]jsonrpc.Span
		err := jsonrpc.Find(doc, jsonrpc.Span{}, at[:], "name", "_meta")
		var members map[string]json.RawMessage
		if err != nil || !utf8.Valid(doc) || json.Unmarshal(doc, &members) != nil {
			return
		}
		for i, key := range []string{"name", "_meta"} {
			if got, want := at[i].Of(doc), members[key]; !bytes.Equal(got, want) {
				t.Errorf("%s in %q is %q, want %q", key, doc, got, want)
			}
		}
		with := []byte(`{"new":[9007199254740993]}`)
		spliced := jsonrpc.Replace(doc, jsonrpc.Edit{Span: at[1], With: with}, jsonrpc.Edit{Span: at[0], With: with})
		for i, key := range []string{"name", "_meta"} {
			if !at[i].IsZero() {
				members[key] = with
			}
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(spliced, &got); err != nil {
			t.Fatalf("%q became %q: %v", doc, spliced, err)
		}
		if members != nil && !reflect.DeepEqual(got, members) {
			t.Errorf("%q became %q", doc, spliced)
		}
	})
}
