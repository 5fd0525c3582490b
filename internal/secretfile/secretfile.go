// Package secretfile reads tokens and credentials that are in files of their own, and
// reads them again when the files change: such values are rotated while a program runs.
//
// A file that has become unreadable or empty is an error. Its old value is not used
// again, since it may have been withdrawn.
package secretfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"
)

// maxSize bounds the bytes of a file that does not say another limit.
const maxSize = 64 << 10

// settled is how old the last change of a file must be when it is read. Clocks of file
// systems are coarse, so a file that has just changed may change again and look the same.
const settled = 2 * time.Second

// A File is a value in a file. Path and MaxSize must not change after the first Read.
type File struct {
	Path    string
	MaxSize int // bytes; zero means 64 KiB

	mu    sync.Mutex  // guards the fields below; held while the file is read, so that others wait for that
	value string      // as read last
	info  fs.FileInfo // of the file then; nil: read it again in any case
}

// Read returns the value, without line ends behind it. It reads the file only if size
// or time say that it has changed. The error does not name the file, and never has any
// of its content.
func (f *File) Read() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.Path)
	if err != nil {
		return "", withoutPath(err)
	}
	if !info.Mode().IsRegular() { // a pipe would make everybody wait, and cannot be read again
		return "", errors.New("not a regular file")
	}
	if f.info != nil && same(f.info, info) {
		return f.value, nil
	}
	now := time.Now()
	if f.value, err = read(f.Path, cmp.Or(f.MaxSize, maxSize)); err != nil {
		f.info = nil
		return "", err
	}
	f.info = nil
	if now.Sub(info.ModTime()) > settled {
		f.info = info
	}
	return f.value, nil
}

// Forget makes the next Read read the file in any case: somebody refused the value.
func (f *File) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.info = nil
}

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func read(path string, maxSize int) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", withoutPath(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, int64(maxSize)+1))
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
