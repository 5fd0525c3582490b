package proxy

import (
	"log"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// Logins are those of the tests, and not of the user that runs them.
func TestMain(m *testing.M) {
	state, err := os.MkdirTemp("", "mcp-proxy-state-")
	if err != nil {
		log.Fatal(err)
	}
	os.Setenv("XDG_STATE_HOME", state)
	conntest.Parallel(8)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(state)
		os.Exit(code)
	}))
}
