package proxy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that the table of attacks in docs/security.md names are there.
func TestAttacks(t *testing.T) {
	text, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, folder := range []string{".", "*", "../upstream", "../upstream/*", "../internal/*", "../cmd/*", "../config"} {
		files, err := filepath.Glob(folder + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(source)
		}
	}
	names := regexp.MustCompile(`\bTest\w+`).FindAllString(string(text), -1)
	if len(names) < 30 {
		t.Errorf("%d tests", len(names))
	}
	for _, name := range names {
		if !strings.Contains(all.String(), "\nfunc "+name+"(") {
			t.Error("there is no", name)
		}
	}
}
