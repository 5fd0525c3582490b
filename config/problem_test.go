package config

import "testing"

func TestNearest(t *testing.T) {
	keys := []string{"args", "command", "cwd", "env", "headers", "headersFrom", "url"}
	for word, want := range map[string]string{
		"comand": "command", "Comand": "command", "comandd": "command", "commnad": "command", "ars": "args", "agrs": "args",
		"ulr": "", "uri": "url", "header": "headers", "head": "headers", "e": "", "timeout": "", "": "", "cmd": "command", "mand": "",
	} {
		if got := Nearest(word, keys); got != want {
			t.Errorf("%q is taken for %q, want %q", word, got, want)
		}
	}
	if got := Nearest("bd", []string{"cd", "ad"}); got != "ad" {
		t.Errorf("of two as near: %q", got)
	}
}
