package remote

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
)

// headerFiles are the files of HeadersFrom.
type headerFiles struct {
	mu    sync.Mutex                  // guards files
	files map[string]*secretfile.File // by path; made when first needed
}

// refused has the files read again before the next request: the server refused the
// credentials.
func (f *headerFiles) refused() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, file := range f.files {
		file.Forget()
	}
}

func (f *headerFiles) file(path string) *secretfile.File {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files[path] == nil {
		if f.files == nil {
			f.files = make(map[string]*secretfile.File)
		}
		f.files[path] = &secretfile.File{Path: path}
	}
	return f.files[path]
}

// header returns what the config wants to be sent with a request. A file that
// cannot be read, or a value that cannot be sent, is an error that names both
// header and file, never the content.
func (s *Server) header() (http.Header, error) {
	h := make(http.Header, len(s.Headers)+len(s.HeadersFrom)+8)
	for name, value := range s.Headers {
		if !sendable(value) {
			return nil, fmt.Errorf("header %s: %w", name, errControl)
		}
		h.Set(name, value)
	}
	for name, path := range s.HeadersFrom {
		value, err := headerIn(s.files.file(path))
		if err != nil {
			return nil, fmt.Errorf("header %s from file %s: %w", name, path, err)
		}
		h.Set(name, value)
	}
	return h, nil
}

var errControl = errors.New("the value has control characters")

func headerIn(file *secretfile.File) (string, error) {
	value, err := file.Read()
	if err == nil && !sendable(value) {
		err = errControl
	}
	return value, err
}

// CheckHeaderFile reports why a file cannot be one of [Server.HeadersFrom]. The
// error does not name it.
func CheckHeaderFile(path string) error {
	_, err := headerIn(&secretfile.File{Path: path})
	return err
}

// sendable reports whether a header may have that value.
func sendable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
