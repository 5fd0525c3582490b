package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const module = "github.com/mcp-proxy/mcp-proxy"

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
	if err := goBuild(b.echo, module+"/internal/bench/echo"); err != nil {
		return b, err
	}
	if err := goBuild(b.mortal, module+"/internal/bench/mortal"); err != nil {
		return b, err
	}
	if err := goBuild(b.relay, module+"/internal/bench/relay"); err != nil {
		return b, err
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
	pkg := module + "/cmd/mcp-proxy"
	var flags []string
	if prof.dir != "" {
		overlay, err := overlayProfiler(dir, pkg)
		if err != nil {
			return err
		}
		flags = append(flags, "-overlay", overlay)
	}
	return goBuild(out, pkg, flags...)
}

// overlayProfiler writes what -overlay needs to find the profiler in package
// pkg, and returns its path.
func overlayProfiler(dir, pkg string) (string, error) {
	list, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", pkg, err)
	}
	source := filepath.Join(dir, "profiler.go")
	if err := os.WriteFile(source, profilerSource, 0o600); err != nil {
		return "", err
	}
	place := filepath.Join(string(bytes.TrimSpace(list)), "bench_profiler.go")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{place: source}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}

// goBuild builds a program as the proxy is released.
func goBuild(out, pkg string, flags ...string) error {
	args := append([]string{"build", "-trimpath", "-o", out}, flags...)
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, output)
	}
	return nil
}
