package config

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expand replaces the variables of s, once: what they hold is not expanded
// again. It names all that is wrong, without naming values.
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

// resolveVariable gives the value of NAME or NAME:-default, or of what editors write:
// env:NAME, input:ID, file:PATH and the folder that they have open.
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
		return "", fmt.Sprintf("${%s} is neither ${NAME} nor ${NAME:-default} (a literal ${ is written $${)", printable(reference))
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

// varies tells whether s has a variable in it. Such a string may be a value of any
// type.
func varies(s string) bool {
	return strings.Contains(strings.ReplaceAll(s, "$${", ""), "${")
}
