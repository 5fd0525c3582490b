package proxy

import (
	"context"
	"runtime/debug"

	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// version is set when a release is built.
var version = ""

const module = "github.com/mcp-proxy/mcp-proxy"

// Version returns the version of this module in the program that runs: that of a
// release, or what the build knows.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(devel)"
	}
	found := &info.Main
	for _, dep := range info.Deps {
		if dep.Path == module {
			found = dep
		}
	}
	if found.Version == "" {
		return "(devel)"
	}
	return found.Version
}

// ReapOrphans waits, until ctx ends, for processes whose parents have left them to this
// one, as the first process of a container has to. It does nothing in any other. Only
// the program can know that nobody else waits for them.
func ReapOrphans(ctx context.Context) { process.ReapOrphans(ctx) }
