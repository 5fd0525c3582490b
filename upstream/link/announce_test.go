package link

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// What a proxy does not offer arrives at its host as it was said; what no proxy says ends the link.
func TestRejections(t *testing.T) {
	want := []Rejection{{"files", "the name \"files\" is taken", jsonrpc.NewEvent()}, {"b", "", jsonrpc.NewEvent()}}
	for _, all := range [][]Rejection{want, {}} {
		n, err := parseNote([]byte(strings.TrimSuffix(string(rejectionsLine(all)), "\n")))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseRejections(n.rejected); err != nil || !slices.Equal(got, all) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	many := "[" + strings.Repeat(`{"name":"a","why":"","event":"k3v9x2ma"},`, maxUpstreams) + `{"name":"a","why":"","event":"k3v9x2ma"}]`
	for _, bad := range []string{`{}`, `[1]`, `[{"name":"a b","event":"k3v9x2ma"}]`, `[{"name":"a","event":"../../x"}]`, many} {
		if _, err := parseRejections(json.RawMessage(bad)); err == nil {
			t.Errorf("%.60s is taken", bad)
		}
	}
	long, err := parseRejections(json.RawMessage(`[{"name":"a","why":"` + strings.Repeat("x", 1000) + `\u001b[31m","event":"k3v9x2ma"}]`))
	if err != nil || len(long[0].Why) > maxCause {
		t.Errorf("%+v, %v", long, err)
	}
}
