//go:build unix

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// TestWatch: --watch reloads a configuration that is replaced as editors do, or as Kubernetes
// does with volumes, and files of variables. An invalid configuration changes
// nothing.
func TestWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A volume of Kubernetes: the file is a link through ..data, which is replaced.
	mount := func(version, text string) {
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(version+"/proxy.yaml", text)
		if err := os.Symlink(version, filepath.Join(dir, "..tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	mount("..1", "upstreams: {a: {command: fakeserver}}\n")
	file := filepath.Join(dir, "proxy.yaml")
	if err := os.Symlink("..data/proxy.yaml", file); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, nil, "serve", "--watch", "--listen", "127.0.0.1:0", "--config", file)
	p.hear()
	taken := func(times int) {
		t.Helper()
		eventually(t, "the reload", func() bool { return p.log.count("configuration reloaded") == times })
	}

	mount("..2", "upstreams: {a: {command: fakeserver}, b: {command: fakeserver}}\n")
	taken(1)

	write("..2/proxy.yaml", "upstreams: {a: {}}\n")
	eventually(t, "the refusal", func() bool { return p.log.count("configuration not reloaded") == 1 })

	write("vars.env", "A=1\n")
	write("new", `mcpServers: {c: {command: fakeserver, envFile: vars.env}}`+"\n")
	if err := os.Rename(filepath.Join(dir, "new"), file); err != nil {
		t.Fatal(err)
	}
	taken(3) // once more, since there is another file to watch
	write("vars.env", "A=2\n")
	taken(4)

	// A file that the configuration names before it exists.
	write("new", `mcpServers: {c: {command: fakeserver, envFile: later.env}}`+"\n")
	if err := os.Rename(filepath.Join(dir, "new"), file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the refusals", func() bool { return p.log.count("configuration not reloaded") == 3 }) // another file, as above
	write("later.env", "A=1\n")
	taken(5)
	if text := p.log.String(); strings.Count(text, "not reloaded") != 3 {
		t.Error(text)
	}
}

// readings returns what is read of a configuration file when it changes. then is called after each reading; nil: nothing.
func readings(t *testing.T, file string, then func(text string)) <-chan string {
	t.Helper()
	read := make(chan string, 9)
	s := &start{cfg: &config.Config{Read: []string{file}}, log: slog.New(slog.DiscardHandler)}
	s.again = func() (*config.Config, error) {
		text, err := os.ReadFile(file)
		if then != nil {
			then(string(text))
		}
		read <- string(text)
		return s.cfg, err
	}
	over := &takeover{start: s, ctx: t.Context(), adopt: func(*config.Config) error { return nil }}
	stop, err := over.onChange()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return read
}

// Another file in the folder, such as a log, may change all the time.
func TestWatchInABusyFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "proxy.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	read := readings(t, file, nil)
	write("2")
	busy, end := time.NewTicker(settled/20), time.After(20*time.Second)
	defer busy.Stop()
	for {
		select {
		case <-busy.C:
			if err := os.WriteFile(filepath.Join(dir, "log"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		case got := <-read:
			if got != "2" {
				t.Errorf("it has read %q", got)
			}
			return
		case <-end:
			t.Fatal("the change was not read")
		}
	}
}

// A change in a folder that a link leads to since the reload, before it is watched, is not missed.
func TestWatchMissesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "proxy.yaml")
	write := func(folder, text string) {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Error(err)
		}
		if err := os.WriteFile(filepath.Join(dir, folder, "proxy.yaml"), []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	link := func(folder string) {
		if err := os.Symlink(filepath.Join(folder, "proxy.yaml"), filepath.Join(dir, "new")); err != nil {
			t.Error(err)
		}
		if err := os.Rename(filepath.Join(dir, "new"), file); err != nil {
			t.Error(err)
		}
	}
	write("one", "1")
	write("two", "2")
	link("one")
	read := readings(t, file, func(text string) {
		if text == "2" {
			write("two", "3") // not watched yet
		}
	})
	link("two")
	for _, want := range []string{"2", "3"} {
		select {
		case got := <-read:
			if got != want {
				t.Fatalf("it has read %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%q was not read", want)
		}
	}
}
