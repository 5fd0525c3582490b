package check_test

import (
	"archive/zip"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// decode refuses kinds, fields and types that Kubernetes does not know, and what its schemas
// do not allow.
func decode(text string) ([]runtime.Object, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme), policyv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	var all []runtime.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		if err := obeys(document, kind.Group, kind.Version, kind.Kind); err != nil {
			return nil, err
		}
		all = append(all, object)
	}
}

// obeys holds a document against the schema of its kind.
func obeys(document []byte, group, version, kind string) error {
	compiler, err := schemas()
	if err != nil {
		return err
	}
	name := strings.ToLower(kind)
	if group != "" {
		name += "-" + strings.SplitN(group, ".", 2)[0]
	}
	schema, err := compiler.Compile("kubernetes:///" + name + "-" + version + ".json")
	if err != nil {
		return err
	}
	var value any
	if err := yaml.Unmarshal(document, &value); err != nil {
		return err
	}
	return schema.Validate(value)
}

// schemas has those of Kubernetes 1.37 that know every key. They are in an archive.
var schemas = sync.OnceValues(func() (*jsonschema.Compiler, error) {
	out, err := exec.Command(filepath.Join(root, ".ci/kubernetes-schemas")).Output()
	if err != nil {
		return nil, fmt.Errorf(".ci/kubernetes-schemas: %w", err)
	}
	archive, err := zip.OpenReader(strings.TrimSpace(string(out)))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(zipped{archive})
	return compiler, nil
})

// zipped loads schemas from an archive, by the last part of their URL.
type zipped struct{ archive *zip.ReadCloser }

func (z zipped) Load(url string) (any, error) {
	f, err := z.archive.Open("kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict/" + filepath.Base(url))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return jsonschema.UnmarshalJSON(f)
}
