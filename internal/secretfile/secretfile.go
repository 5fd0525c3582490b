// Package secretfile reads values that stand in files of their own, such as tokens
// and credentials, and reads them again when the files change: such values are
// rotated while a program runs.
//
// A file that cannot be read any more, or that is empty, is an error from then on.
// The value that it had is not used again, since it may have been withdrawn.
package secretfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"
)

// maxSize bounds the bytes of a file.
const maxSize = 64 << 10

// settled is how long a file must not have changed when it is read, for what it
// looks like to tell whether it has changed since: clocks of file systems are coarse.
const settled = 2 * time.Second

// A File is a value in a file. Path must not change after the first Read.
type File struct {
	Path string

	mu    sync.Mutex  // guards the fields below; held while the file is read, which others wait for
	value string      // as read last
	info  fs.FileInfo // of the file then; nil: read it whatever it looks like
}

// Read returns the value, without the ends of lines behind it. It reads the file
// only if that looks as if it had changed. The error does not name the file, and
// never holds what is in it.
func (f *File) Read() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.Path)
	if err != nil {
		return "", withoutPath(err)
	}
	if !info.Mode().IsRegular() { // a pipe would have everybody wait, and cannot be read again
		return "", errors.New("not a regular file")
	}
	if f.info != nil && same(f.info, info) {
		return f.value, nil
	}
	now := time.Now()
	if f.value, err = read(f.Path); err != nil {
		f.info = nil
		return "", err
	}
	f.info = nil
	if now.Sub(info.ModTime()) > settled {
		f.info = info
	}
	return f.value, nil
}

// Forget has the next Read read the file, whatever it looks like: the value was
// refused by whom it is for.
func (f *File) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.info = nil
}

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func read(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", withoutPath(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	switch {
	case err != nil:
		return "", withoutPath(err)
	case len(text) > maxSize:
		return "", fmt.Errorf("more than %d bytes", maxSize)
	}
	value := strings.TrimRight(string(text), "\r\n")
	if value == "" {
		return "", errors.New("is empty")
	}
	return value, nil
}

// withoutPath returns what went wrong with a file that the caller names anyway.
func withoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
