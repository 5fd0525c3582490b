package check_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

const composeFile = "examples/sidecar/compose.yaml"

// loadCompose also finds volumes, secrets and services that are used and not
// declared.
func loadCompose(ctx context.Context, text string) (*types.Project, error) {
	return loader.LoadWithContext(ctx, types.ConfigDetails{
		WorkingDir:  filepath.Join(root, "examples/sidecar"),
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(root, composeFile), Content: []byte(text)}},
		Environment: types.Mapping{"MCP_TOKEN": "secret"},
	})
}

func TestCompose(t *testing.T) {
	text := read(t, composeFile)
	project, err := loadCompose(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range project.Services {
		stage := " AS " + s.Build.Target + "\n"
		if dockerfile := read(t, "Dockerfile"); !strings.Contains(dockerfile, stage) {
			t.Errorf("%s: the Dockerfile has no stage %s", s.Name, s.Build.Target)
		}
		if dir := runtimeDir(t); !slices.ContainsFunc(s.Tmpfs, func(mount string) bool { return strings.HasPrefix(mount, dir+":") }) {
			t.Errorf("%s: it is read-only, and has no %s", s.Name, dir)
		}
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
	}
	wrong(t, text, "network_mode: none", "network: none", func(s string) error {
		_, err := loadCompose(t.Context(), s)
		return err
	})
	wrong(t, text, "- sockets:/run/mcp\n", "- socket:/run/mcp\n", func(s string) error {
		_, err := loadCompose(t.Context(), s)
		return err
	})
}
