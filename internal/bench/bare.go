package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// bare says which functions only report what happens, by their files, and what a proxy without
// reports would do instead. Each returns before its own text begins, which the compiler then drops.
var bare = map[string]map[string]string{
	"proxy/session/observe.go": {
		"observeBegan": "return", "observeEnded": "return", "observeRequest": "return", "observeAnswer": "return",
	},
	"proxy/session/observe_upstream.go": {
		"observeEnd": "return", "observeSent": "return",
		"observeOver": "if c := callOf(pc); c.Method != mcp.MethodListen { c.conn.noteUse() }; return",
	},
	"proxy/session/trace.go": {
		"traced": "return params, nil", "own": "return ownToken(c.Method, params, c.ID)",
	},
	"upstream/calls.go": {"watchOf": "return nil", "began": "return", "ended": "return", "lost": "return"},
}

// buildBare builds a proxy that has no hooks in the way of a call.
func buildBare(out string) error {
	over := map[string][]byte{counterPlace: counterSource}
	for file, functions := range bare {
		text, err := hollow(file, functions)
		if err != nil {
			return err
		}
		over[file] = text
	}
	return buildOver(tree, out, "./cmd/mcp-proxy", over)
}

// hollow returns the text of a file of the tree whose functions begin with those statements.
func hollow(file string, functions map[string]string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(tree, file))
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	at, found := 0, 0
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || functions[f.Name.Name] == "" {
			continue
		}
		begins := set.Position(f.Body.Lbrace).Offset + 1
		out.Write(text[at:begins])
		out.WriteString(functions[f.Name.Name] + ";")
		at, found = begins, found+1
	}
	if found != len(functions) {
		return nil, fmt.Errorf("%s has %d of the %d functions that bare.go knows: correct the list", file, found, len(functions))
	}
	out.Write(text[at:])
	return []byte(out.String()), nil
}

// lightHooks has what hooks cost of which none is set.
func (b programs) lightHooks(o options) (rows []goal, err error) {
	without := b
	without.proxy = b.file("bare")
	if err := buildBare(without.proxy); err != nil {
		return nil, err
	}
	all, bases := b.fronts(), without.fronts()
	for i := range all {
		all[i].name += ", over a build without hooks"
		all[i].base = bases[i].with
	}
	base, with, err := measurePairs(all, o)
	if err != nil {
		return nil, err
	}
	for i, p := range all {
		rows = append(rows,
			p.goal("CPU per call, 64 in flight, µs", "%.1f", base[i], with[i], turn.cost).below(1.01),
			p.goal("calls/s", "%.0f", base[i], with[i], turn.rate).above(0.99),
			p.goal("p50, one at a time, µs", "%.1f", base[i], with[i], turn.wait).below(1.01))
		more, err := b.allocated(p, o) // which tells without noise
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}
