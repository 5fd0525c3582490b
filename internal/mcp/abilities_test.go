package mcp

import (
	"encoding/json"
	"slices"
	"testing"
)

// A client is asked only what it has declared.
func TestAbilities(t *testing.T) {
	asks := map[string][2]string{
		"roots":    {"roots/list", ``},
		"sampling": {"sampling/createMessage", `{}`},
		"tools":    {"sampling/createMessage", `{"tools":[]}`},
		"choice":   {"sampling/createMessage", `{"toolChoice":{}}`},
		"form":     {"elicitation/create", `{"mode":"form"}`},
		"no mode":  {"elicitation/create", `{}`},
		"nothing":  {"elicitation/create", ``},
		"url":      {"elicitation/create", `{"mode":"\u0075rl"}`},
		"both":     {"elicitation/create", `{"mode":"url","mode":"form"}`},
		"vendor":   {"vendor/ask", `{}`},
	}
	form := []string{"form", "no mode", "nothing"}
	for capabilities, can := range map[string][]string{
		``:                            {},
		`{}`:                          {},
		`{"roots":{}}`:                {"roots"},
		`{"sampling":{}}`:             {"sampling"},
		`{"sampling":{"tools":{}}}`:   {"sampling", "tools", "choice"},
		`{"elicitation":{}}`:          form,
		`{"elicitation":null}`:        form,
		`{"elicitation":{"form":{}}}`: form,
		`{"elicitation":{"url":{}}}`:  {"url"},
		`{"elicitation":{"url":{},"form":{}},"roots":{}}`: append([]string{"url", "both", "roots"}, form...),
	} {
		got, err := ReadAbilities(json.RawMessage(capabilities))
		if capabilities == "" {
			got, err = ReadAbilities(nil)
		}
		if err != nil {
			t.Errorf("%s: %v", capabilities, err)
		}
		for name, ask := range asks {
			var params json.RawMessage
			if ask[1] != "" {
				params = json.RawMessage(ask[1])
			}
			if able := got.Refuses(ask[0], params) == nil; able != (name == "vendor" || slices.Contains(can, name)) {
				t.Errorf("%s is asked for %s: %v", capabilities, name, able)
			}
		}
	}
	for _, capabilities := range []string{`{"roots":{},"Roots":{}}`, `{"elicitation":{"url":{},"URL":{}}}`, `{"sampling":{"tools":1,"tools":2}}`} {
		if got, err := ReadAbilities(json.RawMessage(capabilities)); err == nil || got != (Abilities{}) {
			t.Errorf("%s: %+v, %v", capabilities, got, err)
		}
	}
}
