//go:build unix

package main

import (
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
			found, err := filepath.Abs("../../config/testdata/found")
			env.Setenv("FOUND", found)
			return err
		},
	})
}
