package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/mcp-proxy/mcp-proxy/"

// mayImport is the architecture drawing as a table: which of our packages each package may import.
var mayImport = map[string][]string{
	"internal/identity":         {},
	"internal/jsonrpc":          {"internal/identity"},
	"internal/mcp":              {"internal/jsonrpc"},
	"internal/peer":             {"internal/jsonrpc", "internal/mcp"},
	"internal/jsonrpc/conntest": {"internal/jsonrpc"},
	"internal/jsonrpc/wsconn":   {"internal/jsonrpc"},
	"internal/glob":             {},
	"proxy/catalog":             {"internal/glob", "internal/jsonrpc", "internal/mcp"},
	"proxy/lists":               {"internal/jsonrpc", "internal/mcp", "internal/peer", "internal/secretfile", "proxy/catalog", "proxy/policy"},
	"proxy/listen":              {"internal/jsonrpc", "internal/mcp", "proxy/catalog"},
	"proxy/cluster":             {"internal/jsonrpc", "internal/secretfile", "upstream/link"},
	"proxy/policy":              {"internal/glob", "internal/identity"},
	"proxy/owners":              {"internal/identity", "internal/jsonrpc", "internal/mcp", "proxy/catalog"},
	"proxy/session":             {"internal/identity", "internal/jsonrpc", "internal/mcp", "internal/observe", "internal/peer", "proxy/catalog", "proxy/listen", "proxy/lists", "proxy/owners", "proxy/policy"},
	"proxy/frontend":            {"internal/identity", "internal/jsonrpc", "internal/jsonrpc/wsconn", "internal/mcp"},
	"proxy/stdio":               {"internal/jsonrpc"},
	"proxy/auth":                {"internal/identity", "internal/jwt"},
	"proxy/ops":                 {"config", "internal/identity", "internal/jsonrpc", "internal/mcp", "internal/observe", "proxy/catalog", "proxy/ops/tap", "proxy/policy"},
	"proxy/ops/metrics":         {"internal/mcp", "internal/observe"},
	"proxy/ops/tap":             {"internal/glob", "internal/jsonrpc", "internal/mcp", "internal/observe"},
	"proxy/ops/traces":          {"internal/observe", "internal/secretfile"},
	"upstream":                  {"internal/jsonrpc", "internal/mcp", "internal/observe", "upstream/process", "upstream/shared"},
	"upstream/process":          {"internal/jsonrpc"},
	"upstream/eras":             {"internal/jsonrpc", "internal/mcp", "internal/peer", "internal/timers"},
	"upstream/shared":           {"internal/jsonrpc", "internal/mcp", "internal/peer", "internal/timers"},
	"upstream/link":             {"internal/jsonrpc", "internal/jsonrpc/wsconn"},
	"upstream/remote":           {"internal/jsonrpc", "internal/jsonrpc/wsconn", "internal/mcp", "internal/observe", "internal/secretfile", "internal/timers"},
	"upstream/replay":           {"internal/jsonrpc", "internal/mcp", "internal/observe"},
	"upstream/oauth":            {"internal/jsonrpc", "internal/jwt", "internal/secretfile"},
	"internal/lazyregexp":       {},
	"config/tree":               {"internal/lazyregexp"},
	"config/forms":              {"config/tree", "internal/lazyregexp"},
	"config":                    {"config/forms", "config/tree", "internal/lazyregexp"},
	"internal/jwt":              {"internal/secretfile"},
	"internal/secretfile":       {},
	"internal/observe":          {"internal/jsonrpc"},
	"internal/timers":           {},

	// The parts meet in the door, which programs embed.
	"proxy": {
		"config", "internal/identity", "internal/jsonrpc", "internal/jsonrpc/wsconn", "internal/jwt", "internal/mcp", "internal/observe", "internal/peer", "internal/secretfile", "internal/timers",
		"proxy/auth", "proxy/catalog", "proxy/cluster", "proxy/frontend", "proxy/lists", "proxy/ops", "proxy/ops/metrics", "proxy/ops/tap", "proxy/ops/traces", "proxy/policy", "proxy/session", "proxy/stdio",
		"upstream", "upstream/eras", "upstream/link", "upstream/oauth", "upstream/process", "upstream/remote", "upstream/replay", "upstream/shared",
	},
	"cmd/mcp-proxy":  {"config", "proxy"},
	"examples/embed": {"config", "proxy"},
}

// onlyIn says which packages may import an outside dependency: few, so that it can be replaced there.
var onlyIn = map[string]string{
	"github.com/hashicorp/yamux":                               "upstream/link",
	"github.com/hashicorp/memberlist":                          "proxy/cluster",
	"github.com/gorilla/websocket":                             "internal/jsonrpc/wsconn",
	"github.com/mattn/go-shellwords":                           "config",
	"github.com/fsnotify/fsnotify":                             "cmd/mcp-proxy",
	"github.com/coreos/go-systemd/v22/activation":              "cmd/mcp-proxy",
	"github.com/coreos/go-systemd/v22/daemon":                  "cmd/mcp-proxy",
	"github.com/tailscale/hujson":                              "config/tree",
	"go.yaml.in/yaml/v3":                                       "config/tree",
	"github.com/pelletier/go-toml/v2":                          "config/tree",
	"github.com/agnivade/levenshtein":                          "config",
	"github.com/subosito/gotenv":                               "config",
	"github.com/spf13/viper":                                   "config",
	"golang.org/x/sync/semaphore":                              "upstream/remote",
	"github.com/gofrs/flock":                                   "upstream/oauth proxy/lists",
	"github.com/zalando/go-keyring":                            "upstream/oauth",
	"github.com/lmittmann/tint":                                "cmd/mcp-proxy",
	"github.com/spf13/cobra":                                   "cmd/mcp-proxy",
	"github.com/spf13/pflag":                                   "cmd/mcp-proxy",
	"github.com/go-json-experiment/json/jsontext":              "internal/jsonrpc",
	"github.com/go-jose/go-jose/v4":                            "internal/jwt",
	"github.com/go-jose/go-jose/v4/json":                       "internal/jwt",
	"go.opentelemetry.io/otel/attribute":                       "proxy/ops/traces",
	"go.opentelemetry.io/otel/baggage":                         "proxy/ops/traces",
	"go.opentelemetry.io/otel/codes":                           "proxy/ops/traces",
	"go.opentelemetry.io/otel/propagation":                     "proxy/ops/traces",
	"go.opentelemetry.io/otel/sdk/resource":                    "proxy/ops/traces",
	"go.opentelemetry.io/otel/sdk/trace":                       "proxy/ops/traces",
	"go.opentelemetry.io/otel/trace":                           "proxy/ops/traces",
	"google.golang.org/protobuf/encoding/protowire":            "proxy/ops/traces",
	"github.com/yosida95/uritemplate/v3":                       "proxy/catalog",
	"github.com/tmaxmax/go-sse":                                "", // only tests
	"github.com/nlnwa/whatwg-url/url":                          "",
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace":        "",
	"go.opentelemetry.io/proto/otlp/trace/v1":                  "",
	"google.golang.org/protobuf/proto":                         "",
	"github.com/prometheus/common/expfmt":                      "",
	"github.com/prometheus/common/model":                       "",
	"github.com/modelcontextprotocol/go-sdk/mcp":               "examples",
	"github.com/modelcontextprotocol/go-sdk/jsonrpc":           "examples",
	"github.com/google/jsonschema-go/jsonschema":               "",
	"github.com/tidwall/gjson":                                 "",
	"github.com/segmentio/encoding/json":                       "",
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest": "",
}

func TestImportsAreTheDrawing(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		pkg := strings.TrimPrefix(fields[0], module)
		for _, imported := range fields[1:] {
			ours, isOurs := strings.CutPrefix(imported, module)
			if allowed, restricted := mayImport[pkg]; restricted && isOurs && !slices.Contains(allowed, ours) {
				t.Errorf("%s must not import %s", pkg, ours)
			}
			if only, restricted := onlyIn[imported]; restricted && !slices.Contains(strings.Fields(only), pkg) && !(only == "examples" && strings.HasPrefix(pkg, "examples/")) {
				t.Errorf("%s must not import %s", pkg, imported)
			}
		}
	}
}

// notLinked are packages that make the binary larger, its build slower and an idle proxy heavier than what they do is worth.
var notLinked = []string{
	"google.golang.org/protobuf/reflect/", // and with it all generated code
	"google.golang.org/grpc",
	"github.com/prometheus/",
}

// Nothing that the binary needs imports them, either.
func TestTheBinaryLacks(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		for _, unwanted := range notLinked {
			if strings.HasPrefix(line, unwanted) {
				t.Errorf("the binary has %s", line)
			}
		}
	}
}
