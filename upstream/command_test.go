//go:build unix

package upstream

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestEnvironment(t *testing.T) {
	ours := []string{"PATH=/bin", "LC_ALL=C", "LC_TIME=x", "https_proxy=p", "HTTPS_PROXY=p", "SECRET=1", "EXTRA=2", "HOMER=3", "LANGUAGE=de"}
	for _, row := range []struct {
		name string
		c    Command
		want []string
	}{
		{"the few", Command{}, ours[:5]},
		{"more", Command{InheritEnv: []string{"EXTRA", "SEC*"}}, ours[:7]},
		{"all", Command{InheritEnv: []string{"all"}}, ours},
		{"own", Command{Env: []string{"PATH=/other", "Mixed_Case=1"}}, append(slices.Clone(ours[:5]), "PATH=/other", "Mixed_Case=1")},
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

func TestDirIsTheWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\nread x; pwd >&2; exec sleep 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Command{Path: filepath.Join(dir, "run.sh"), Dir: dir})
	c := r.attach("k")
	c.send("initialize", 0)
	c.ends("start failed", false)
	c.returned()
	real, _ := filepath.EvalSymlinks(dir)
	if st := r.host.Status()[0]; !slices.Equal(st.Stderr, []string{dir}) && !slices.Equal(st.Stderr, []string{real}) {
		t.Errorf("ran in %q", st.Stderr)
	}
}
