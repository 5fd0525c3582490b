//go:build unix

package main

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain gives scripts their programs: the proxy itself, and the tests' servers.
func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, programs)
}

var programs = map[string]func(){
	"mcp-proxy":   main,
	"fakeserver":  fakeServer,
	"sdkserver":   sdkServer,
	"hostile":     hostileServer,
	"fakebrowser": fakeBrowser,

	// Commands in files of other programs.
	"npx": fakeServer, "uvx": fakeServer, "uv": fakeServer, "node": fakeServer, "python": fakeServer, "docker": fakeServer,
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/xdg")
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("XDG_STATE_HOME", "")
			env.Setenv("XDG_RUNTIME_DIR", env.WorkDir) // scripts must not see each other's processes
			env.Setenv("REPLICAS", twoPorts(t))
			found, err := filepath.Abs("../../config/testdata/found")
			env.Setenv("FOUND", found)
			return err
		},
	})
}

// twoPorts returns an address whose port and the next one were free.
func twoPorts(t *testing.T) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := l.Addr().(*net.TCPAddr)
		next, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", at.Port+1))
		l.Close()
		if err == nil {
			next.Close()
			return at.String()
		}
	}
}
