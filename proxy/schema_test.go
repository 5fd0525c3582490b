package proxy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

var update = flag.Bool("update", false, "write docs/schemas")

// answers are all that operators, and clients before they connect, get as JSON: the path, the type that is written, and the
// name of its schema.
var answers = []struct {
	path, schema string
	value        any
}{
	{"/status", "status.json", proxy.Snapshot{}},
	{"/events", "events.json", observe.Events{}},
	{"/events/ID", "event.json", proxy.Event{}},
	{"/explain/a__greet", "explain.json", proxy.Explanation{}},
	{"/calls", "calls.json", proxy.Calls{}},
	{"/connect.json", "connect.json", observe.ConnectInfo{}}, // for clients, at the address of serve

	// What commands print that ask no process.
	{"mcp-proxy tools --json", "tools.json", proxy.Offer{}},
	{"mcp-proxy doctor --json", "doctor.json", proxy.Diagnosis{}},
	{"mcp-proxy check --json", "check.json", proxy.Inspection{}},
	{"mcp-proxy version --json", "version.json", proxy.Build{}},

	{"mcp-proxy healthcheck --json", "healthcheck.json", proxy.Health{}}, // what it prints of an answer that is text
}

// TestSchemas: each answer for operators has a schema in docs, which is that of its type,
// and which real answers obey.
func TestSchemas(t *testing.T) {
	t.Parallel()
	server := sdkServer()
	t.Cleanup(server.Close)
	socket := filepath.Join(t.TempDir(), "admin.sock")
	cfg := config.Config{Upstreams: []config.Upstream{
		{Name: "a", Remote: config.Remote{URL: server.URL}}, {Name: "gone", Process: config.Process{Command: "/there/is/none"}},
	}}
	p, url := serveWith(t, cfg, proxy.Options{AdminSocket: socket})
	client := connect(url)
	defer client.Close()
	if _, err := client.ListTools(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	dialStdio(t, p).leave()

	documented, err := filepath.Glob("../docs/schemas/*.json")
	if err != nil || len(documented) != len(answers)+len(tapLines) && !*update {
		t.Errorf("%v are in docs/schemas, and there are %d answers (%v)", documented, len(answers)+len(tapLines), err)
	}
	for _, a := range answers {
		schema := schemaOf(t, reflect.TypeOf(a.value))
		agrees(t, filepath.Join("../docs/schemas", a.schema), schema)
		rules, err := schema.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		var text []byte
		switch a.path {
		case "/connect.json":
			text = []byte(visit(t, strings.TrimSuffix(url, "/mcp")+a.path).body)
		case "mcp-proxy tools --json":
			text = printed(t, cfg, func(ctx context.Context, p *proxy.Proxy, c *proxy.Client) (any, error) { return p.Offer(ctx, c, true) })
		case "mcp-proxy healthcheck --json":
			text = []byte(`{"ok":false,"says":["drain: shutting down","not ready"]}`)
		case "mcp-proxy doctor --json":
			text = printed(t, cfg, func(ctx context.Context, _ *proxy.Proxy, _ *proxy.Client) (any, error) {
				return proxy.Diagnose(ctx, &cfg, proxy.Options{Log: slog.New(slog.DiscardHandler)})
			})
		case "mcp-proxy check --json":
			text, _ = json.Marshal(proxy.Inspect(config.Options{File: "/there/is/none.yaml"}))
		case "mcp-proxy version --json":
			text, _ = json.Marshal(proxy.BuildOf())
		default:
			text = operatorGets(t, socket, strings.Replace(a.path, "/ID", "/"+anyEvent(t, socket), 1))
		}
		var answer any
		if err := json.Unmarshal(text, &answer); err != nil {
			t.Errorf("%s: %v in %s", a.path, err, text)
		} else if err := rules.Validate(answer); err != nil {
			t.Errorf("%s: %v in %s", a.path, err, text)
		}
	}
}

// printed returns the JSON of a command that asks no process.
func printed(t *testing.T, cfg config.Config, find func(context.Context, *proxy.Proxy, *proxy.Client) (any, error)) []byte {
	t.Helper()
	p, _ := serveWith(t, *proxy.Quiet(&cfg), proxy.Options{})
	c, err := p.Client(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	found, err := find(t.Context(), p, c)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(found)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// anyEvent is the id of one that has happened.
func anyEvent(t *testing.T, socket string) string {
	t.Helper()
	var list observe.Events
	if err := json.Unmarshal(operatorGets(t, socket, "/events"), &list); err != nil || len(list.Events) == 0 {
		t.Fatalf("no events: %+v (%v)", list, err)
	}
	return list.Events[0].ID
}

func schemaOf(t *testing.T, of reflect.Type) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.ForType(of, &jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[jsonrpc.Cause]():   {Type: "string"},
		reflect.TypeFor[time.Time]():       {Type: "string", Format: "date-time"},
		reflect.TypeFor[json.RawMessage](): {}, // as somebody else has sent it
	}})
	if err != nil {
		t.Fatal(err)
	}
	schema.Schema = "https://json-schema.org/draft/2020-12/schema"
	return schema
}

// agrees compares a schema with the file that documents it, or writes that.
func agrees(t *testing.T, file string, schema *jsonschema.Schema) {
	t.Helper()
	want, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if has, err := os.ReadFile(file); err != nil || !bytes.Equal(has, want) {
		t.Errorf("%s is not the schema of the type (%v): go test ./proxy -run TestSchemas -update writes it", file, err)
	}
}

// operatorGets returns the body at a path of a Unix socket for operators.
func operatorGets(t *testing.T, socket, path string) []byte {
	t.Helper()
	resp, err := atSocket(t, socket).Get("http://localhost" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(path, resp.Status, err)
	}
	return text
}
