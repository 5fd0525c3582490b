package process

import "os"

// tryWriter returns a function that writes nothing: a pipe on Windows has no way
// to tell what fits, so every line goes through the backlog.
func tryWriter(*os.File) func([]byte) (int, error) {
	return func([]byte) (int, error) { return 0, nil }
}
