// Package secretfile reads tokens and credentials from files, and reads them again when the files change, because such
// values are rotated while a program runs.
//
// A file that becomes unreadable or empty is an error. Its old value may have been withdrawn, so it is not used.
package secretfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const maxSize = 64 << 10 // default limit of a file

// settled is the age from which the time of a file's last change is trusted. Clocks of file systems are coarse: a file
// that has just changed may change again and look the same.
const settled = 2 * time.Second

// A File is a value in a file. Path and MaxSize must not change after the first Read.
type File struct {
	Path    string
	MaxSize int // bytes; zero means 64 KiB

	mu    sync.Mutex  // guards the fields below; held while the file is read
	value string      // as last read
	info  fs.FileInfo // of the file then; nil: read it again
}

// Read returns the value without trailing line ends. It reads the file only if its size or time has changed. The error
// does not name the file, and contains nothing of it.
func (f *File) Read() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.Path)
	if err != nil {
		return "", WithoutPath(err)
	}
	if !info.Mode().IsRegular() { // a pipe would block, and cannot be read again
		return "", errors.New("not a regular file")
	}
	if f.info != nil && Same(f.info, info) {
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

// Forget makes the next Read read the file, because somebody refused the value.
func (f *File) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.info = nil
}

// Same reports whether a file looks the same as before; nil is no file.
func Same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func read(path string, maxSize int) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", WithoutPath(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, int64(maxSize)+1))
	switch {
	case err != nil:
		return "", WithoutPath(err)
	case len(text) > maxSize:
		return "", fmt.Errorf("more than %d bytes", maxSize)
	}
	value := strings.TrimRight(string(text), "\r\n")
	if value == "" {
		return "", errors.New("is empty")
	}
	return value, nil
}

// WithoutPath returns a file's error without the path, which the caller adds.
func WithoutPath(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// Replace writes a file with mode 0600 atomically. Errors do not have the path.
func Replace(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new") // mode 0600
	if err != nil {
		return WithoutPath(err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // unless it was renamed
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return WithoutPath(err)
}

// Token returns a function that returns the current bearer token in a file. It returns nil for no file. Errors name the
// file.
func Token(path string) func() (string, error) {
	if path == "" {
		return nil
	}
	f := &File{Path: path}
	return func() (string, error) {
		text, err := f.Read()
		token := strings.TrimSpace(text)
		switch {
		case err != nil:
		case token == "":
			err = errors.New("is empty")
		case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }): // cannot be sent in a header
			err = errors.New("must be one word of visible ASCII characters")
		default:
			return token, nil
		}
		return "", fmt.Errorf("%s: %w", path, err)
	}
}

// ReadToken reads the bearer token in a file once; "" for no file.
func ReadToken(path string) (string, error) {
	read := Token(path)
	if read == nil {
		return "", nil
	}
	return read()
}
