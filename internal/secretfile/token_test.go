package secretfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadToken(t *testing.T) {
	for text, ok := range map[string]bool{"abc": true, " abc\n": true, "": false, "\n": false, "a b": false, "a\nb": false, "\xff": false, "é": false} {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if token, err := ReadToken(file); (err == nil) != ok || ok && token != "abc" {
			t.Errorf("%q: %q, %v", text, token, err)
		}
	}
	if _, err := ReadToken("no-such-file"); err == nil {
		t.Error("a file that is not there")
	}
}
