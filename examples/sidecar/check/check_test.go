// Package check_test holds the manifests of the sidecar example against the
// types and schemas of those who run them: compose-go is what docker compose
// loads its files with, k8s.io/api what kubectl decodes them into. It is a module
// of its own, so that nobody else needs theirs.
package check_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// loadCompose also finds volumes, secrets and services that are used and not
// declared.
func loadCompose(ctx context.Context, text string) (*types.Project, error) {
	return loader.LoadWithContext(ctx, types.ConfigDetails{
		WorkingDir:  "..",
		ConfigFiles: []types.ConfigFile{{Filename: "../compose.yaml", Content: []byte(text)}},
		Environment: types.Mapping{"MCP_TOKEN": "secret"},
	})
}

func TestCompose(t *testing.T) {
	text := read(t, "../compose.yaml")
	project, err := loadCompose(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range project.Services {
		stage := " AS " + s.Build.Target + "\n"
		if dockerfile := read(t, "../../../Dockerfile"); !strings.Contains(dockerfile, stage) {
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

func TestKubernetes(t *testing.T) {
	text := read(t, "../kubernetes.yaml")
	objects, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	var config *corev1.ConfigMap
	var service *corev1.Service
	var deployment *appsv1.Deployment
	for _, object := range objects {
		switch o := object.(type) {
		case *corev1.ConfigMap:
			config = o
		case *corev1.Service:
			service = o
		case *appsv1.Deployment:
			deployment = o
		}
	}
	if len(objects) != 3 || config == nil || service == nil || deployment == nil {
		t.Fatalf("%d objects: want a ConfigMap, a Service and a Deployment", len(objects))
	}
	template := deployment.Spec.Template
	for name, selector := range map[string]map[string]string{
		"deployment": deployment.Spec.Selector.MatchLabels, "service": service.Spec.Selector,
	} {
		for k, v := range selector {
			if template.Labels[k] != v {
				t.Errorf("the %s selects %s=%s, the pods have %v", name, k, v, template.Labels)
			}
		}
	}
	checkDrain(t, template.Spec, config.Data["app.yaml"])
	checkPod(t, template.Spec, config, service.Spec.Ports[0].TargetPort.StrVal)
	for _, w := range [][2]string{{"readOnlyRootFilesystem", "readOnlyRoot"}, {"replicas: 1", "replicas: one"}, {"v1\nkind: Service", "v1\nkind: Servant"}} {
		wrong(t, text, w[0], w[1], func(s string) error {
			_, err := decode(s)
			return err
		})
	}
}

// decode refuses kinds, fields and types that Kubernetes does not know.
func decode(text string) ([]runtime.Object, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewBufferString(text)))
	var all []runtime.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, object)
	}
}

// checkDrain holds the time that Kubernetes grants against what the proxy takes: drainDelay
// and shutdownGrace, and then that of the sidecar. Nobody sleeps in a preStop.
func checkDrain(t *testing.T, pod corev1.PodSpec, app string) {
	const shutdownGrace = 8 * time.Second // the default of both
	_, rest, _ := strings.Cut(app, "drainDelay: ")
	text, _, _ := strings.Cut(rest, " ")
	delay, err := time.ParseDuration(text)
	if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; err != nil || delay <= 0 || grace <= delay+2*shutdownGrace {
		t.Errorf("drainDelay is %s, and the pod has %s: %v", delay, grace, err)
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if c.Lifecycle != nil {
			t.Errorf("%s has a hook", c.Name)
		}
	}
}

// checkRuntime checks that the socket for operators has a place of its own in each
// container, since the image is read-only.
func checkRuntime(t *testing.T, containers []corev1.Container, dir string) {
	seen := make(map[string]bool)
	for _, c := range containers {
		i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == dir && !m.ReadOnly })
		if i < 0 || seen[c.VolumeMounts[i].Name] {
			t.Errorf("%s has no %s of its own", c.Name, dir)
			continue
		}
		seen[c.VolumeMounts[i].Name] = true
	}
}

// runtimeDir is the one that the image has.
func runtimeDir(t *testing.T) string {
	_, rest, _ := strings.Cut(read(t, "../../../Dockerfile"), "ENV XDG_RUNTIME_DIR=")
	dir, _, _ := strings.Cut(rest, "\n")
	if !strings.HasPrefix(dir, "/") {
		t.Fatal("the Dockerfile sets no XDG_RUNTIME_DIR")
	}
	return dir
}

// checkPod follows names from where they are used to where they are declared.
func checkPod(t *testing.T, pod corev1.PodSpec, config *corev1.ConfigMap, port string) {
	volumes := make(map[string]corev1.Volume)
	for _, v := range pod.Volumes {
		volumes[v.Name] = v
		if v.ConfigMap != nil && v.ConfigMap.Name != config.Name {
			t.Errorf("volume %s is of %s, which is not here", v.Name, v.ConfigMap.Name)
		}
	}
	var ports []string
	containers := slices.Concat(pod.InitContainers, pod.Containers)
	checkRuntime(t, containers, runtimeDir(t))
	for _, c := range containers {
		for _, p := range c.Ports {
			ports = append(ports, p.Name)
		}
		file := config.Data[strings.TrimPrefix(c.Args[2], "/etc/mcp/")]
		if file == "" {
			t.Errorf("%s: %s is not in the ConfigMap", c.Name, c.Args[2])
		}
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
			switch {
			case probe == nil:
			case probe.HTTPGet != nil && !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == probe.HTTPGet.Port.StrVal }):
				t.Errorf("%s: a probe asks at port %s, which it has not", c.Name, &probe.HTTPGet.Port)
			case probe.Exec != nil && !strings.Contains(file, probe.Exec.Command[len(probe.Exec.Command)-1]):
				t.Errorf("%s: a probe runs %q, and its configuration listens elsewhere", c.Name, probe.Exec.Command)
			}
		}
		for _, m := range c.VolumeMounts {
			if _, ok := volumes[m.Name]; !ok {
				t.Errorf("%s mounts %s, which is no volume of the pod", c.Name, m.Name)
			}
		}
		if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/run/mcp" && m.Name == "sockets" }) {
			t.Errorf("%s does not see the socket", c.Name)
		}
	}
	if len(containers) != 2 || !slices.Contains(ports, port) {
		t.Errorf("%d containers with ports %v, the service's is %s", len(containers), ports, port)
	}
}

// wrong proves that a check finds a mistake: the text with old replaced is
// refused.
func wrong(t *testing.T, text, old, mistake string, check func(string) error) {
	t.Helper()
	broken := strings.Replace(text, old, mistake, 1)
	if broken == text || check(broken) == nil {
		t.Errorf("nobody minds %q", mistake)
	}
}
