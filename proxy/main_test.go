package proxy

import (
	"log"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Logins are those of the tests, and not of whoever runs them.
func TestMain(m *testing.M) {
	state, err := os.MkdirTemp("", "mcp-proxy-state-")
	if err != nil {
		log.Fatal(err)
	}
	os.Setenv("XDG_STATE_HOME", state)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(state)
		os.Exit(code)
	}))
}
