package jsonrpc_test

import (
	"encoding/json"
	"fmt"
	"testing"

	segmentio "github.com/segmentio/encoding/json"
	"github.com/tidwall/gjson"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A reading is the request that a peer sees in a message. Values are comparable JSON text, "" for
// absent.
type reading struct{ method, id, name, token string }

// ours returns the proxy's reading; false if the message is rejected.
func ours(text []byte) (reading, bool) {
	m, err := jsonrpc.Decode(text)
	if err != nil || m.Batch != nil {
		return reading{}, false
	}
	var at [2]jsonrpc.Span
	if jsonrpc.Find(m.Params, jsonrpc.Span{}, at[:], "name", "_meta") != nil {
		return reading{}, false
	}
	var token [1]jsonrpc.Span
	if !at[1].IsZero() && jsonrpc.Find(m.Params, at[1], token[:], "progressToken") != nil {
		return reading{}, false
	}
	return reading{m.Method, comparable(m.ID.Raw()), comparable(at[0].Of(m.Params)), comparable(token[0].Of(m.Params))}, true
}

// comparable returns one spelling for all spellings of a JSON value. It treats lone surrogates as
// encoding/json does.
func comparable(text []byte) string {
	if len(text) == 0 || string(text) == "null" {
		return "" // to a struct field of Go, null and absent are one
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return string(text) // a number beyond float64 stays as it is written
	}
	if _, ok := v.(float64); ok {
		return string(text)
	}
	return fmt.Sprintf("%#v", v)
}

// A parser reads a message like some peers do.
type parser struct {
	name string
	read func(text []byte) (reading, error)
}

var parsers = []parser{
	{"encoding/json", func(text []byte) (reading, error) { return readStruct(json.Unmarshal, text) }},
	{"encoding/json maps", func(text []byte) (reading, error) { return readMaps(json.Unmarshal, text) }},
	{"segmentio", func(text []byte) (reading, error) { return readStruct(segmentio.Unmarshal, text) }},
	{"gjson", readGJSON},
}

type unmarshal func([]byte, any) error

// readStruct reads like servers in Go: keys in any case, the last one wins.
func readStruct(unmarshal unmarshal, text []byte) (reading, error) {
	var envelope struct {
		Method string          `json:"method"`
		ID     json.RawMessage `json:"id"`
		Params json.RawMessage `json:"params"`
	}
	if err := unmarshal(text, &envelope); err != nil {
		return reading{}, err
	}
	r := reading{method: envelope.Method, id: comparable(envelope.ID)}
	var params struct {
		Name json.RawMessage `json:"name"`
		Meta json.RawMessage `json:"_meta"`
	}
	if len(envelope.Params) == 0 || unmarshal(envelope.Params, &params) != nil {
		return r, nil // params may be an array
	}
	var meta struct {
		Token json.RawMessage `json:"progressToken"`
	}
	if len(params.Meta) > 0 && unmarshal(params.Meta, &meta) != nil {
		meta.Token = nil
	}
	r.name, r.token = comparable(params.Name), comparable(meta.Token)
	return r, nil
}

// readMaps reads like scripting languages: exact keys, the last one wins.
func readMaps(unmarshal unmarshal, text []byte) (reading, error) {
	var envelope, params, meta map[string]json.RawMessage
	if err := unmarshal(text, &envelope); err != nil {
		return reading{}, err
	}
	r := reading{id: comparable(envelope["id"])}
	if len(envelope["method"]) > 0 {
		unmarshal(envelope["method"], &r.method)
	}
	if len(envelope["params"]) > 0 && unmarshal(envelope["params"], &params) == nil {
		r.name = comparable(params["name"])
		if len(params["_meta"]) > 0 && unmarshal(params["_meta"], &meta) == nil {
			r.token = comparable(meta["progressToken"])
		}
	}
	return r, nil
}

// readGJSON reads like many gateways: exact keys, the first one wins.
func readGJSON(text []byte) (reading, error) {
	raw := func(path string) string { return comparable([]byte(gjson.GetBytes(text, path).Raw)) }
	r := reading{gjson.GetBytes(text, "method").String(), raw("id"), "", ""}
	if gjson.GetBytes(text, "params").IsObject() {
		r.name = raw("params.name")
	}
	if gjson.GetBytes(text, "params._meta").IsObject() {
		r.token = raw("params._meta.progressToken")
	}
	return r, nil
}

// agree fails unless the parsers read text as we do, in the original and as Append writes it.
// Rejected messages are skipped.
func agree(t *testing.T, text []byte) (accepted bool) {
	t.Helper()
	want, ok := ours(text)
	if !ok {
		return false
	}
	m, _ := jsonrpc.Decode(text)
	for _, form := range [][]byte{text, m.Append(nil)} {
		for _, p := range parsers {
			got, err := p.read(form)
			if err != nil {
				t.Errorf("we accept %q, %s says: %v", form, p.name, err)
			} else if got != want {
				t.Errorf("%q\nwe read         %+v\n%s reads %+v", form, want, p.name, got)
			}
		}
	}
	return true
}

// Messages that all parsers read alike, however odd they look.
var agreed = []string{
	`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{"progressToken":"t"}}}`,
	`{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"_meta":{"progressToken":9007199254740993},"name":"a"}}`,
	`{"jsonrpc":"2.0","id":1e2,"m\u0065thod":"tools\/call","params":{"n\u0061me":"\u0061\ud83d\ude00"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"arguments":{"name":"b","name":"c","Name":"d","_meta":{"progressToken":1}},"name":"a"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\"name\":\"b\"","name":"a"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\\","name":"a","y":"\\\""}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"":1,"name ":"b"," name":"c","na me":"d"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":["name","b"]}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":null}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":{"name":"b"},"_meta":[{"progressToken":1}]}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"\u0000"},"x":{"method":"b"}}`,
	`{"jsonrpc":"2.0","id":-0.0,"result":{"method":"a","id":2}}`,
}

// Messages that parsers read differently, or that a lenient parser would accept.
var attacks = []string{
	// duplicates: gjson takes the first, others take the last
	`{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call"}`,
	`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a"},"params":{"name":"b"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a","name":"b"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a","n\u0061me":"b"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a","_meta":{"progressToken":1},"_meta":{"progressToken":2}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a","_meta":{"progressToken":1,"progressToken":2}}}`,
	// keys in another case: encoding/json accepts them
	`{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}`,
	`{"jsonrpc":"2.0","id":1,"METHOD":"tools/call","method":"ping"}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a"},"Params":{"name":"b"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a"},"param` + "\u017f" + `":{"name":"b"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a"},"param\u017f":{"name":"b"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a","NAME":"b"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"name":"a","n\u0041me":"b"}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressTo` + "\u212a" + `en":1}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"_meta":{"progressToken":1,"progress\u0054o\u212aen":2}}}`,
	`{"jsonrpc":"2.0","id":1,"method":"a","params":{"_META":{"progressToken":1}}}`,
	// two kinds of message in one
	`{"jsonrpc":"2.0","id":1,"method":"a","result":{}}`,
	`{"jsonrpc":"2.0","id":1,"method":null,"result":{}}`,
	`{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"a"}}`,
	// text after which only some parsers stop
	`{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"tools/call"}`,
	`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\x00",
	`{"jsonrpc":"2.0","id":1,"method":"ping","x":"a` + "\n" + `"}`,
	`{"jsonrpc":"2.0","id":1,"method":"ping"/*,"method":"tools/call"*/}`,
	`{"jsonrpc":"2.0","id":1,"method":"ping",}`,
	`{"jsonrpc":"2.0","id":1,"method":'ping'}`,
	`{"jsonrpc":"2.0","id":1,"method":"p\x69ng"}`,
	`{"jsonrpc":"2.0","id":1,"method":"ping","x":NaN}`,
	`{"jsonrpc":"2.0","id":1,"method":"ping","x":01}`,
	"\ufeff" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
	// bytes that one parser drops and another replaces
	"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\",\"params\":{\"name\":\"a\xff\"}}",
	"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\",\"params\":{\"name\":\"a\",\"na\xffme\":\"b\"}}",
	"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xc0\xaf\"}",
}

func TestSmuggling(t *testing.T) {
	for _, text := range agreed {
		if !agree(t, []byte(text)) {
			t.Errorf("refused: %s", text)
		}
	}
	for _, text := range attacks {
		if r, ok := ours([]byte(text)); ok {
			t.Errorf("accepted: %s as %+v", text, r)
		}
	}
}

func FuzzSmuggling(f *testing.F) {
	for _, text := range append(agreed, attacks...) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { agree(t, text) })
}
