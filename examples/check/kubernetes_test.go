package check_test

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// kustomize is "kubectl kustomize".
func kustomize(t *testing.T, dir string) string {
	t.Helper()
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := rendered.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestKustomize renders the base and its overlays. Each has the two containers of the base, the
// tools as a sidecar that ends last, and a Service.
func TestKustomize(t *testing.T) {
	for _, dir := range []string{"sidecar", "kubernetes/image-volume", "kubernetes/copied", "kubernetes/npx", "kubernetes/replicas"} {
		t.Run(dir, func(t *testing.T) {
			text := kustomize(t, filepath.Join(root, "examples", dir))
			a := parse(t, text)
			tools, proxy := container(t, a.pod.InitContainers, "tools"), container(t, a.pod.Containers, "proxy")
			if r := tools.RestartPolicy; r == nil || *r != corev1.ContainerRestartPolicyAlways || tools.StartupProbe == nil {
				t.Error("the tools are no sidecar that the proxy waits for")
			}
			for _, c := range []corev1.Container{tools, proxy} {
				if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/run/mcp" && m.Name == "sockets" }) {
					t.Errorf("%s does not see the socket", c.Name)
				}
			}
			a.check(t)
			checkService(t, a)
			checkDrain(t, a, "app.yaml", 2)
			checkReplicas(t, a, "app.yaml", strings.HasSuffix(dir, "/replicas"))
			for name, config := range a.config.Data {
				checkConfig(t, name, config)
			}
			a.note(t, filepath.Base(dir))
		})
	}
}

// TestInPod renders an application with the component: in its pod, and in no other, the proxy
// is a sidecar that starts first.
func TestInPod(t *testing.T) {
	a := parse(t, kustomize(t, filepath.Join(root, "examples/kubernetes/in-pod")))
	c := container(t, a.pod.InitContainers, "mcp-proxy")
	if r := c.RestartPolicy; r == nil || *r != corev1.ContainerRestartPolicyAlways || c.StartupProbe == nil {
		t.Error("the proxy is no sidecar that the application waits for")
	}
	container(t, a.pod.Containers, "app")
	a.check(t)
	checkConfig(t, "mcp-proxy.yaml", a.config.Data["mcp-proxy.yaml"])
}

var yourOwn = regexp.MustCompile("(?ms)^```yaml\n(resources: .*?)^```$")

// TestOwnKustomization is the one of docs/operations.md, with the folders that are here. The
// images change where they are used, in image volumes, too.
func TestOwnKustomization(t *testing.T) {
	found := yourOwn.FindStringSubmatch(read(t, "docs/operations.md"))
	if found == nil {
		t.Fatal("docs/operations.md has none")
	}
	for _, base := range []string{"npx", "image-volume"} {
		dir := t.TempDir()
		own := strings.NewReplacer("github.com/mcp-proxy/mcp-proxy", "..", "npx", base).Replace(found[1])
		for name, text := range map[string]string{"kustomization.yaml": own, "tools.yaml": "upstreams: {mine: {command: mine}}\n"} {
			write(t, filepath.Join(dir, "own", name), text)
		}
		if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(filepath.Join(root, "examples"))); err != nil {
			t.Fatal(err)
		}
		text := kustomize(t, filepath.Join(dir, "own"))
		a := parse(t, text)
		if got := a.config.Data["tools.yaml"]; !strings.Contains(got, "mine") || a.config.Data["app.yaml"] == "" {
			t.Errorf("%s: the configurations are %v", base, a.config.Data)
		}
		if n := strings.Count(text, "registry.example.com/mcp-proxy:"); n != 2 || strings.Contains(text, " mcp-proxy:") {
			t.Errorf("%s: %d images of the registry in\n%s", base, n, text)
		}
	}
}

// TestComponent: what an application has for itself stays, and others are left alone. Lists in
// brackets can be merged, too.
func TestComponent(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "component"), os.DirFS(filepath.Join(root, "examples/kubernetes/component"))); err != nil {
		t.Fatal(err)
	}
	const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, labels: {mcp-proxy: LABEL}}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      initContainers: [{name: migrate, image: app}]
      containers: [{name: app, image: app}]
`
	for name, text := range map[string]string{
		"kustomization.yaml": "resources: [app.yaml, other.yaml]\ncomponents: [component]\nconfigMapGenerator:\n  - {name: mcp-proxy, files: [mcp-proxy.yaml]}\n",
		"mcp-proxy.yaml":     "admin: {listen: [\"0.0.0.0:9090\"]}\nupstreams: {docs: {url: \"https://docs.example.com/mcp\"}}\n",
		"app.yaml":           strings.NewReplacer("NAME", "app", "LABEL", "sidecar").Replace(deployment),
		"other.yaml":         strings.NewReplacer("NAME", "other", "LABEL", "none").Replace(deployment),
	} {
		write(t, filepath.Join(dir, name), text)
	}
	a := parse(t, kustomize(t, dir)) // with app, the first Deployment
	a.check(t)
	if all := a.pod.InitContainers; len(all) != 2 || all[0].Name != "mcp-proxy" || all[1].Name != "migrate" {
		t.Errorf("the containers that start first: %+v", all)
	}
	if len(a.others) != 1 || len(a.others[0].Spec.Template.Spec.InitContainers) != 1 {
		t.Errorf("a Deployment without the label is changed: %+v", a.others)
	}
}

func TestManifestMistakes(t *testing.T) {
	text := kustomize(t, filepath.Join(root, "examples/sidecar"))
	for _, w := range [][2]string{
		{"readOnlyRootFilesystem", "readOnlyRoot"}, // an unknown key
		{"replicas: 1", "replicas: one"},           // another type
		{"v1\nkind: Service", "v1\nkind: Servant"}, // an unknown kind
		{" name: tools\n", " workingDir: /\n"},     // what is required
	} {
		wrong(t, text, w[0], w[1], func(s string) error {
			_, err := decode(s)
			return err
		})
	}
}

// applied is what kubectl gets.
type applied struct {
	config   *corev1.ConfigMap
	service  *corev1.Service
	headless *corev1.Service // nil for none
	budget   *policyv1.PodDisruptionBudget
	replicas int32
	labels   map[string]string // of the pods
	pod      corev1.PodSpec
	others   []*appsv1.Deployment
}

// parse decodes manifests. Of several Deployments the first one counts.
func parse(t *testing.T, text string) *applied {
	t.Helper()
	objects, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	var a applied
	var deployments []*appsv1.Deployment
	for _, object := range objects {
		switch o := object.(type) {
		case *corev1.ConfigMap:
			a.config = o
		case *corev1.Service:
			if o.Spec.ClusterIP == corev1.ClusterIPNone {
				a.headless = o
			} else {
				a.service = o
			}
		case *policyv1.PodDisruptionBudget:
			a.budget = o
		case *appsv1.Deployment:
			deployments = append(deployments, o)
		}
	}
	if a.config == nil || len(deployments) == 0 {
		t.Fatalf("no ConfigMap and Deployment in\n%s", text)
	}
	template := deployments[0].Spec.Template
	for k, v := range deployments[0].Spec.Selector.MatchLabels {
		if template.Labels[k] != v {
			t.Errorf("the Deployment selects %s=%s, the pods have %v", k, v, template.Labels)
		}
	}
	if n := deployments[0].Spec.Replicas; n != nil {
		a.replicas = *n
	}
	a.labels, a.pod, a.others = template.Labels, template.Spec, deployments[1:]
	return &a
}

func container(t *testing.T, all []corev1.Container, name string) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no container %s", name)
	}
	return all[i]
}

// check follows names from where they are used to where they are declared.
func (a *applied) check(t *testing.T) {
	t.Helper()
	volumes := make(map[string]bool)
	for _, v := range a.pod.Volumes {
		if volumes[v.Name] {
			t.Errorf("two volumes are called %s", v.Name)
		}
		volumes[v.Name] = true
		if v.ConfigMap != nil && v.ConfigMap.Name != a.config.Name {
			t.Errorf("volume %s is of %s, which is not here", v.Name, v.ConfigMap.Name)
		}
	}
	runtimes := make(map[string]bool)
	for _, c := range slices.Concat(a.pod.InitContainers, a.pod.Containers) {
		for _, m := range c.VolumeMounts {
			if !volumes[m.Name] {
				t.Errorf("%s mounts %s, which is no volume of the pod", c.Name, m.Name)
			}
		}
		if i := slices.Index(c.Args, "--config"); i >= 0 { // one of ours
			a.checkProxy(t, c, c.Args[i+1])
			runtime := mounted(c, runtimeDir(t))
			if runtime == "" || runtimes[runtime] {
				t.Errorf("%s has no directory of its own for the socket of operators", c.Name)
			}
			runtimes[runtime] = true
		}
	}
}

// checkProxy checks a container that runs mcp-proxy with a configuration at a path.
func (a *applied) checkProxy(t *testing.T, c corev1.Container, path string) {
	t.Helper()
	text := a.config.Data[filepath.Base(path)]
	if text == "" || mounted(c, filepath.Dir(path)) == "" {
		t.Errorf("%s: %s is not in the ConfigMap, or not mounted", c.Name, path)
	}
	if !slices.Contains(c.Args, "--watch") || c.Lifecycle != nil {
		t.Errorf("%s does not watch its configuration, or has a hook", c.Name)
	}
	if s := c.SecurityContext; s == nil || !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL") {
		t.Errorf("%s may do too much: %+v", c.Name, s)
	}
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		switch {
		case probe == nil:
		case probe.HTTPGet != nil && !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
			return p.Name == probe.HTTPGet.Port.StrVal && strings.Contains(text, "0.0.0.0:9090") && p.ContainerPort == 9090
		}):
			t.Errorf("%s: a probe asks at port %s, where it does not listen", c.Name, &probe.HTTPGet.Port)
		case probe.Exec != nil && !strings.HasSuffix(probe.Exec.Command[len(probe.Exec.Command)-1], "/run/mcp/tools-admin.sock"),
			probe.Exec != nil && !strings.Contains(text, "/tools-admin.sock"):
			t.Errorf("%s: a probe runs %q, and its configuration listens elsewhere", c.Name, probe.Exec.Command)
		case probe.Exec != nil && c.Command != nil && c.Command[0] != probe.Exec.Command[0]:
			t.Errorf("%s: a probe runs %q, and the container %q", c.Name, probe.Exec.Command, c.Command)
		}
	}
	if c.Command != nil && !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return strings.HasPrefix(c.Command[0], m.MountPath+"/") }) {
		t.Errorf("%s: nothing is mounted at %s", c.Name, c.Command)
	}
}

// mounted is the volume that a container has at a path.
func mounted(c corev1.Container, path string) string {
	for _, m := range c.VolumeMounts {
		if m.MountPath == path {
			return m.Name
		}
	}
	return ""
}

// checkService: it leads to a port of the pods.
func checkService(t *testing.T, a *applied) {
	t.Helper()
	for k, v := range a.service.Spec.Selector {
		if a.labels[k] != v {
			t.Errorf("the Service selects %s=%s, the pods have %v", k, v, a.labels)
		}
	}
	port := a.service.Spec.Ports[0].TargetPort.StrVal
	if !slices.ContainsFunc(a.pod.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port })
	}) {
		t.Errorf("the Service leads to port %s, which no container has", port)
	}
}

// checkReplicas: several proxies find each other, in the ConfigMap's configuration of a name. Pods of
// one proxy have nothing for that.
func checkReplicas(t *testing.T, a *applied, name string, several bool) {
	t.Helper()
	var config struct {
		Cluster struct {
			KeyFile string
			Join    []string
		}
	}
	if err := yaml.Unmarshal([]byte(a.config.Data[name]), &config); err != nil {
		t.Fatal(err)
	}
	if !several {
		if a.headless != nil || a.budget != nil || config.Cluster.KeyFile != "" {
			t.Error("one proxy looks for others")
		}
		return
	}
	if a.headless == nil || a.budget == nil {
		t.Fatal("no headless Service, or no PodDisruptionBudget")
	}
	if a.replicas < 2 || a.service.Spec.SessionAffinity != "" {
		t.Errorf("%d replicas, affinity %q", a.replicas, a.service.Spec.SessionAffinity)
	}
	if joined, _, _ := strings.Cut(strings.Join(config.Cluster.Join, ","), "."); joined != a.headless.Name || !a.headless.Spec.PublishNotReadyAddresses {
		t.Errorf("they join %s, the headless Service is %s, with the addresses of pods that are not ready: %t", joined, a.headless.Name, a.headless.Spec.PublishNotReadyAddresses)
	}
	selects := []map[string]string{a.headless.Spec.Selector, a.budget.Spec.Selector.MatchLabels}
	for _, s := range selects {
		if !maps.Equal(s, a.service.Spec.Selector) {
			t.Errorf("%v is not what the Service selects", s)
		}
	}
	if n := a.budget.Spec.MaxUnavailable; n == nil || n.IntVal != 1 {
		t.Errorf("%v replicas may be missing", n)
	}
	proxy := container(t, a.pod.Containers, "proxy")
	if mounted(proxy, filepath.Dir(config.Cluster.KeyFile)) == "" {
		t.Errorf("nothing is mounted for %s", config.Cluster.KeyFile)
	}
	for _, want := range []struct {
		port     int32
		protocol corev1.Protocol
	}{{7946, corev1.ProtocolTCP}, {7946, corev1.ProtocolUDP}, {7947, corev1.ProtocolTCP}} {
		i := slices.IndexFunc(a.headless.Spec.Ports, func(p corev1.ServicePort) bool {
			return p.Port == want.port && cmp.Or(p.Protocol, corev1.ProtocolTCP) == want.protocol
		})
		if i < 0 || !slices.ContainsFunc(proxy.Ports, func(p corev1.ContainerPort) bool {
			return p.Name == a.headless.Spec.Ports[i].TargetPort.StrVal && p.ContainerPort == want.port && p.Protocol == want.protocol
		}) {
			t.Errorf("port %d (%s) is not open", want.port, want.protocol)
		}
	}
}

var drainDelay = regexp.MustCompile(`(?m)^drainDelay: *"?(?:\$\{[A-Z_]+:-)?(\w+)`)

// checkDrain holds the time that Kubernetes grants against what the proxy takes: the drainDelay of
// a configuration, and the shutdownGrace of a number of containers, one after the other.
func checkDrain(t *testing.T, a *applied, config string, containers int) {
	t.Helper()
	const shutdownGrace = 8 * time.Second // the default of all
	found := drainDelay.FindStringSubmatch(a.config.Data[config])
	if found == nil {
		t.Fatal("no drainDelay")
	}
	delay, err := time.ParseDuration(found[1])
	grace := time.Duration(*a.pod.TerminationGracePeriodSeconds) * time.Second
	if err != nil || delay <= 0 || grace <= delay+time.Duration(containers)*shutdownGrace {
		t.Errorf("drainDelay is %s, and the pod has %s: %v", delay, grace, err)
	}
}
