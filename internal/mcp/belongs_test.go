package mcp

import (
	"encoding/json"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestNamed(t *testing.T) {
	const sub = `"io.modelcontextprotocol/subscriptionId"`
	for _, c := range []struct {
		params, id string // "" for none
		said       bool
		as         string // under the id "c" and the token "t"
	}{
		{``, "", false, ``},
		{`{"a":1}`, "", false, `{"a":1}`},
		{`{"_meta":{` + sub + `:7}}`, "7", true, `{"_meta":{` + sub + `:"c"}}`},
		{`{"_meta":{` + sub + `:"7"},"x":[7]}`, "7", true, `{"_meta":{` + sub + `:"c"},"x":[7]}`},
		{`{"_meta":{"progressToken":7}}`, "7", true, `{"_meta":{"progressToken":"t"}}`},
		{`{"progressToken":7}`, "7", true, `{"progressToken":"t"}`},
		{`{"progressToken":7.0,"_meta":{"progressToken":7,` + sub + `:7}}`, "7", true,
			`{"progressToken":"t","_meta":{"progressToken":"t",` + sub + `:"c"}}`},
		{`{"progressToken":null}`, "", false, `{"progressToken":null}`},
		{`{"progressToken":"mine"}`, "", false, `{"progressToken":"mine"}`},
		{`{"_meta":{` + sub + `:{}}}`, "", true, ""},
		{`{"_meta":{` + sub + `:"mine"},"progressToken":7}`, "", true, ""},
		{`{"progressToken":"mine","_meta":{` + sub + `:7}}`, "7", true, `{"progressToken":"mine","_meta":{` + sub + `:"c"}}`},
		{`{"progressToken":8,"_meta":{` + sub + `:7}}`, "", true, ""},
		{`{"progressToken":8,"progressToken":8}`, "", true, ""},
		{`{"ProgressToken":8}`, "", true, ""},
		{`{"_meta":{},"_meta":{` + sub + `:7}}`, "", true, ""},
	} {
		n := ReadParams("acme/told", json.RawMessage(c.params))
		id, said := n.Named()
		if id.String() != c.id || said != c.said {
			t.Errorf("%s names %q, %v; want %q, %v", c.params, id, said, c.id, c.said)
		}
		if said && id.IsZero() {
			continue
		}
		theirs, _ := jsonrpc.ParseID([]byte(`"c"`))
		if as, ok := n.As(theirs, []byte(`"t"`)); !ok || string(as) != c.as {
			t.Errorf("%s becomes %s, %v; want %s", c.params, as, ok, c.as)
		}
	}
	token := ReadParams("acme/told", []byte(`{"progressToken":7}`))
	if as, ok := token.As(jsonrpc.IntID(1), nil); ok {
		t.Errorf("a token that nobody gave becomes %s", as)
	}
}

func TestAnsweredAs(t *testing.T) {
	const sub = `"io.modelcontextprotocol/subscriptionId"`
	for _, c := range []struct{ text, want string }{
		{`{"a":7}`, `{"a":7}`},
		{`{"_meta":{` + sub + `:7},"a":7}`, `{"_meta":{` + sub + `:"c"},"a":7}`},
		{`{"_meta":{` + sub + `:"7"}}`, `{"_meta":{` + sub + `:"c"}}`},
		{`{"_meta":{"io.modelcontextprotocol\/subscription\u0049d":7}}`, `{"_meta":{"io.modelcontextprotocol\/subscription\u0049d":"c"}}`},
		{`{"_meta":{` + sub + `:8}}`, `{"_meta":{` + sub + `:8}}`},
		{`{"_meta":{` + sub + `:null}}`, `{"_meta":{` + sub + `:null}}`},
		{`{` + sub + `:7}`, `{` + sub + `:7}`},
		{`{"code":1,"data":{"_meta":{` + sub + `:7}}}`, `{"code":1,"data":{"_meta":{` + sub + `:"c"}}}`},
		{`{"code":1,"data":"subscriptionId"}`, `{"code":1,"data":"subscriptionId"}`},
		{`{"data":"text","_meta":{` + sub + `:7}}`, `{"data":"text","_meta":{` + sub + `:"c"}}`},
		{`{"data":[7],"_meta":{` + sub + `:7}}`, `{"data":[7],"_meta":{` + sub + `:"c"}}`},
	} {
		theirs, _ := jsonrpc.ParseID([]byte(`"c"`))
		if got := AnsweredAs([]byte(c.text), jsonrpc.IntID(7), theirs); string(got) != c.want {
			t.Errorf("%s becomes %s, want %s", c.text, got, c.want)
		}
	}
}

// Whatever a notification names: putting ids in and out again changes nothing else, and what comes out names them.
func FuzzNamed(f *testing.F) {
	for _, params := range []string{``, `[]`, `{"progressToken":7}`, `{"progressToken":"7","_meta":{"progressToken":7.0}}`,
		`{"a":[1e400],"_meta":{"io.modelcontextprotocol/subscriptionId":7,"\u0061":"\ud800"}}`,
		`{"_meta":{"io.modelcontextprotocol\/subscriptionId":"7"}}`, `{"progressToken":8,"_meta":{"progressToken":7}}`} {
		f.Add([]byte(params))
	}
	other := jsonrpc.IntID(99)
	f.Fuzz(func(t *testing.T, params []byte) {
		if len(params) > 0 && !json.Valid(params) {
			return
		}
		n := ReadParams("acme/told", params)
		id, said := n.Named()
		if !said || id.IsZero() {
			return
		}
		as, ok := n.As(other, other.Raw())
		if again, _ := ReadParams("acme/told", as).Named(); !ok || !json.Valid(as) || again != other {
			t.Fatalf("%s, which names %s, becomes %s", params, id, as)
		}
		back, _ := ReadParams("acme/told", as).As(id, id.Raw())
		same, _ := n.As(id, id.Raw())
		if string(back) != string(same) {
			t.Errorf("%s comes back as %s", same, back)
		}
		if own := n.Own(other, n.Raw(Token)); !json.Valid(own) {
			t.Errorf("%s becomes %s", params, own)
		}
	})
}
