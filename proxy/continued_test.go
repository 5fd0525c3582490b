package proxy_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// keeperEra is the variable that makes the test's program a server on stdio, of that era, which keeps
// something for clients under names that each of its processes gives alike. Its tools:
//
//	ask    asks the client, and then returns what came with the answer, and its process
//	task   becomes a task, which says in its statusMessage which process has it
const keeperEra = "TEST_KEEPER_SERVER"

func init() {
	if era := os.Getenv(keeperEra); era != "" {
		keep(era)
		os.Exit(0)
	}
}

// keptState is what the modern server gives, as it writes it.
const keptState = `"s\u00e9\/1 :=="`

func keep(era string) {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	var asked string // the id of the call that asks, in the legacy era
	for lines.Scan() {
		var m struct {
			ID             json.RawMessage
			Method         string
			Params, Result json.RawMessage
		}
		if json.Unmarshal(lines.Bytes(), &m) != nil || m.ID == nil {
			continue
		}
		answer := func(id, result string) { fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", id, result) }
		said := func(text string) string {
			return fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":%s}]}`, jsonrpc.Quote(fmt.Sprint(text, " at ", os.Getpid())))
		}
		name, _ := jsonrpc.Member(m.Params, "name")
		state, _ := jsonrpc.Member(m.Params, "requestState")
		task := fmt.Sprintf(`"taskId":"task-1","status":"working","statusMessage":"at %d","ttlMs":null`, os.Getpid())
		id := string(m.ID)
		switch {
		case m.Method == "server/discover" && era == "modern":
			answer(id, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"ttlMs":0,"cacheScope":"private"}`)
		case m.Method == "initialize" && era == "legacy":
			answer(id, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"keeper","version":"1"}}`)
		case m.Method == "tools/list":
			answer(id, `{"resultType":"complete","tools":[{"name":"ask","inputSchema":{"type":"object"}},{"name":"task","inputSchema":{"type":"object"}}],"ttlMs":0,"cacheScope":"private"}`)
		case m.Method == "" && id == `"q"`:
			answer(asked, said(string(m.Result)))
		case string(name) == `"ask"` && era == "legacy":
			asked = id
			fmt.Println(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"well?","requestedSchema":{"type":"object","properties":{}}}}`)
		case string(name) == `"ask"` && state == nil:
			answer(id, `{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"well?","requestedSchema":{"type":"object","properties":{}}}}},"requestState":`+keptState+`}`)
		case string(name) == `"ask"`:
			answer(id, said(string(state)))
		case string(name) == `"task"`:
			answer(id, `{"resultType":"task",`+task+`}`)
		case strings.HasPrefix(m.Method, "tasks/"):
			answer(id, `{"resultType":"complete",`+task+`}`)
		default:
			fmt.Printf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}`+"\n", id)
		}
	}
}

// A keepers is three replicas in front of a keeper each.
type keepers struct {
	t        *testing.T
	replicas [3]*replica
	token    string
}

func newKeepers(t *testing.T, era string, change func(cfg *config.Config)) *keepers {
	t.Helper()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k := &keepers{t: t}
	var join []string
	for i := range k.replicas {
		k.replicas[i] = startReplicaOf(t, key, func(cfg *config.Config) {
			cfg.Upstreams = []config.Upstream{{
				Name: "s", Key: "upstreams.s", Era: era, StartTimeout: patience, WriteTimeout: patience, StopGrace: time.Second,
				Process: config.Process{Command: os.Args[0], Env: map[string]string{keeperEra: era}},
			}}
			if change != nil {
				change(cfg)
			}
		}, join...)
		join = []string{k.replicas[0].Snapshot().Replicas[0].Address}
	}
	for _, r := range k.replicas {
		r.knows(t, len(k.replicas))
	}
	return k
}

// ask asks one of the replicas.
func (k *keepers) ask(at int, method, name, params string) string {
	k.t.Helper()
	c := &caller{t: k.t, base: strings.TrimSuffix(k.replicas[at].url, "/mcp"), token: k.token, path: "/mcp", client: http.DefaultClient}
	_, text := c.ask(method, name, params)
	return text
}

// call calls a tool.
func (k *keepers) call(at int, tool, params string) string {
	k.t.Helper()
	return k.ask(at, "tools/call", tool, `,"name":"`+tool+`"`+params)
}

// given returns a string in an answer.
func (k *keepers) given(answer, key string) string {
	k.t.Helper()
	m, err := jsonrpc.Decode([]byte(answer))
	if err != nil {
		k.t.Fatalf("%s: %v", answer, err)
	}
	raw, _ := jsonrpc.Member(m.Result, key)
	if raw == nil {
		k.t.Fatalf("no %s in %s", key, answer)
	}
	return string(raw)
}

// answer returns the params of a retry.
func (k *keepers) answer(asked string) string {
	k.t.Helper()
	key := "q"
	if err := jsonrpc.Each(json.RawMessage(k.given(asked, "inputRequests")), func(k string, _ json.RawMessage) { key = k }); err != nil {
		k.t.Fatal(err)
	}
	return `,"inputResponses":{"` + key + `":{"action":"accept","content":{"a":1.0}}},"requestState":` + k.given(asked, "requestState")
}

// A call that a server of either era has suspended continues where it began, whichever replica its
// client comes back to. When that one is gone, the call has expired, although the process of another
// one would take the state.
func TestSuspendedAtAnotherReplica(t *testing.T) {
	for era, heard := range map[string]string{"legacy": `{\"action\":\"accept\",\"content\":{\"a\":1.0}} at `, "modern": string(jsonrpc.Quote(keptState + " at "))} {
		heard = strings.Trim(heard, `"`)
		t.Run(era, func(t *testing.T) {
			t.Parallel()
			k := newKeepers(t, era, nil)
			for at := range k.replicas {
				asked := k.call(at, "ask", "")
				if got := k.call((at+1)%3, "ask", k.answer(asked)); !strings.Contains(got, heard) {
					t.Errorf("the server got %s, want %s", got, heard)
				}
			}
			asked := k.call(0, "ask", "")
			forged := strings.Replace(k.answer(asked), "mcp-proxy:", "mcp-proxy:A", 1)
			if got := k.call(1, "ask", forged); !strings.Contains(got, map[string]string{"legacy": "request_state_expired", "modern": "mcp-proxy:A"}[era]) {
				t.Errorf("a forged name did not reach the server as it is: %s", got)
			}
			k.replicas[0].Close()
			k.replicas[1].knows(t, 2)
			if got := k.call(1, "ask", k.answer(asked)); !strings.Contains(got, "request_state_expired") {
				t.Errorf("after its replica has left: %s", got)
			}
		})
	}
}

// A task lives where it began, and is known everywhere by one name.
func TestTaskAtAnotherReplica(t *testing.T) {
	k := newKeepers(t, "modern", nil)
	began := k.call(0, "task", "")
	task, place := k.given(began, "taskId"), k.given(began, "statusMessage")
	name := strings.Trim(task, `"`)
	for i, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		for at := range k.replicas {
			got := k.ask((at+i)%3, method, name, `,"taskId":`+task)
			if k.given(got, "taskId") != task || k.given(got, "statusMessage") != place {
				t.Errorf("%s at %d: %s, want a task %s", method, at, got, place)
			}
		}
	}
	if other := k.given(k.call(1, "task", ""), "statusMessage"); other == place {
		t.Error("the replicas have one process")
	}
	k.replicas[0].Close()
	k.replicas[1].knows(t, 2)
	if got := k.ask(1, "tasks/get", name, `,"taskId":`+task); !strings.Contains(got, "unknown task") {
		t.Errorf("after its replica has left: %s", got)
	}
}

// Nobody gets what another principal was given, whichever replica has it.
func TestForeignThingsOfReplicas(t *testing.T) {
	tokens := []config.NamedToken{
		{Name: "alice", TokenFile: secretFile(t, "token-of-alice")}, {Name: "bob", TokenFile: secretFile(t, "token-of-bob")},
	}
	k := newKeepers(t, "modern", func(cfg *config.Config) { cfg.Auth.Tokens = tokens })
	k.token = "token-of-alice"
	asked, began := k.call(0, "ask", ""), k.call(0, "task", "")
	task := k.given(began, "taskId")
	name := strings.Trim(task, `"`)
	for at := range k.replicas {
		k.token = "token-of-bob"
		if got := k.call(at, "ask", k.answer(asked)); !strings.Contains(got, "request_state_expired") {
			t.Errorf("bob got %s", got)
		}
		if got := k.ask(at, "tasks/get", name, `,"taskId":`+task); !strings.Contains(got, "unknown task") {
			t.Errorf("bob got %s", got)
		}
		k.token = "token-of-alice"
		if got := k.ask(at, "tasks/get", name, `,"taskId":`+task); k.given(got, "taskId") != task {
			t.Errorf("alice got %s", got)
		}
		if got := k.call(at, "ask", k.answer(asked)); !strings.Contains(got, " at ") {
			t.Errorf("alice got %s", got)
		}
	}
}
