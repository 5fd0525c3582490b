package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// tree is the root of the repository. go -C internal/bench run . runs in internal/bench.
const tree = "../.."

// build puts into dir all programs that are measured; proxy, if it is not "",
// is the proxy to use instead of this tree's.
func build(dir, proxy string, prof profiler) (programs, error) {
	b := programs{
		dir:    dir,
		proxy:  proxy,
		echo:   filepath.Join(dir, "echo"),
		relay:  filepath.Join(dir, "relay"),
		mortal: filepath.Join(dir, "mortal"),
	}
	for _, program := range []string{b.echo, b.mortal, b.relay} {
		if err := goBuild(".", program, "./"+filepath.Base(program)); err != nil {
			return b, err
		}
	}
	if proxy == "" {
		b.proxy = filepath.Join(dir, "mcp-proxy")
		if err := buildProxy(dir, b.proxy, prof); err != nil {
			return b, err
		}
	}
	return b, b.writeConfigs()
}

// buildProxy builds the proxy, with the profiler laid over it if there is to be one.
func buildProxy(dir, out string, prof profiler) error {
	var flags []string
	if prof.dir != "" {
		overlay, err := overlayProfiler(dir)
		if err != nil {
			return err
		}
		flags = append(flags, "-overlay", overlay)
	}
	return goBuild(tree, out, "./cmd/mcp-proxy", flags...)
}

// overlayProfiler writes what -overlay needs to find the profiler in the proxy, and returns its path.
func overlayProfiler(dir string) (string, error) {
	main, err := filepath.Abs(filepath.Join(tree, "cmd/mcp-proxy"))
	if err != nil {
		return "", err
	}
	source := filepath.Join(dir, "profiler.go")
	if err := os.WriteFile(source, profilerSource, 0o600); err != nil {
		return "", err
	}
	place := filepath.Join(main, "bench_profiler.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{place: source}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}

// goBuild builds a program of the module in root as the proxy is released.
func goBuild(root, out, pkg string, flags ...string) error {
	args := append([]string{"-C", root, "build", "-trimpath", "-o", out}, flags...)
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, output)
	}
	return nil
}
