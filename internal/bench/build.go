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
		floor:  filepath.Join(dir, "floor"),
	}
	for _, program := range []string{b.echo, b.mortal, b.relay} {
		if err := goBuild(".", program, "./"+filepath.Base(program)); err != nil {
			return b, err
		}
	}
	if err := buildOver(".", b.floor, "./floor", map[string][]byte{"floor/bench_counter.go": counterSource}); err != nil {
		return b, err
	}
	if proxy == "" {
		b.proxy = filepath.Join(dir, "mcp-proxy")
		if err := buildProxy(b.proxy, prof); err != nil {
			return b, err
		}
	}
	return b, b.writeConfigs()
}

// buildProxy builds the proxy with what counts in it, and with the profiler if there is to be one.
func buildProxy(out string, prof profiler) error {
	over := map[string][]byte{counterPlace: counterSource}
	if prof.dir != "" {
		over["cmd/mcp-proxy/bench_profiler.go"] = profilerSource
	}
	return buildOver(tree, out, "./cmd/mcp-proxy", over)
}

// buildOver builds a program of the module in root with other text in some of its files. What that
// takes lies beside out.
func buildOver(root, out, pkg string, over map[string][]byte) error {
	replace := map[string]string{}
	for name, text := range over {
		place, err := filepath.Abs(filepath.Join(root, name))
		if err != nil {
			return err
		}
		replace[place] = fmt.Sprintf("%s-%d.go", out, len(replace))
		if err := os.WriteFile(replace[place], text, 0o600); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	path := out + "-overlay.json"
	if err := os.WriteFile(path, overlay, 0o600); err != nil {
		return err
	}
	return goBuild(root, out, pkg, "-overlay", path)
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
