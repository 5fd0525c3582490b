package proxy_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each row of docs/closing.md names tests of its own that exist, and each test that is named
// after rows (TestD07_…) belongs to rows that the table has.
func TestClosingTable(t *testing.T) {
	text, err := os.ReadFile("../docs/closing.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := closingTests(t)
	for i, row := range regexp.MustCompile(`(?m)^\| (D\d\d) \|.*\| ([^|]*) \|$`).FindAllStringSubmatch(string(text), -1) {
		id, named := row[1], regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[2], -1)
		if want := fmt.Sprintf("D%02d", i+1); id != want {
			t.Fatalf("row %s where %s belongs", id, want)
		}
		if len(named) == 0 {
			t.Error("no test in row", id)
		}
		for _, test := range named {
			if !slices.Contains(tests, test[1]) || !slices.Contains(rowsOf(test[1]), id) {
				t.Errorf("row %s names %s, which is no test of that row", id, test[1])
			}
		}
	}
	for _, test := range tests {
		for _, id := range rowsOf(test) {
			if !strings.Contains(string(text), "\n| "+id+" |") {
				t.Errorf("%s: there is no row %s", test, id)
			}
		}
	}
}

// rowsOf returns the rows that the name of a test says it belongs to.
func rowsOf(test string) []string { return regexp.MustCompile(`D\d\d`).FindAllString(test, -1) }

// closingTests returns the names of all tests that are named after rows.
func closingTests(t *testing.T) (names []string) {
	name := regexp.MustCompile(`(?m)^func (TestD\d\d_\w+)\(`)
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, found := range name.FindAllSubmatch(source, -1) {
			names = append(names, string(found[1]))
		}
		return err
	})
	if err != nil || len(names) < 200 {
		t.Fatalf("%d tests, %v", len(names), err)
	}
	return names
}
