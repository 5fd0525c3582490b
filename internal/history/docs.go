package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A place is where reliability.md has what runs of a kind have found, between marks with the command that makes them.
type place struct{ command, title string }

var (
	ofHistories  = place{"make history", "Histories"}
	ofSimulation = place{"make simulation", "Simulation"}
	ofSoak       = place{"make soak", "Soak"}
	ofRolling    = place{"make rolling", "Rolling restarts"}
	ofReplicas   = place{"make replicas", "Replicas"}
)

func (p place) begin() string { return "<!-- " + p.command + " DOCS=docs -->\n" }
func (p place) end() string   { return "<!-- end of " + p.command + " -->\n" }

// put writes what a run has found into its place in reliability.md in a directory.
func (p place) put(dir, text string) error {
	text = fmt.Sprintf("\n### %s\n\n%s.\n\n%s\n\n", p.title, time.Now().UTC().Format("2 January 2006"), strings.TrimSpace(text))
	return rewrite(filepath.Join(dir, "reliability.md"), p.begin(), p.end(), []byte(text))
}

// rewrite replaces what a file has between two marks.
func rewrite(path, begin, end string, by []byte) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if text, err = replaced(text, begin, end, by); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, text, 0o644)
}

// replaced returns a document with other text between two marks.
func replaced(document []byte, begin, end string, by []byte) ([]byte, error) {
	before, rest, begins := bytes.Cut(document, []byte(begin))
	_, after, ends := bytes.Cut(rest, []byte(end))
	if !begins || !ends {
		return nil, fmt.Errorf("there is no place between %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return slices.Concat(before, []byte(begin), by, []byte(end), after), nil
}

// listing returns text as a block of Markdown. A line that is too long to read, as that of the faults, is broken after
// a comma.
func listing(text string) string {
	const most = 120
	var b strings.Builder
	b.WriteString("```\n")
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		for len(line) > most {
			at := strings.LastIndex(line[:most], ", ")
			if at < 0 {
				break
			}
			b.WriteString(line[:at+1] + "\n")
			line = "  " + line[at+2:]
		}
		b.WriteString(line + "\n")
	}
	b.WriteString("```\n")
	return b.String()
}

// promised counts anomalies by the promise that they break.
func promised(anomalies []Anomaly) string {
	counts := map[string]int{}
	for _, a := range anomalies {
		counts[fmt.Sprint("of promise ", a.Rule)]++
	}
	return "anomalies: " + cmp.Or(counted(counts), "none")
}

// Parts of the output of a soak: its first line, the table of operations and what follows, and the line after that.
var (
	soakBegins = regexp.MustCompile(`(?m)^soak of .*, seed .*\n`)
	soakTables = regexp.MustCompile(`(?m)^ *[0-9]+ clients +sent`)
	soakEnds   = regexp.MustCompile(`(?m)^samples: .*, picture: (.*)$`)
)

// README.md shows the picture of the soak, between marks within a line.
const (
	pictureBegins = "<!-- make soak DOCS=docs -->"
	pictureEnds   = "<!-- end of make soak -->"
	picture       = `<a href="docs/reliability.md">Promises under random faults</a>, judged for this one and others, and what this one holds meanwhile:<br>` +
		`<img src="docs/soak.svg" width="640" alt="` + pictured + `">`
	pictured = "Memory, descriptors, goroutines, processes and times of calls during a soak, and their trends"
)

// putOutput is putSoak for a soak that has ended.
func (o options) putOutput() error {
	if o.docs == "" {
		return errors.New("-output needs -docs")
	}
	output, err := os.ReadFile(o.output)
	if err != nil {
		return err
	}
	return putSoak(o.docs, output)
}

// putSoak writes what a soak has printed into reliability.md in a directory, and its picture beside that.
func putSoak(dir string, output []byte) error {
	begins, tables, ends := soakBegins.Find(output), soakTables.FindIndex(output), soakEnds.FindSubmatchIndex(output)
	if begins == nil || tables == nil || ends == nil {
		return errors.New("this is not the output of a soak that has ended")
	}
	text := string(begins) + string(output[tables[0]:ends[0]])
	if !strings.Contains(text, "\nanomalies: ") { // of a soak that printed only the error
		_, rest, _ := strings.Cut(string(output[ends[1]:]), "history: ")
		number, _, found := strings.Cut(rest, " anomalies, seed ")
		if !found {
			number = "none"
		}
		text += "anomalies: " + number + "\n"
	}
	svg, err := os.ReadFile(string(output[ends[2]:ends[3]]))
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "soak.svg"), svg, 0o644),
		ofSoak.put(dir, listing(text)+"\n!["+pictured+"](soak.svg)\n"),
		rewrite(filepath.Join(dir, "..", "README.md"), pictureBegins, pictureEnds, []byte(picture)))
}
