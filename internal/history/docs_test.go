package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each kind of run has a place in docs/reliability.md, and the picture one in a line of README.md.
func TestPlaces(t *testing.T) {
	document, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []place{ofHistories, ofSimulation, ofSoak, ofRolling, ofReplicas} {
		if _, err := replaced(document, p.begin(), p.end(), nil); err != nil {
			t.Error(err)
		}
	}
	if document, err = os.ReadFile("../../README.md"); err != nil {
		t.Fatal(err)
	}
	if _, err := replaced(document, pictureBegins, pictureEnds, nil); err != nil {
		t.Error(err)
	}
}

// The output of a soak becomes a part of the page, without the names of files on the machine, and its picture goes
// with it. It can be written again.
func TestPutSoak(t *testing.T) {
	root := t.TempDir()
	dir, svg := filepath.Join(root, "docs"), filepath.Join(root, "run.svg")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(svg, "<svg/>")
	write(filepath.Join(dir, "reliability.md"), "before\n"+ofSoak.begin()+ofSoak.end()+"after\n")
	write(filepath.Join(root, "README.md"), "# x\n"+pictureBegins+pictureEnds+"\nmore\n")
	output := "go -C somewhere\nsoak of 2h0m0s, seed 23, slices of 1m0s\nanomalies in " + root + ":\n" +
		"  7 clients  sent  result  \n     call     3       2  \nfaults: 20 corrupt, " + strings.Repeat("18 cut, ", 20) + "5 slice\n" +
		"quantity  first  \nEND" + "samples: " + root + "/soak.csv, picture: " + svg + "\n"
	for end, want := range map[string]string{
		"anomalies: 2 of promise 4\nEND": "anomalies: 2 of promise 4\n```\n",
		"END":                            "anomalies: none\n```\n",
	} {
		if err := putSoak(dir, []byte(strings.Replace(output, "END", strings.TrimSuffix(end, "END"), 1))); err != nil {
			t.Fatal(err)
		}
		text, _ := os.ReadFile(filepath.Join(dir, "reliability.md"))
		page := string(text)
		for _, part := range []string{"before\n", "\n### Soak\n", "```\nsoak of 2h0m0s, seed 23, slices of 1m0s\n  7 clients  sent  result\n", want, "](soak.svg)\n", "after\n"} {
			if !strings.Contains(page, part) {
				t.Errorf("no %q in\n%s", part, page)
			}
		}
		for line := range strings.Lines(page) {
			if len(line) > 125 && !strings.HasPrefix(line, "!") || strings.Contains(line, root) || strings.Contains(line, "somewhere") {
				t.Errorf("line %q", line)
			}
		}
	}
	failed := strings.Replace(output, "END", "", 1) + "history: 3 anomalies, seed 23; all files are in /x\n"
	if err := putSoak(dir, []byte(failed)); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(filepath.Join(dir, "reliability.md"))
	readme, _ := os.ReadFile(filepath.Join(root, "README.md"))
	copied, _ := os.ReadFile(filepath.Join(dir, "soak.svg"))
	if !strings.Contains(string(text), "anomalies: 3\n") || strings.Count(string(text), "### Soak") != 1 || string(copied) != "<svg/>" ||
		strings.Count(string(readme), "\n") != 3 || strings.Count(string(readme), "<img ") != 1 {
		t.Errorf("%s\n%s\n%s", text, readme, copied)
	}
	if err := putSoak(dir, []byte("soak of 2h0m0s, seed 23, slices of 1m0s\n")); err == nil {
		t.Error("a soak that goes on")
	}
}
