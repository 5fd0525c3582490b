package check_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// note writes down what runs in a pod, if PODS names a folder: the files of its ConfigMap, and for
// each container of ours a file whose lines have tabs between their words. .ci/image runs that.
func (a *applied) note(t *testing.T, pod string) {
	folder := os.Getenv("PODS")
	if folder == "" {
		return
	}
	for name, text := range a.config.Data {
		write(t, filepath.Join(folder, pod, "config", name), text)
	}
	for _, c := range slices.Concat(a.pod.InitContainers, a.pod.Containers) {
		if !slices.Contains(c.Args, "--config") {
			continue
		}
		lines := []string{"image\t" + c.Image}
		for _, word := range c.Command {
			lines = append(lines, "command\t"+word)
		}
		for _, word := range c.Args {
			lines = append(lines, "arg\t"+word)
		}
		if p := c.StartupProbe; p != nil && p.Exec != nil {
			lines = append(lines, "probe\t"+strings.Join(p.Exec.Command, "\t"))
		}
		for _, v := range c.Env {
			lines = append(lines, fmt.Sprintf("env\t%s=%s", v.Name, v.Value))
		}
		for _, m := range c.VolumeMounts {
			i := slices.IndexFunc(a.pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
			mode := "rw"
			if m.ReadOnly {
				mode = "ro"
			}
			lines = append(lines, strings.Join([]string{"mount", source(a.pod.Volumes[i]), m.MountPath, mode}, "\t"))
		}
		write(t, filepath.Join(folder, pod, c.Name), strings.Join(lines, "\n")+"\n")
	}
}

// source says what is in a volume.
func source(v corev1.Volume) string {
	switch {
	case v.ConfigMap != nil:
		return "config"
	case v.Secret != nil && len(v.Secret.Items) == 1:
		return "secret " + v.Secret.Items[0].Path
	case v.Secret != nil:
		return "secret mcp-token"
	case v.Image != nil:
		return "image " + v.Image.Reference
	}
	return "empty " + v.Name
}
