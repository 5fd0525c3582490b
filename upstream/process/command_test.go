//go:build unix

package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func TestEnvironment(t *testing.T) {
	ours := []string{"PATH=/bin", "LC_ALL=C", "LC_TIME=x", "https_proxy=p", "HTTPS_PROXY=p", "SSL_CERT_FILE=f", "SSL_CERT_DIR=d", "NODE_EXTRA_CA_CERTS=n", "REQUESTS_CA_BUNDLE=r",
		"SECRET=1", "EXTRA=2", "HOMER=3", "LANGUAGE=de"}
	for _, row := range []struct {
		name string
		c    Command
		want []string
	}{
		{"the few", Command{}, ours[:9]},
		{"more", Command{InheritEnv: []string{"EXTRA", "SEC*"}}, ours[:11]},
		{"all", Command{InheritEnv: []string{"all"}}, ours},
		{"own", Command{Env: []string{"PATH=/other", "Mixed_Case=1"}}, append(slices.Clone(ours[:9]), "PATH=/other", "Mixed_Case=1")},
	} {
		if got := row.c.environ(ours); !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

func TestLookPathUsesItsOwnPATH(t *testing.T) {
	dir := t.TempDir()
	tool := filepath.Join(dir, "some-tool-of-ours")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := Command{Path: "some-tool-of-ours"}
	if _, err := c.lookPath(); err == nil {
		t.Error("found without a PATH")
	}
	c.Env = []string{"PATH=.:" + dir}
	if got, err := c.lookPath(); got != tool {
		t.Errorf("got %q, %v", got, err)
	}
}

// What is wrong with a command is found without running it, and is said with what to
// do; nothing of a command line is shown but its first word.
func TestCommandCheck(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good, plain, spaces := file("good", 0o700), file("plain", 0o600), file("with spaces", 0o700)
	for _, row := range []struct {
		name string
		c    Command
		want string
	}{
		{"a file", Command{Path: good}, ""},
		{"a file whose name has spaces", Command{Path: spaces}, ""},
		{"a name on the server's PATH", Command{Path: "good", Env: []string{"PATH=" + dir}}, ""},
		{"a name that only our PATH has", Command{Path: "sh", Env: []string{"PATH=" + dir}}, `"sh" is not on the server's PATH: install it, or give its whole path`},
		{"no such name", Command{Path: "none-of-ours"}, `"none-of-ours" is not on the server's PATH: install it, or give its whole path`},
		{"no such file", Command{Path: dir + "/none"}, `"` + dir + `/none" does not exist`},
		{"not executable", Command{Path: plain}, `"` + plain + `" is not executable: make it so (chmod +x), or put what runs it in command and the file in args`},
		{"a directory", Command{Path: dir}, `"` + dir + `" is a directory`},
		{"a command line", Command{Path: "npx -y --key=hunter2"}, `"npx …" is no program: put npx alone in command, and its arguments in args (behind --, write them without quotes)`},
		{"a path and arguments", Command{Path: good + " --key hunter2"}, `"` + good + ` …" is no program: put ` + good + ` alone in command, and its arguments in args (behind --, write them without quotes)`},
	} {
		got, wrongDir := row.c.Check()
		if (got == nil) != (row.want == "") || got != nil && got.Error() != row.want || wrongDir != nil {
			t.Errorf("%s:\ngot  %v, %v\nwant %s", row.name, got, wrongDir, row.want)
		}
	}
	t.Chdir(dir)
	t.Setenv("PATH", ".")
	here, _ := (&Command{Path: "good"}).Check() // as on Windows with any PATH
	if want := `"good" is looked for on the server's PATH, not in the working directory: write ./good for the one there`; here == nil || here.Error() != want {
		t.Errorf("got %v, want %s", here, want)
	}
	if end := notStarted(here); !end.Lasting || end.Says != "did not start: the command is not on the PATH, but in the working directory" {
		t.Errorf("it ends with %+v", end)
	}
	for _, err := range []error{&fs.PathError{Op: "fork/exec", Path: good, Err: syscall.EMFILE}, os.NewSyscallError("pipe2", syscall.EMFILE)} {
		if end := notStarted(err); end.Lasting || end.Says != "did not start: the command cannot be run: too many open files" {
			t.Errorf("without descriptors it ends with %+v", end)
		}
	}
	if _, err := (&Command{Path: good, Dir: dir + "/none"}).Check(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such directory: %v", err)
	}
	if command, _ := (&Command{Path: dir + "/none"}).Check(); !errors.Is(command, fs.ErrNotExist) {
		t.Errorf("the cause is lost: %v", command)
	}
}
