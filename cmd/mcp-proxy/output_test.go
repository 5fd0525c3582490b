//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// written returns what an output that is no terminal writes.
func written(t *testing.T, write func(*output)) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	write(&output{file: file})
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// fullPipe returns a pipe that takes nothing before something is read.
func fullPipe(t *testing.T) (in, out *os.File) {
	t.Helper()
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); out.Close() })
	raw, err := out.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Write(func(fd uintptr) bool {
		for err := error(nil); err == nil || err == syscall.EINTR; {
			_, err = syscall.Write(int(fd), make([]byte, 4<<10))
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return in, out
}

// The lines of a program that serves wait for a slow reader together, not each anew.
func TestSlowReaderOfTheLog(t *testing.T) {
	t.Parallel()
	reader, full := fullPipe(t)
	o := &output{file: full}
	o.serves()
	const slow = 4 * atOnce
	took := make(chan error, 1)
	go func() {
		for o.mu.TryLock() { // the write has not begun
			o.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(slow)
		_, err := reader.Read(make([]byte, 64<<10))
		took <- err
	}()
	if _, err := o.Write(make([]byte, 4<<10)); err != nil {
		t.Error(err)
	}
	if err := <-took; err != nil {
		t.Fatal(err)
	}
	if o.wait > readerTime-atOnce {
		t.Errorf("the next line may wait for %v", o.wait)
	}
	eventually(t, "a line that is written at once, before which the next may wait as ever", func() bool {
		o.Write([]byte("at once\n"))
		return o.wait == readerTime
	})
}

// TestLogOnAFullDisk has a disk, or a quota, that is full within a line, and has room again later.
func TestLogOnAFullDisk(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	const most = 1 << 40 // far behind what other files have
	limited := before
	limited.Cur = most
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limited); err != nil {
		t.Fatal(err)
	}
	defer syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before)
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const room = 200
	if _, err := file.Seek(most-room, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	out := &output{file: file}
	out.serves()
	log, err := newLogger(out, "json", "info")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("whole")
	log.Info("torn", "text", strings.Repeat("x", room))
	log.Info("lost")
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	log.Info("whole again")
	text := make([]byte, 4<<10)
	n, err := file.ReadAt(text, most-room)
	if err != io.EOF {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text[:n])) {
		var record struct {
			Message string `json:"msg"`
			Dropped int
		}
		if json.Unmarshal([]byte(line), &record) != nil {
			record.Message = "no JSON"
		}
		got = append(got, fmt.Sprint(record.Message, " ", record.Dropped))
	}
	want := []string{"whole 0", "no JSON 0", "log lines dropped: nobody read them, or there was no room for them 2", "whole again 0"}
	if !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q", got, want)
	}
}

// TestStuckLineFails has a reader of the log that leaves without having read a line that waits for it, and another
// reader behind it.
func TestStuckLineFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := func(how int) *os.File {
		file, err := os.OpenFile(path, how|syscall.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		return file
	}
	reader := opened(os.O_RDONLY)
	out := &output{file: opened(os.O_WRONLY)}
	out.serves()
	log, err := newLogger(out, "json", "info")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("stuck", "text", strings.Repeat("x", 4<<20))
	log.Info("unread")
	reader.Close()
	err = <-out.stuck
	if !errors.Is(err, syscall.EPIPE) {
		t.Fatalf("the line that was stuck has failed with %v", err)
	}
	out.stuck <- err
	again, read := opened(os.O_RDONLY), make(chan []byte)
	go func() {
		text, _ := io.ReadAll(again)
		read <- text
	}()
	log.Info("after")
	log.Info("last")
	out.file.Close()
	var got []string
	for line := range strings.Lines(string(<-read)) {
		var record struct {
			Message string `json:"msg"`
			Dropped int
		}
		if json.Unmarshal([]byte(line), &record) == nil { // not the part of the line that was stuck
			got = append(got, fmt.Sprint(record.Message, " ", record.Dropped))
		}
	}
	const dropped = "log lines dropped: nobody read them, or there was no room for them 1"
	if want := []string{dropped, "after 0", dropped, "last 0"}; !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q", got, want)
	}
}

// An output escapes what a terminal would obey, however the text is divided into writes.
func TestOutletSpellsOut(t *testing.T) {
	const text = "a\tb\r\nc\rd\x1b[35m \u009b\u202e\u2028\u200f\x7f \u00e4\u65e5\U0001f469\u200d\U0001f4bb\xff\xe2\x82z\n"
	const want = "a\tb\nc" + `\u000dd\u001b[35m \u009b\u202e\u2028\u200f\u007f ` + "\u00e4\u65e5\U0001f469\u200d\U0001f4bb\ufffd\ufffd\ufffdz\n"
	for size := 1; size <= len(text); size++ {
		got := written(t, func(o *output) {
			for part := range slices.Chunk([]byte(text), size) {
				if n, err := o.Write(part); n != len(part) || err != nil {
					t.Errorf("wrote %d of %d: %v", n, len(part), err)
				}
			}
		})
		if got != want {
			t.Fatalf("in pieces of %d bytes: %+q, want %+q", size, got, want)
		}
	}
}

// Logs in a file may be read on a terminal, so they are escaped; as JSON they have the same values as before.
func TestLogsSpellOut(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		got := written(t, func(o *output) {
			log, err := newLogger(o, format, "info")
			if err != nil {
				t.Fatal(err)
			}
			log.Warn(hostile, "line", hostile, hostile, hostile) //nolint:sloglint // anything
		})
		if !strings.Contains(got, "hostile") || hasObeyed(got) {
			t.Errorf("%s: %+q", format, got)
		}
		var line map[string]any
		if format == "json" && (json.Unmarshal([]byte(got), &line) != nil || line["line"] != hostile || line[hostile] != hostile) {
			t.Errorf("JSON says something else: %+q", got)
		}
	}
}

func hasObeyed(text string) bool { return strings.ContainsFunc(text, isObeyed) }

// The content of a tool is written to a pipe byte for byte; other output is escaped.
func TestCallIsExact(t *testing.T) {
	out, err := exec.Command("mcp-proxy", "call", "ok", "--", "hostile").Output()
	if want := hostile + "\n[" + hostile + ": --json has it]\n"; err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%+q, %v", out, err)
	}
	both, _ := exec.Command("mcp-proxy", "call", "err", "--", "hostile").CombinedOutput()
	if !strings.Contains(string(both), "hostile") || hasObeyed(string(both)) {
		t.Errorf("%+q", both)
	}
	var result struct{ Content []struct{ Text string } }
	out, err = exec.Command("mcp-proxy", "call", "ok", "--json", "--", "hostile").Output()
	if err != nil || json.Unmarshal(out, &result) != nil || result.Content[0].Text != hostile {
		t.Errorf("JSON says something else: %+q, %v", out, err)
	}
}

// Everything is printed through an output, and only few files write escape sequences.
func TestOutletIsTheOnlyWay(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := s.X.(*ast.Ident)
			switch {
			case of != nil && of.Name == "fmt" && slices.Contains([]string{"Print", "Printf", "Println"}, s.Sel.Name),
				of != nil && of.Name == "os" && slices.Contains([]string{"Stdout", "Stderr"}, s.Sel.Name) && name != "output.go":
				t.Errorf("%s uses %s.%s: print to stdout or stderr of output.go", name, of.Name, s.Sel.Name)
			case s.Sel.Name == "command" && of != nil && !slices.Contains([]string{"output.go", "console.go", "tap_print.go", "top.go"}, name):
				t.Errorf("%s has a terminal obey what it prints", name)
			case s.Sel.Name == "command":
				found++
			}
			return true
		})
	}
	if found == 0 {
		t.Error("nothing was found")
	}
}

// Columns are aligned in the whole table, also below a line with fewer cells.
func TestRowsStayAligned(t *testing.T) {
	r := rows{head: "A\tB\tC\tD"}
	r.add("a", "long in the first", "c", "d")
	r.add("failed", "b")
	r.add("a", "b", "c", "d")
	var out strings.Builder
	r.write(&out, 0)
	if want := "A       B                  C  D\na       long in the first  c  d\nfailed  b\na       b                  c  d\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
