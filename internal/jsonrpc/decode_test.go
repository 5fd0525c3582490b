package jsonrpc_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestDecodeKinds(t *testing.T) {
	tests := []struct {
		text                            string
		request, notification, response bool
	}{
		{`{"jsonrpc":"2.0","id":1,"method":"ping"}`, true, false, false},
		{`{"method":"ping","id":"a","jsonrpc":"2.0","params":{}}`, true, false, false},
		{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, false, true, false},
		{`{"jsonrpc":"2.0","id":1,"result":null}`, false, false, true},
		{`{"jsonrpc":"2.0","result":{},"id":1}`, false, false, true},
		{`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}`, false, false, true},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`, false, false, true},
		{`{"jsonrpc":"2.0","error":{"code":1,"message":""}}`, false, false, true},
		{" \t\r\n{\"jsonrpc\" : \"2\\u002e0\", \"id\":1, \"met\\u0068od\":\"pi\\u006eg\"} \r\n", true, false, false},
	}
	for _, tt := range tests {
		m, err := jsonrpc.Decode([]byte(tt.text))
		if err != nil {
			t.Errorf("Decode(%s): %v", tt.text, err)
			continue
		}
		if m.IsRequest() != tt.request || m.IsNotification() != tt.notification || m.IsResponse() != tt.response {
			t.Errorf("Decode(%s): request %v, notification %v, response %v",
				tt.text, m.IsRequest(), m.IsNotification(), m.IsResponse())
		}
	}
}

const (
	parseError     = jsonrpc.CodeParseError
	invalidRequest = jsonrpc.CodeInvalidRequest
)

func TestDecodeRefuses(t *testing.T) {
	tests := []struct {
		name, text string
		code       int
		id         string // what is still known of the message
		reply      bool
	}{
		{"empty", ``, parseError, ``, false},
		{"blank", " \n", parseError, ``, false},
		{"garbage", `hello`, parseError, ``, false},
		{"byte order mark", "\ufeff" + `{"jsonrpc":"2.0","method":"a"}`, parseError, ``, false},
		{"cut short", `{"jsonrpc":"2.0","id":1,"method":"a`, parseError, `1`, false},
		{"trailing data", `{"jsonrpc":"2.0","method":"a"} x`, parseError, ``, false},
		{"two messages", `{"jsonrpc":"2.0","method":"a"}{"jsonrpc":"2.0","method":"b"}`, parseError, ``, false},
		{"trailing comma", `{"jsonrpc":"2.0","id":1,"result":{},}`, parseError, `1`, true},
		{"single quotes", `{'jsonrpc':'2.0'}`, parseError, ``, false},
		{"control character", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"a\x01\"}", parseError, `1`, false},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\xff\"}", parseError, `1`, true},
		{"overlong UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"\xc0\xaf\"}", parseError, `2`, false},
		{"surrogate in UTF-8", "{\"jsonrpc\":\"2.0\",\"method\":\"\xed\xa0\x80\"}", parseError, ``, false},
		{"invalid UTF-8 in the id", "{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"a\"}", parseError, ``, false},
		{"two values for an id", `{"jsonrpc":"2.0","id":"a" "b","method":"a"}`, parseError, ``, false},
		{"leading zero in an id", `{"jsonrpc":"2.0","id":01,"method":"a"}`, parseError, ``, false},

		{"number", `1`, invalidRequest, ``, false},
		{"string", `"a"`, invalidRequest, ``, false},
		{"null", `null`, invalidRequest, ``, false},
		{"empty object", `{}`, invalidRequest, ``, false},
		{"no version", `{"id":1,"method":"a"}`, invalidRequest, `1`, false},
		{"version 1.0", `{"jsonrpc":"1.0","id":1,"method":"a"}`, invalidRequest, `1`, false},
		{"version as a number", `{"jsonrpc":2.0,"id":1,"method":"a"}`, invalidRequest, `1`, false},
		{"null id", `{"jsonrpc":"2.0","id":null,"method":"a"}`, invalidRequest, ``, false},
		{"null id of a result", `{"jsonrpc":"2.0","id":null,"result":1}`, invalidRequest, ``, true},
		{"fractional id", `{"jsonrpc":"2.0","id":1.5,"method":"a"}`, invalidRequest, ``, false},
		{"boolean id", `{"jsonrpc":"2.0","id":true,"method":"a"}`, invalidRequest, ``, false},
		{"object id", `{"jsonrpc":"2.0","id":{},"method":"a"}`, invalidRequest, ``, false},
		{"result without id", `{"jsonrpc":"2.0","result":1}`, invalidRequest, ``, true},
		{"neither", `{"jsonrpc":"2.0","id":1}`, invalidRequest, `1`, true},
		{"params alone", `{"jsonrpc":"2.0","id":1,"params":{}}`, invalidRequest, `1`, false},
		{"null method", `{"jsonrpc":"2.0","id":1,"method":null}`, invalidRequest, `1`, false},
		{"empty method", `{"jsonrpc":"2.0","id":1,"method":""}`, invalidRequest, `1`, false},
		{"number as method", `{"jsonrpc":"2.0","id":1,"method":1}`, invalidRequest, `1`, false},
		{"string as params", `{"jsonrpc":"2.0","id":1,"method":"a","params":"b"}`, invalidRequest, `1`, false},
		{"method and result", `{"jsonrpc":"2.0","id":1,"method":"a","result":1}`, invalidRequest, `1`, false},
		{"method and error", `{"jsonrpc":"2.0","id":1,"method":"a","error":{}}`, invalidRequest, `1`, false},
		{"result and error", `{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`, invalidRequest, `1`, true},
		{"params in a response", `{"jsonrpc":"2.0","id":1,"result":1,"params":{}}`, invalidRequest, `1`, true},
		{"null error", `{"jsonrpc":"2.0","id":1,"error":null}`, invalidRequest, `1`, true},

		{"empty batch", `[]`, invalidRequest, ``, false},
		{"batch cut short", `[{"jsonrpc":"2.0","method":"a"}`, parseError, ``, false},
		{"endless batch", `[` + strings.Repeat(`{"jsonrpc":"2.0","method":"a"},`, 1024) + `{"jsonrpc":"2.0","method":"a"}]`, invalidRequest, ``, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := jsonrpc.Decode([]byte(tt.text))
			if err == nil {
				t.Fatalf("accepted as %s", m.Append(nil))
			}
			var invalid *jsonrpc.InvalidError
			if !errors.As(err, &invalid) {
				t.Fatalf("error is %T, want *InvalidError", err)
			}
			if invalid.Code != tt.code || invalid.ID.String() != tt.id || invalid.Reply != tt.reply {
				t.Errorf("got code %d id %q reply %v (%v), want %d %q %v",
					invalid.Code, invalid.ID, invalid.Reply, err, tt.code, tt.id, tt.reply)
			}
			if wire := invalid.Wire(); wire.Code != tt.code || wire.Message == "" {
				t.Errorf("Wire() = %+v", wire)
			}
		})
	}
}

// Each envelope key must be unique and spelled exactly, because peers on encoding/json take the
// last of a duplicate, and any case.
func TestDecodeEnvelopeKeys(t *testing.T) {
	const request = `{"jsonrpc":"2.0","id":1,"method":"a","params":{}`
	const response = `{"jsonrpc":"2.0","id":1,"result":{}`
	tests := []string{
		request + `,"jsonrpc":"2.0"}`,
		request + `,"id":2}`,
		request + `,"i\u0064":2}`,
		request + `,"method":"b"}`,
		request + `,"params":{"b":1}}`,
		request + `,"ID":2}`,
		request + `,"Id":null}`,
		request + `,"Method":"b"}`,
		request + `,"METHOD":"b"}`,
		request + `,"m\u0045thod":"b"}`,
		request + `,"Params":{}}`,
		request + `,"param` + "\u017f" + `":{}}`, // ſ folds to s
		request + `,"param\u017f":{}}`,
		request + `,"j` + "\u017f" + `onrpc":"2.0"}`,
		request + `,"Result":{}}`,
		request + `,"Error":{}}`,
		response + `,"re` + "\u017f" + `ult":1}`,
		response + `,"result":1}`,
		response + `,"Error":{}}`,
		response + `,"Method":"a"}`,
		`{"JSONRPC":"2.0","id":1,"method":"a"}`,
		`{"jsonrpc":"2.0","id":1,"Method":"a"}`,
	}
	for _, text := range tests {
		m, err := jsonrpc.Decode([]byte(text))
		var invalid *jsonrpc.InvalidError
		if !errors.As(err, &invalid) || invalid.Code != invalidRequest {
			t.Errorf("Decode(%s) = %v, %v, want it refused", text, m, err)
		}
	}
}

func TestDecodeDepth(t *testing.T) {
	nested := func(depth int) []byte { // the message itself is one level
		return []byte(`{"jsonrpc":"2.0","id":5,"result":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`)
	}
	if _, err := jsonrpc.Decode(nested(1000)); err != nil {
		t.Errorf("1000 levels: %v", err)
	}
	var invalid *jsonrpc.InvalidError
	if _, err := jsonrpc.Decode(nested(1001)); !errors.As(err, &invalid) || invalid.ID.String() != "5" || !invalid.Reply {
		t.Errorf("1001 levels: %+v", err)
	}
	if _, err := jsonrpc.Decode(nested(5_000_000)); err == nil {
		t.Error("5,000,000 levels accepted")
	}
	if _, err := (jsonrpc.Limits{Depth: 3}).Decode(nested(4)); err == nil {
		t.Error("4 levels accepted with a limit of 3")
	}
	// Brackets in strings, and many siblings, do not count as nesting.
	wide := `{"jsonrpc":"2.0","id":5,"result":["` + strings.Repeat(`[{\"`, 2000) + `"` + strings.Repeat(`,[]`, 2000) + `]}`
	if _, err := jsonrpc.Decode([]byte(wide)); err != nil {
		t.Errorf("wide and flat: %v", err)
	}
}

// Append writes what Decode accepts, with every value byte for byte, in the order of the envelope,
// on one line.
func TestRoundTrip(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"as it is", `{"jsonrpc":"2.0","id":1,"method":"a","params":{}}`, ``},
		{"string id with escapes", `{"jsonrpc":"2.0","id":"\u0041\/","method":"a"}`, ``},
		{"big integer id", `{"jsonrpc":"2.0","id":9007199254740993,"result":{}}`, ``},
		{"exponent id", `{"jsonrpc":"2.0","id":1e2,"result":{}}`, ``},
		{"numbers", `{"jsonrpc":"2.0","id":1,"result":[9007199254740993,1.50,-0.0,1E+2,1e400]}`, ``},
		{"escapes", `{"jsonrpc":"2.0","id":1,"result":"\u0041\ud800\udc00\/<>&\u2028"}`, ``},
		{"lone surrogates", `{"jsonrpc":"2.0","id":1,"result":{"\ud800":"\udfff x"}}`, ``},
		{"duplicates deep inside", `{"jsonrpc":"2.0","id":1,"result":{"k":1,"K":2,"k":{"k":3,"k":4}}}`, ``},
		{"null params", `{"jsonrpc":"2.0","id":1,"method":"a","params":null}`, ``},
		{"error data", `{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m","data":[1e9],"x":1}}`, ``},
		{"batch", `[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"b"}]`, ``},
		{"unknown members", `{"trace":[1.0],"jsonrpc":"2.0","meta":{"a":1,"a":2},"id":1,"result":{}}`,
			`{"jsonrpc":"2.0","id":1,"trace":[1.0],"meta":{"a":1,"a":2},"result":{}}`},
		{"line breaks", "{\r\n \"jsonrpc\": \"2.0\",\n \"id\": 1, \"x\" :\n1, \"result\": {\r\n  \"a\": [1,\n2]\n}\n}",
			`{"jsonrpc":"2.0","id":1,"x" : 1,"result":{    "a": [1, 2] }}`},
		{"null id", `{"jsonrpc":"2.0","id":null,"error":{}}`, `{"jsonrpc":"2.0","error":{}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.want == "" {
				tt.want = tt.text
			}
			m, err := jsonrpc.Decode([]byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if m.Len() != len(tt.want) {
				t.Errorf("Len is %d, want %d", m.Len(), len(tt.want))
			}
			if got := string(m.Text()); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// An unusable element takes nothing from the others of its batch.
func TestUnusableElements(t *testing.T) {
	m, err := jsonrpc.Decode([]byte(`[1,{"jsonrpc":"2.0","method":"a"},[{"jsonrpc":"2.0","method":"b"}],{"jsonrpc":"2.0","id":7}]`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for e := range m.Each {
		if e.Unusable != nil {
			got = append(got, fmt.Sprintf("%s id %q reply %v", e.Unusable.Wire().Message, e.Unusable.ID, e.Unusable.Reply))
		} else {
			got = append(got, e.Method)
		}
	}
	const noObject = `Invalid request: batch element is not an object id "" reply false`
	want := []string{noObject, "a", noObject, `Invalid request: no "method", "result" or "error" id "7" reply true`}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestErrorWithoutID(t *testing.T) {
	m := jsonrpc.NewError(jsonrpc.ID{}, &jsonrpc.Error{Code: -32700, Message: "Parse error"})
	if got, want := string(m.Append(nil)), `{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The error objects, byte for byte.
func TestErrorObjects(t *testing.T) {
	tests := []struct {
		err  *jsonrpc.Error
		want string
	}{
		{jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, "files", jsonrpc.SignalCause("killed"), jsonrpc.InFlight),
			`{"code":-32603,"message":"Connection closed: files was killed (signal: killed)","data":{"reason":"connection_closed","upstream":"files","cause":"signal: killed","phase":"in_flight","retryable":false}}`},
		{jsonrpc.ConnectionClosed(jsonrpc.CodeConnectionClosed, "", jsonrpc.Cause{}, jsonrpc.NotSent),
			`{"code":-32000,"message":"Connection closed: this session is over","data":{"reason":"connection_closed","phase":"not_sent","retryable":true}}`},
		{jsonrpc.TimedOut("files"),
			`{"code":-32603,"message":"Request timed out","data":{"reason":"timeout","upstream":"files","phase":"in_flight","retryable":false}}`},
		{jsonrpc.Overloaded("files"),
			`{"code":-32603,"message":"Too many requests in flight","data":{"reason":"overloaded","upstream":"files","phase":"not_sent","retryable":true}}`},
		{jsonrpc.InvalidResponse("files", "bad JSON"),
			`{"code":-32603,"message":"Invalid response from upstream","data":{"reason":"invalid_response","upstream":"files","cause":"bad JSON","phase":"in_flight","retryable":false}}`},
	}
	for _, tt := range tests {
		if got := string(tt.err.Raw()); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// DecodeOwn decodes the output of Append without reading the value.
func TestDecodeOwn(t *testing.T) {
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"a","params":{"b":"}"}}`,
		`{"jsonrpc":"2.0","id":"a\"},","method":"m\"\u2028","params":[1,2]}`,
		`{"jsonrpc":"2.0","method":"notifications/a"}`,
		`{"jsonrpc":"2.0","id":-1.0,"result":{"a":{}}}`,
		`{"jsonrpc":"2.0","error":{"code":1}}`,
		`{"jsonrpc":"2.0","id":1,"extra":{"result":1},"result":{}}`,
		`[{"jsonrpc":"2.0","id":1,"result":{}}]`,
	} {
		m, err := jsonrpc.Decode([]byte(text))
		if err != nil {
			t.Fatal(text, err)
		}
		wire := m.Append(nil)
		own, err := jsonrpc.DecodeOwn(wire)
		if err != nil || !reflect.DeepEqual(own, m) {
			t.Errorf("%s came back as %+v, %v", wire, own, err)
		}
	}
	if _, err := jsonrpc.DecodeOwn([]byte(`{"jsonrpc":"1.0"}`)); err == nil {
		t.Error("a foreign message passed")
	}
}

// Ids are bounded, because they are kept until the answer, and the error does not contain the id.
// Methods are bounded, too.
func TestLongIDs(t *testing.T) {
	text := func(n int) []byte {
		return []byte(`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", n-2) + `","method":"ping"}`)
	}
	for n, ok := range map[int]bool{1 << 10: true, 1<<10 + 1: false} {
		_, err := jsonrpc.Limits{}.Decode([]byte(`{"jsonrpc":"2.0","id":7,"method":"` + strings.Repeat("x", n-2) + `"}`))
		if bad, _ := errors.AsType[*jsonrpc.InvalidError](err); (err == nil) != ok || bad != nil && bad.ID != jsonrpc.IntID(7) {
			t.Errorf("a method of %d bytes: %v", n, err)
		}
	}
	for _, c := range []struct {
		limits  jsonrpc.Limits
		longest int
	}{{jsonrpc.Limits{}, 1 << 10}, {jsonrpc.Limits{ID: 8 << 10}, 8 << 10}} {
		if _, err := c.limits.Decode(text(c.longest)); err != nil {
			t.Error(err)
		}
		for _, data := range [][]byte{text(c.longest + 1), slices.Concat([]byte{'['}, text(c.longest+1), []byte{']'})} {
			m, err := c.limits.Decode(data)
			bad, _ := errors.AsType[*jsonrpc.InvalidError](err)
			if m != nil {
				bad = m.Batch[0].Unusable
			}
			if bad == nil || bad.Code != jsonrpc.CodeInvalidRequest || !bad.ID.IsZero() {
				t.Errorf("an id of %d bytes: %v", c.longest+1, err)
			}
		}
	}
}
