package proxy

import (
	"context"
	"runtime"
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

// A Build is the program that runs.
type Build struct {
	Version  string `json:"version"`           // as [Version]
	Revision string `json:"revision,omitzero"` // of the source, if the build knows that
	Modified bool   `json:"modified,omitzero"` // the source was not quite that
	Time     string `json:"time,omitzero"`     // of the revision
	Go       string `json:"go"`                // that has built it
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// BuildOf returns what the program knows of its build.
func BuildOf() Build {
	b := Build{Version: Version(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Path != module { // the source is that of a program that embeds this
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// ReapOrphans waits, until ctx ends, for processes whose parents have left them to this
// one, as the first process of a container has to. It does nothing in any other. Only
// the program can know that nobody else waits for them.
func ReapOrphans(ctx context.Context) { process.ReapOrphans(ctx) }
