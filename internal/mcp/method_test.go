package mcp

import (
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// The rows are consistent.
func TestMethods(t *testing.T) {
	seen := make(map[string]bool)
	for _, row := range slices.Concat(requests, notifications) {
		if seen[row.Name] || row.Name == "" || row.From == 0 || row.Eras == 0 {
			t.Errorf("row %+v: no name, a second one of that name, no side or no era", row)
		}
		seen[row.Name] = true
		found := slices.Contains([]Owner{ByName, ByURI, ByRef, ByTask}, row.Owner)
		if found && row.Key == "" || row.Owner == Nobody {
			t.Errorf("%s: nothing says how its owner is found", row.Name)
		}
		if row.notifies != strings.HasPrefix(row.Name, "notifications/") || row.notifies && (row.Cacheable || row.Asks || row.Works) {
			t.Errorf("%s: a notification has no result", row.Name)
		}
		if row.OnListen && !row.In(Modern) {
			t.Errorf("%s: the legacy era has no listen", row.Name)
		}
	}
}

// The values that other packages read from the rows.
func TestMethodOf(t *testing.T) {
	for name, want := range map[string]struct {
		header           string
		foreign, modern  bool
		inLegacy, inMore bool
	}{
		"tools/call":               {"name", false, false, true, true},
		"prompts/get":              {"name", false, false, true, true},
		"resources/read":           {"uri", false, false, true, true},
		"resources/subscribe":      {"", true, false, true, false},
		"completion/complete":      {"", false, false, true, true},
		"tasks/get":                {"taskId", true, false, true, true},
		"tasks/update":             {"taskId", true, false, false, true},
		"tasks/cancel":             {"taskId", true, false, true, true},
		"tasks/result":             {"", true, false, true, false},
		"tasks/other":              {"", true, false, false, true},
		"server/discover":          {"", true, true, false, true},
		"subscriptions/listen":     {"", true, true, false, true},
		"initialize":               {"", true, false, true, false},
		"vendor/thing":             {"", false, false, true, true},
		"notifications/tasks":      {"", true, false, false, true},
		"resources/templates/list": {"", false, false, true, true},
	} {
		row := MethodOf(name)
		if row.HeaderKey() != want.header || row.Foreign() != want.foreign || row.ModernOnly() != want.modern ||
			row.In(Legacy) != want.inLegacy || row.In(Modern) != want.inMore {
			t.Errorf("%s: %+v", name, row)
		}
	}
	if MethodOf("vendor/list").Works || !MethodOf("vendor/thing").Works {
		t.Error("an unknown list works on nothing, anything else unknown may")
	}
}

func TestCancellation(t *testing.T) {
	for reason, want := range map[string]string{
		"":          `{"requestId":7}`,
		`said "no"`: `{"requestId":7,"reason":"said \"no\""}`,
	} {
		m := Cancellation(jsonrpc.IntID(7), reason)
		if string(m.Params) != want || !m.IsNotification() || m.Method != MethodCancelled {
			t.Errorf("%s %s", m.Method, m.Params)
		}
	}
}
