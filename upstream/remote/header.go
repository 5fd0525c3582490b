package remote

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// maxHeaderFile bounds the bytes of a file with a header's value.
const maxHeaderFile = 64 << 10

// headerFiles is what was last read from the files of HeadersFrom.
type headerFiles struct {
	mu    sync.Mutex // guards the fields below; held while a file is read, which others need too
	read  map[string]headerFile
	stale bool // the server refused the credentials: read again whatever the files look like
}

// A headerFile is a file's value, and what told it from the one before.
type headerFile struct {
	value    string
	size     int64
	modified time.Time
}

// refused has the files read again before the next request.
func (f *headerFiles) refused() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stale = true
}

// header returns what the config wants to be sent with a request. A file that
// cannot be read, or a value that cannot be sent, is an error that names both
// header and file, never the content.
func (s *Server) header() (http.Header, error) {
	h := make(http.Header, len(s.Headers)+len(s.HeadersFrom)+8)
	for name, value := range s.Headers {
		if !sendable(value) {
			return nil, fmt.Errorf("header %s: the value has control characters", name)
		}
		h.Set(name, value)
	}
	s.files.mu.Lock()
	defer s.files.mu.Unlock()
	for name, path := range s.HeadersFrom {
		value, err := s.files.valueLocked(path)
		if err != nil {
			return nil, fmt.Errorf("header %s from file %s: %w", name, path, err)
		}
		h.Set(name, value)
	}
	s.files.stale = false
	return h, nil
}

func (f *headerFiles) valueLocked(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", errorWithoutPath(err)
	}
	if !info.Mode().IsRegular() { // a pipe would have everybody wait, and cannot be read again
		return "", errors.New("not a regular file")
	}
	old, known := f.read[path]
	if known && !f.stale && old.size == info.Size() && old.modified.Equal(info.ModTime()) {
		return old.value, nil
	}
	value, err := readHeaderFile(path)
	if err != nil {
		return "", err
	}
	if f.read == nil {
		f.read = make(map[string]headerFile)
	}
	f.read[path] = headerFile{value, info.Size(), info.ModTime()}
	return value, nil
}

func readHeaderFile(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", errorWithoutPath(err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxHeaderFile+1))
	switch {
	case err != nil:
		return "", errorWithoutPath(err)
	case len(text) > maxHeaderFile:
		return "", fmt.Errorf("more than %d bytes", maxHeaderFile)
	}
	value := strings.TrimRight(string(text), "\r\n")
	if !sendable(value) {
		return "", fmt.Errorf("the value has control characters")
	}
	return value, nil
}

// sendable reports whether a header may have that value.
func sendable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// errorWithoutPath returns what went wrong with a file whose path the error that
// is made of it names anyway.
func errorWithoutPath(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}
