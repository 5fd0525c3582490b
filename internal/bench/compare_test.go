package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// The tables of a document are replaced, and what is around them stays.
func TestTablesGoIntoTheDocument(t *testing.T) {
	c := comparison{docs: t.TempDir()}
	path := filepath.Join(c.docs, "faults.md")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("before\n" + tablesBegin + "old\n" + tablesEnd + "after\n")
	tables := func(w io.Writer) error { _, err := fmt.Fprintln(w, "new"); return err }
	if err := c.put("faults.md", tables); err != nil {
		t.Fatal(err)
	}
	want := "before\n" + tablesBegin + "new\n" + tablesEnd + "after\n"
	if got, err := os.ReadFile(path); string(got) != want || err != nil {
		t.Errorf("%s%v, want %s", got, err, want)
	}

	broken := errors.New("broken")
	if err := c.put("faults.md", func(io.Writer) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
	if got, _ := os.ReadFile(path); string(got) != want {
		t.Errorf("a failure left %s", got)
	}
	write("no place\n")
	if err := c.put("faults.md", tables); err == nil {
		t.Error("put tables where there is no place for them")
	}
}

// The documents of this tree have places for tables.
func TestDocumentsHavePlaces(t *testing.T) {
	for _, document := range []string{"faults.md", "benchmarks.md"} {
		text, err := os.ReadFile("../../docs/" + document)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, ok := places(text); !ok {
			t.Errorf("%s has no place for tables", document)
		}
	}
}
