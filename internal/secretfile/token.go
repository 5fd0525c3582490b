package secretfile

import (
	"errors"
	"fmt"
	"strings"
)

// Token returns a function that returns the bearer token in a file, also after the file
// has changed. It returns nil for no file. Errors name the file.
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
		case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }): // no client could send it
			err = errors.New("must hold one word of visible ASCII characters")
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
