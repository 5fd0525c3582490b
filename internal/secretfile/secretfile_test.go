package secretfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// write makes a file that was changed so long ago.
func write(t *testing.T, path, text string, ago time.Duration) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-ago)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func (f *File) expect(t *testing.T, want, why string) {
	t.Helper()
	if got, err := f.Read(); got != want || err != nil {
		t.Errorf("%s: got %q, %v, want %q", why, got, err, want)
	}
}

func TestRead(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "value")}
	write(t, f.Path, "one\r\n", time.Hour)
	f.expect(t, "one", "the first")
	write(t, f.Path, "three", time.Hour)
	f.expect(t, "three", "another size")
	info, _ := os.Stat(f.Path)
	write(t, f.Path, "tthre", 0)
	os.Chtimes(f.Path, info.ModTime(), info.ModTime())
	f.expect(t, "three", "nothing shows a change")
	f.Forget()
	f.expect(t, "tthre", "forgotten")
	next := f.Path + ".next"
	write(t, next, "moved", 0)
	os.Chtimes(next, info.ModTime(), info.ModTime())
	os.Rename(next, f.Path)
	f.expect(t, "moved", "another file")
	write(t, f.Path, "later", 30*time.Minute)
	f.expect(t, "later", "another time")
}

// A file that has just changed may change again and look as it did.
func TestReadTwiceAtOneTime(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "value")}
	write(t, f.Path, "one", 0)
	f.expect(t, "one", "the first")
	info, _ := os.Stat(f.Path)
	write(t, f.Path, "two", 0)
	os.Chtimes(f.Path, info.ModTime(), info.ModTime())
	f.expect(t, "two", "at the same time")
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	f := File{Path: filepath.Join(dir, "value")}
	fails := func(want string) {
		t.Helper()
		if got, err := f.Read(); got != "" || err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), dir) {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	fails("") // in the words of the system
	write(t, f.Path, "good", time.Hour)
	f.expect(t, "good", "it is there")
	write(t, f.Path, "\r\n", time.Hour)
	fails("is empty")
	write(t, f.Path, strings.Repeat("x", maxSize+1), time.Hour)
	fails("more than 65536 bytes")
	os.Remove(f.Path)
	os.Mkdir(f.Path, 0o700)
	fails("not a regular file")
	os.Remove(f.Path)
	write(t, f.Path, "good", time.Hour)
	f.expect(t, "good", "it is back")
}

func TestReadToken(t *testing.T) {
	for text, ok := range map[string]bool{"abc": true, " abc\n": true, "": false, "\n": false, "a b": false, "a\nb": false, "\xff": false, "é": false} {
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if token, err := ReadToken(file); (err == nil) != ok || ok && token != "abc" {
			t.Errorf("%q: %q, %v", text, token, err)
		}
	}
	if _, err := ReadToken("no-such-file"); err == nil {
		t.Error("a file that is not there")
	}
}
