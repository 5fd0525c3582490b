package jsonrpc

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Clients, other hosts and dashboards depend on these texts and labels.
func TestParseCause(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "session",
		"exit status 3":          "exited",
		"exit status 0":          "exited",
		"exit status 0x40010004": "exited",
		"exit status 03":         "other",
		"signal: killed":         "killed",
		"HTTP 401":               "refused",
		"HTTP 404":               "refused",
		"HTTP 502":               "failed",
		"HTTP x":                 "other",
		"HTTP 0":                 "other",
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
		c := ParseCause(text)
		if c.Kind.String() != want || c.String() != text {
			t.Errorf("%q is %q of kind %s, want %s", text, c, c.Kind, want)
		}
		var read struct{ Cause Cause }
		if err := json.Unmarshal([]byte(`{"cause":"`+text+`"}`), &read); err != nil || read.Cause != c {
			t.Errorf("%q is %+v in JSON, want %+v: %v", text, read.Cause, c, err)
		}
	}
	for k := range kinds {
		if k.String() == "" || strings.Trim(k.String(), "abcdefghijklmnopqrstuvwxyz_") != "" {
			t.Errorf("kind %d is called %q, which is no label", k, k)
		}
	}
	if HTTPCause(404).HTTPStatus() != 404 || HTTPCause(502).HTTPStatus() != 502 || ExitCause(1).HTTPStatus() != 0 || WebSocketCause(1006).HTTPStatus() != 0 {
		t.Error("the HTTP status of a cause is wrong")
	}
}

// The text of each cause parses to the same cause, and each kind has a cause.
func TestCausesParseBack(t *testing.T) {
	all := []Cause{
		{}, ExitCause(0), ExitCause(3), ExitCause(0x40010004), SignalCause("killed"), SignalCause("signal 42"), SignalCause(""),
		HTTPCause(301), HTTPCause(401), HTTPCause(499), HTTPCause(500), HTTPCause(599), WebSocketCause(1000), WebSocketCause(4999),
		OtherCause("of some later version"), OtherCause("exit status x"), OtherCause("HTTP"), OtherCause(""),
	}
	for _, c := range known {
		all = append(all, c)
	}
	if len(known) < 40 {
		t.Errorf("only %d causes are known", len(known))
	}
	for _, c := range all {
		if got := ParseCause(c.String()); got != c {
			t.Errorf("%q is %+v, want %+v", c, got, c)
		}
	}
	for k := range kinds {
		if !slices.ContainsFunc(all, func(c Cause) bool { return c.Kind == k }) {
			t.Errorf("no cause is of kind %s", k)
		}
	}
}

// tree calls found for every file of the repository that may have causes.
func tree(t *testing.T, found func(path string)) {
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "interop" || d.Name() == "examples" || path != root && d.Name()[0] == '.' && d.Name() != ".."):
			return filepath.SkipDir
		case !d.IsDir():
			found(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// No other package writes the text of a cause.
func TestNoOtherCauses(t *testing.T) {
	files := token.NewFileSet()
	tree(t, func(path string) {
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "cause.go") {
			return
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit:
				if name(n.Type) == "Cause" && len(n.Elts) > 0 {
					t.Errorf("%s: a cause is written out", files.Position(n.Pos()))
				}
			case *ast.CallExpr:
				if text, ok := slices.Concat(n.Args, []ast.Expr{nil})[0].(*ast.BasicLit); ok && name(n.Fun) == "OtherCause" {
					t.Errorf("%s: cause %s is not one of jsonrpc's", files.Position(n.Pos()), text.Value)
				}
			}
			return true
		})
	})
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

// Every cause in a recorded conversation is known, except for details of invalid answers, and
// invented ones in scripts.
func TestRecordedCausesAreKnown(t *testing.T) {
	others := []string{"unknown resultType", "unexpected resultType", "result is not an object", "unexpected error code", "unusable list", "not an object", "stream lost", `duplicate key "resultType"`}
	recorded := regexp.MustCompile(`"cause":("(?:[^"\\]|\\.)*")`)
	count := 0
	tree(t, func(path string) {
		if !strings.Contains(path, string(filepath.Separator)+"testdata"+string(filepath.Separator)) {
			return
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range recorded.FindAllStringSubmatch(string(data), -1) {
			count++
			text, _ := Unquote(json.RawMessage(m[1]))
			if c := ParseCause(text); (c.Kind == KindOther && !slices.Contains(others, text)) || c.String() != text {
				t.Errorf("%s: cause %q is %+v", path, text, c)
			}
		}
	})
	if count < 20 {
		t.Errorf("only %d causes found", count)
	}
}

func FuzzParseCause(f *testing.F) {
	for _, text := range []string{"", "link lost", "exit status 3", "exit status 0x10000", "signal: killed", "HTTP 502", "HTTP -1", "WebSocket closed 1006", "HTTP 0_1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if c := ParseCause(text); c.String() != text || ParseCause(c.String()) != c || int(c.Kind) >= int(kinds) || c.words() == "" {
			t.Errorf("%q is %q: %+v", text, c, c)
		}
	})
}
