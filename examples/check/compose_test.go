package check_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

const (
	sidecarFile  = "examples/sidecar/compose.yaml"
	replicasFile = "examples/replicas/compose.yaml"
)

// loadCompose also finds volumes, secrets and services that are used and not
// declared.
func loadCompose(ctx context.Context, file, text string) (*types.Project, error) {
	return loader.LoadWithContext(ctx, types.ConfigDetails{
		WorkingDir:  filepath.Join(root, filepath.Dir(file)),
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(root, file), Content: []byte(text)}},
		Environment: types.Mapping{"MCP_TOKEN": "secret", "MCP_CLUSTER_KEY": "key"},
	})
}

func TestCompose(t *testing.T) {
	for _, file := range []string{sidecarFile, replicasFile} {
		project, err := loadCompose(t.Context(), file, read(t, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range project.Services {
			if s.Build != nil {
				checkContainer(t, s)
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
	}
	for old, mistake := range map[string]string{
		"network_mode: none":   "network: none",
		"- sockets:/run/mcp\n": "- socket:/run/mcp\n",
	} {
		wrong(t, read(t, sidecarFile), old, mistake, func(s string) error {
			_, err := loadCompose(t.Context(), sidecarFile, s)
			return err
		})
	}
}

// checkContainer checks a container of one of our images.
func checkContainer(t *testing.T, s types.ServiceConfig) {
	t.Helper()
	stage := " AS " + s.Build.Target + "\n"
	if dockerfile := read(t, "Dockerfile"); !strings.Contains(dockerfile, stage) {
		t.Errorf("%s: the Dockerfile has no stage %s", s.Name, s.Build.Target)
	}
	if dir := runtimeDir(t); !slices.ContainsFunc(s.Tmpfs, func(mount string) bool { return strings.HasPrefix(mount, dir+":") }) {
		t.Errorf("%s: it is read-only, and has no %s", s.Name, dir)
	}
}

// TestComposeReplicas: the configuration of the replicas, that of haproxy and the file of compose agree.
func TestComposeReplicas(t *testing.T) {
	project, err := loadCompose(t.Context(), replicasFile, read(t, replicasFile))
	if err != nil {
		t.Fatal(err)
	}
	service, text := project.Services["mcp-proxy"], read(t, "examples/replicas/proxy.yaml")
	var config struct {
		Listen, AllowedHosts []string
		Admin                struct{ Listen []string }
		TokenFile            string
		DrainDelay           types.Duration
		Cluster              struct {
			KeyFile string
			Join    []string
		}
	}
	if err := yaml.Unmarshal([]byte(text), &config); err != nil {
		t.Fatal(err)
	}
	if n := service.Deploy.Replicas; n == nil || *n != 3 {
		t.Errorf("%v replicas", n)
	}
	if !slices.Equal(config.Cluster.Join, []string{service.Name}) {
		t.Errorf("they join %q, the service is %s", config.Cluster.Join, service.Name)
	}
	for _, file := range []string{config.TokenFile, config.Cluster.KeyFile} {
		i := slices.IndexFunc(service.Secrets, func(s types.ServiceSecretConfig) bool { return "/run/secrets/"+s.Source == file })
		if i < 0 || service.Secrets[i].Mode == nil || *service.Secrets[i].Mode != 0o400 || service.Secrets[i].UID != "65532" {
			t.Errorf("%s is no secret, or others can read it", file)
		}
	}
	const shutdownGrace = 8 * time.Second // the default
	if g := service.StopGracePeriod; g == nil || *g <= config.DrainDelay+types.Duration(shutdownGrace) {
		t.Errorf("it has %s to stop", g)
	}
	balancer := read(t, "examples/replicas/haproxy.cfg")
	_, public, _ := strings.Cut(config.Listen[0], ":")
	_, admin, _ := strings.Cut(config.Admin.Listen[0], ":")
	for _, want := range []string{" " + service.Name + ":" + public + " ", " port " + admin + " "} {
		if !strings.Contains(balancer, want) {
			t.Errorf("haproxy has no %q", want)
		}
	}
}
