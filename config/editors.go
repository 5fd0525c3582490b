package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// An input is what an editor asks its person for, once.
type input struct{ standard *node }

// readInputs reads what VS Code asks for. A proxy has nobody to ask.
func (r *reader) readInputs(v value) {
	r.inputs = make(map[string]input)
	v.every(func(v value) {
		if id := v.node.get("id"); id.isA(text) {
			r.inputs[id.text] = input{v.node.get("default")}
		}
	})
}

var notInVariable = regexp.MustCompile(`[^A-Z0-9]+`)

// input gives what a person would have entered: it is in a variable, else there is a
// default.
func (r *reader) input(id string) (value, problem string) {
	name := "INPUT_" + notInVariable.ReplaceAllString(strings.ToUpper(id), "_")
	if value, set := os.LookupEnv(name); set {
		return value, ""
	}
	if standard := r.inputs[id].standard; standard.isA(text | number | boolean) {
		return standard.text, ""
	}
	return "", fmt.Sprintf("asks a person for %s, and nobody is asked here: set the variable %s", quote(id), name)
}

// fileText gives what is in a file, without the end of its last line.
func (r *reader) fileText(path string) (value, problem string) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, _ := os.UserHomeDir()
		path = filepath.Join(home, rest)
	}
	data, err := r.readFile(r.resolve(path))
	if err != nil {
		return "", fmt.Sprintf("the file %s %v", printable(path), err)
	}
	return strings.TrimRight(string(data), "\r\n"), ""
}

// surroundings gives what editors know of where they run.
func (r *reader) surroundings(name string) (string, bool) {
	switch name {
	case "workspaceFolder", "workspaceRoot":
		return r.workspace(), true
	case "workspaceFolderBasename":
		return filepath.Base(r.workspace()), true
	case "userHome":
		home, err := os.UserHomeDir()
		return home, err == nil
	case "pathSeparator", "/":
		return string(filepath.Separator), true
	}
	return "", false
}

// workspace is the folder that an editor has open: its files are in there, or in a folder
// of the editor's own.
func (r *reader) workspace() string {
	switch filepath.Base(r.dir) {
	case ".vscode", ".cursor", ".windsurf", ".gemini", ".codex", ".zed", ".opencode", ".roo", ".claude", ".kiro":
		return filepath.Dir(r.dir)
	}
	return r.dir
}
