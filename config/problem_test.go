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
	tools := []string{"files__search_hello_and_greet", "hello__great_reset", "hello__greet", "hello__shout", "hello__shouts"}
	for word, want := range map[string]string{
		"hello__gret": "hello__greet", "helo__greet": "hello__greet", "hello__greett": "hello__greet", "hello__greest": "hello__greet", "hello_greet": "hello__greet", "hello__shoutt": "hello__shouts", "hello__shot": "hello__shout", "hello__nothing": "",
	} {
		if got := Nearest(word, tools); got != want {
			t.Errorf("%q is taken for %q, want %q", word, got, want)
		}
	}
	if got := Nearest("abcdf", []string{"abcd", "abcde", "abcdef"}); got != "abcde" {
		t.Errorf("of three as near: %q, want the one of the same length", got)
	}
	if got := Nearest("bd", []string{"cd", "ad"}); got != "ad" {
		t.Errorf("of two as near: %q", got)
	}
}
