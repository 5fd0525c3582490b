package jsonrpc

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestClassOf(t *testing.T) {
	for cause, want := range map[string]string{
		"":                       "session",
		"exit status 3":          "exited",
		"signal: killed":         "killed",
		"HTTP 401":               "refused",
		"HTTP 404":               "refused",
		"HTTP 502":               "failed",
		"HTTP x":                 "other",
		"WebSocket closed 1006":  "broken",
		"connection refused":     "unreachable",
		"link lost":              "link_lost",
		"start failed":           "start_failed",
		"of some later version":  "other",
		"host stopped":           "stopped",
		"client does not read":   "client_slow",
		"not opened in time":     "timeout",
		"message over the limit": "invalid",
		"token expired":          "expired",
	} {
		if got := ClassOf(cause).String(); got != want {
			t.Errorf("%q is of class %s, want %s", cause, got, want)
		}
	}
	for c := range classes {
		if c.String() == "" || strings.Trim(c.String(), "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("class %d is called %q, which is no label", c, c)
		}
	}
	if HTTPStatus(HTTPCause(404)) != 404 || HTTPStatus("404") != 0 {
		t.Error("an HTTP cause does not say its status")
	}
}

// Every cause in the tree is one of those here, and each of them has a class.
func TestCausesHaveClasses(t *testing.T) {
	files := token.NewFileSet()
	for _, text := range constants(t, files, "cause.go") {
		if _, ok := causes[text]; !ok {
			t.Errorf("cause %q has no class", text)
		}
	}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "interop" || d.Name() == "examples" || d.Name() == "testdata" || path != root && d.Name()[0] == '.' && d.Name() != ".."):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if text := literalCause(n); text != "" {
				t.Errorf("%s: cause %q is not one of jsonrpc's", files.Position(n.Pos()), text)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// constants returns the values of the constants of a file that are causes.
func constants(t *testing.T, files *token.FileSet, path string) (texts []string) {
	f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Cause") {
			texts = append(texts, textOf(spec.Values[0]))
		}
		return true
	})
	if len(texts) < 20 {
		t.Errorf("only %d causes found", len(texts))
	}
	return texts
}

// literalCause returns the cause that is written out where a ClosedError is made or
// changed; "" for none.
func literalCause(n ast.Node) string {
	switch n := n.(type) {
	case *ast.CompositeLit:
		if name(n.Type) != "ClosedError" {
			return ""
		}
		for _, e := range n.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok && name(kv.Key) == "Cause" {
				return textOf(kv.Value)
			}
		}
	case *ast.AssignStmt:
		for i, left := range n.Lhs {
			if s, ok := left.(*ast.SelectorExpr); ok && s.Sel.Name == "Cause" && len(n.Rhs) == len(n.Lhs) {
				return textOf(n.Rhs[i])
			}
		}
	case *ast.CallExpr:
		for fn, arg := range map[string]int{"EndOf": 1, "ConnectionClosed": 2} {
			if name(n.Fun) == fn && len(n.Args) > arg {
				return textOf(n.Args[arg])
			}
		}
	}
	return ""
}

func name(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func textOf(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		text, _ := strconv.Unquote(lit.Value)
		return text
	}
	return ""
}
