package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestOnlyLegacy(t *testing.T) {
	for versions, want := range map[string]bool{
		`["2025-11-25"]`: true, `["2024-10-07","2025-03-26"]`: true, `["2025-11-25","2026-07-28"]`: false, `["2031-01-01"]`: false,
		`[]`: false, ``: false, `[1]`: false, `["2025-11-25",null]`: false, `"2025-11-25"`: false, `{"2025-11-25":1}`: false,
	} {
		if got := OnlyLegacy(json.RawMessage(versions)); got != want {
			t.Errorf("%s: %v", versions, got)
		}
	}
}

func TestDiscoversModern(t *testing.T) {
	result := func(s string) *jsonrpc.Message { return &jsonrpc.Message{Result: json.RawMessage(s)} }
	refusal := func(s string) *jsonrpc.Message { return &jsonrpc.Message{Error: json.RawMessage(s)} }
	for _, c := range []struct {
		what   string
		answer *jsonrpc.Message
		want   bool
	}{
		{"both eras", result(`{"supportedVersions":["2025-11-25","2026-07-28"]}`), true},
		{"legacy alone, as a stateful server says", result(`{"supportedVersions":["2025-11-25"]}`), false},
		{"a version of the future", result(`{"supportedVersions":["2031-01-01"]}`), false},
		{"no versions", result(`{}`), false},
		{"versions that are none", result(`{"supportedVersions":[1,null]}`), false},
		{"another version wanted", refusal(`{"code":-32022,"message":"m","data":{"supported":["2026-07-28"]}}`), true},
		{"legacy wanted", refusal(`{"code":-32022,"message":"m","data":{"supported":["2025-11-25"]}}`), false},
		{"wanted without versions", refusal(`{"code":-32022,"message":"m"}`), false},
		{"a capability is missing", refusal(`{"code":-32021,"message":"m"}`), true},
		{"a header differs", refusal(`{"code":-32020,"message":"m"}`), true},
		{"another proxy without its upstream", refusal(`{"code":-32603,"message":"Connection closed: x","data":{"reason":"connection_closed","upstream":"x","phase":"not_sent","retryable":true}}`), true},
		{"unknown method", refusal(`{"code":-32601,"message":"m"}`), false},
		{"not initialized", refusal(`{"code":-32000,"message":"m"}`), false},
		{"a code that is no number", refusal(`{"code":"-32022","message":"m","data":{"supported":["2026-07-28"]}}`), false},
	} {
		if got := DiscoversModern(c.answer); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

func TestOtherVersions(t *testing.T) {
	const ours = ", and this proxy speaks 2024-11-05 to 2026-07-28"
	for text, want := range map[string]string{
		`{"result":{"supportedVersions":["2031-01-01","DRAFT-2032"]}}`:                                               "speaks only 2031-01-01, DRAFT-2032" + ours,
		`{"result":{"supportedVersions":["2036-01-01","2035-01-01","2034-01-01","2033-01-01","2032-01-01"]}}`:        "speaks only 2036-01-01, 2035-01-01, 2034-01-01, 2033-01-01" + ours,
		`{"result":{"supportedVersions":["2031-01-01","\u001b[1m","http://x",7,"` + strings.Repeat("1", 21) + `"]}}`: "speaks only 2031-01-01" + ours,
		`{"error":{"code":-32022,"message":"m","data":{"supported":["2031-01-01"]}}}`:                                "speaks only 2031-01-01" + ours,
		`{"result":{"supportedVersions":["2031-01-01","2025-11-25"]}}`:                                               "",
		`{"result":{"supportedVersions":["2031-01-01","2026-07-28"]}}`:                                               "",
		`{"result":{"supportedVersions":[]}}`:                                                                        "",
		`{"result":{"supportedVersions":"2031-01-01"}}`:                                                              "",
		`{"error":{"code":-32022,"message":"m"}}`:                                                                    "",
		`{"error":{"code":-32602,"message":"m","data":{"supported":["2031-01-01"]}}}`:                                "",
	} {
		var answer jsonrpc.Message
		var parts struct{ Result, Error json.RawMessage }
		if err := json.Unmarshal([]byte(text), &parts); err != nil {
			t.Fatal(err)
		}
		answer.Result, answer.Error = parts.Result, parts.Error
		got := ""
		if e := OtherVersions(&answer); e != nil {
			got = e.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestDiscoverIsModern(t *testing.T) {
	meta, err := Read(Discover(jsonrpc.IntID(1))).Claim()
	if err != nil || !meta.Claimed || meta.Check() != nil {
		t.Errorf("%+v, %v, %v", meta, err, meta.Check())
	}
}
