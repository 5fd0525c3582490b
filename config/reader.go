package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/config/forms"
	"github.com/mcp-proxy/mcp-proxy/config/tree"
	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// A reader collects the mistakes and warnings of one Load, and expands variables.
type reader struct {
	source   string // name of the file in error lines
	dir      string // directory from which its relative paths count
	problems Problems
	warnings []string
	ignored  map[string]bool // unknown keys in other programs' entries; each is warned about once
	inputs   []*tree.Node    // values for which an editor asks its user
	files    []string        // absolute paths of the files that were read
}

// A Problem is one mistake in a configuration.
type Problem = tree.Problem

// Problems are all mistakes in a configuration. An error of [Load] or [HostLink.Check] is
// always a non-empty Problems.
type Problems = tree.Problems

func (r *reader) fail(source, key, format string, args ...any) {
	r.problems = append(r.problems, Problem{Source: source, Key: key, Text: fmt.Sprintf(format, args...)})
}

func (r *reader) warn(source, key, format string, args ...any) {
	p := Problem{Source: source, Key: key, Text: fmt.Sprintf(format, args...)}
	r.warnings = append(r.warnings, p.Error())
}

func (r *reader) resolve(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.dir, path)
}

// readFile reads a file with values, and remembers its path.
func (r *reader) readFile(name string) ([]byte, error) {
	if abs, err := filepath.Abs(name); err == nil && !slices.Contains(r.files, abs) {
		r.files = append(r.files, abs)
	}
	return readFile(name)
}

// readFile reads a file, up to one byte more than is allowed.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, tree.MaxBytes+1))
	return data, cause(err)
}

// cause removes the file's name, which the error line has already.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("cannot be read: %w", pe.Err)
	}
	return err
}

var variableName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand replaces the variables in s. It does not expand their values again. It returns all
// mistakes; these never contain values.
func (r *reader) expand(s string) (expanded string, wrong []string) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		if !found {
			out.WriteString(s)
			return out.String(), wrong
		}
		if head, escaped := strings.CutSuffix(before, "$"); escaped {
			out.WriteString(head + "${")
			s = rest
			continue
		}
		out.WriteString(before)
		reference, rest, closed := strings.Cut(rest, "}")
		if !closed {
			return "", append(wrong, "has a ${ without its } (a literal one is written $${)")
		}
		value, problem := r.resolveVariable(reference)
		if problem != "" {
			wrong = append(wrong, problem)
		}
		out.WriteString(value)
		s = rest
	}
}

// resolveVariable returns the value of NAME or NAME:-default, or of a variable of editors:
// env:NAME, input:ID, file:PATH and the folder that is open.
func (r *reader) resolveVariable(reference string) (value, problem string) {
	if id, ok := strings.CutPrefix(reference, "input:"); ok {
		return r.input(id)
	}
	if path, ok := strings.CutPrefix(reference, "file:"); ok {
		return r.fileText(path)
	}
	if known, ok := r.surroundings(reference); ok {
		return known, ""
	}
	name, fallback, optional := strings.Cut(strings.TrimPrefix(reference, "env:"), ":-")
	if !variableName.MatchString(name) {
		return "", fmt.Sprintf("${%s} is neither ${NAME} nor ${NAME:-default} (a literal ${ is written $${)", tree.Printable(reference))
	}
	value, set := os.LookupEnv(name)
	switch {
	case optional && value == "":
		return fallback, ""
	case !set:
		return "", fmt.Sprintf("the variable %s is not set", name)
	}
	return value, ""
}

// varies reports whether s contains a variable. Such a string is allowed for every type.
func varies(s string) bool {
	return strings.Contains(strings.ReplaceAll(s, "$${", ""), "${")
}

var notInVariable = lazyregexp.New(`[^A-Z0-9]+`)

// input returns the value for which an editor would ask a person: the variable INPUT_ID, else the
// default.
func (r *reader) input(id string) (value, problem string) {
	name := "INPUT_" + notInVariable.ReplaceAllString(strings.ToUpper(id), "_")
	if value, set := os.LookupEnv(name); set {
		return value, ""
	}
	for _, in := range r.inputs {
		if standard := in.Get("default"); in.Get("id").Is(id) && standard.IsA(anyScalar) {
			return standard.Text, ""
		}
	}
	return "", fmt.Sprintf("asks for %s in an editor: set the variable %s", tree.Quote(id), name)
}

// fileText returns the content of a file without the newlines at its end.
func (r *reader) fileText(path string) (value, problem string) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, _ := os.UserHomeDir()
		path = filepath.Join(home, rest)
	}
	data, err := r.readFile(r.resolve(path))
	if err != nil {
		return "", fmt.Sprintf("the file %s %v", tree.Printable(path), err)
	}
	return strings.TrimRight(string(data), "\r\n"), ""
}

// surroundings returns the value of a variable about where an editor runs.
func (r *reader) surroundings(name string) (string, bool) {
	switch name {
	case "workspaceFolder", "workspaceRoot":
		return forms.Folder(r.dir), true
	case "workspaceFolderBasename":
		return filepath.Base(forms.Folder(r.dir)), true
	case "userHome":
		home, err := os.UserHomeDir()
		return home, err == nil
	case "pathSeparator", "/":
		return string(filepath.Separator), true
	}
	return "", false
}
