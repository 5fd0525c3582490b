package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// methodNames returns the names of all methods that package mcp knows.
func methodNames(t *testing.T) (names []string) {
	source, err := os.ReadFile("../../internal/mcp/method.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\tMethod\w+ += "(.+)"`).FindAllStringSubmatch(string(source), -1) {
		if mcp.MethodOf(m[1]).Name != m[1] {
			t.Errorf("%s is not in the table of methods", m[1])
		}
		names = append(names, m[1])
	}
	if len(names) < 36 {
		t.Fatalf("%d methods", len(names))
	}
	return names
}

// policiesOf returns policies of rules, whose keys are policies[0] and so on.
func policiesOf(t testing.TB, rules ...policy.Rule) *policy.Policies {
	t.Helper()
	for i := range rules {
		rules[i].Key = fmt.Sprintf("policies[%d]", i)
	}
	if len(rules) == 0 {
		return nil
	}
	p := new(policy.Policies)
	if _, err := p.Replace(rules); err != nil {
		t.Fatal(err)
	}
	return p
}

// identityOf returns the identity of a token: its name and, after that, scopes.
func identityOf(text string) *identity.Identity {
	words := strings.Fields(text)
	return &identity.Identity{Principal: identity.Principal{Kind: identity.Token, Name: words[0]}, Scopes: words[1:]}
}

// A layout is a set of upstreams and a naming, in which a client uses the things of files.
type layout struct {
	name      string
	upstreams []string
	naming    catalog.Naming
	prefix    *string // of files
	path      string
	exposed   string // before a tool's name
}

var layouts = func() []layout {
	own := "my"
	return []layout{
		{"several", []string{"files", "docs"}, catalog.PrefixAuto, nil, "", "files__"},
		{"bare names of several", []string{"files", "docs"}, catalog.PrefixAuto, nil, "", ""},
		{"one", []string{"files"}, catalog.PrefixAuto, nil, "", ""},
		{"one, by a former name", []string{"files"}, catalog.PrefixAuto, nil, "", "files__"},
		{"always", []string{"files"}, catalog.PrefixAlways, nil, "", "files__"},
		{"never", []string{"files", "docs"}, catalog.PrefixNever, nil, "", ""},
		{"a prefix of its own", []string{"files", "docs"}, catalog.PrefixAuto, &own, "", "my__"},
		{"a path of its own", []string{"files", "docs"}, catalog.PrefixAuto, nil, "files", ""},
	}
}()

// offering answers like a server that has tools, prompts and resources of these names, and like
// echo to all else.
func offering(upstream string, names ...string) func(*party, *jsonrpc.Message) {
	list := func(format string) string {
		var all []string
		for _, n := range names {
			all = append(all, fmt.Sprintf(format, n))
		}
		return strings.Join(all, ",")
	}
	offers := map[string]string{
		mcp.MethodToolsList:     `{"tools":[` + list(`{"name":%q}`) + `]}`,
		mcp.MethodPromptsList:   `{"prompts":[` + list(`{"name":%q}`) + `]}`,
		mcp.MethodResourcesList: `{"resources":[` + list(`{"uri":"file:///%s","name":"r"}`) + `]}`,
		mcp.MethodTemplatesList: `{"resourceTemplates":[` + list(`{"uriTemplate":"file:///%s/{x}","name":"t"}`) + `]}`,
	}
	return func(p *party, m *jsonrpc.Message) {
		if result, ok := offers[m.Method]; ok {
			p.conn.Send(jsonrpc.NewResult(m.ID, []byte(result)))
			return
		}
		echo(upstream)(p, m)
	}
}

// Denied things look like things that do not exist, under any name, in both eras; no server gets
// the request, no list has them, and allowed things work.
func TestDeniedIsUnknown(t *testing.T) {
	named := func(method, params string) func(l layout, name string) string {
		return func(l layout, name string) string {
			return fmt.Sprintf(`"method":%q,"params":%s`, method, fmt.Sprintf(params, l.exposed+name))
		}
	}
	uri := func(method, params string) func(l layout, name string) string {
		return func(_ layout, name string) string {
			return fmt.Sprintf(`"method":%q,"params":%s`, method, fmt.Sprintf(params, "file:///"+name))
		}
	}
	kinds := []struct {
		name string
		ask  func(l layout, name string) string
		list string
		eras []mcp.Era
	}{
		{"tool", named("tools/call", `{"name":%q}`), "tools/list", []mcp.Era{mcp.Legacy, mcp.Modern}},
		{"prompt", named("prompts/get", `{"name":%q}`), "prompts/list", []mcp.Era{mcp.Legacy, mcp.Modern}},
		{"completion of a prompt", named("completion/complete", `{"ref":{"type":"ref/prompt","name":%q},"argument":{}}`), "prompts/list", []mcp.Era{mcp.Legacy, mcp.Modern}},
		{"resource", uri("resources/read", `{"uri":%q}`), "resources/list", []mcp.Era{mcp.Legacy, mcp.Modern}},
		{"completion of a resource", uri("completion/complete", `{"ref":{"type":"ref/resource","uri":%q},"argument":{}}`), "resources/templates/list", []mcp.Era{mcp.Legacy, mcp.Modern}},
		{"subscription", uri("resources/subscribe", `{"uri":%q}`), "resources/list", []mcp.Era{mcp.Legacy}},
		{"end of a subscription", uri("resources/unsubscribe", `{"uri":%q}`), "resources/list", []mcp.Era{mcp.Legacy}},
	}
	rules := map[string]policy.Rule{
		"allowed": {Tools: policy.Globs{Allow: []string{"files__open*", "docs__*"}}, Prompts: policy.Globs{Allow: []string{"files__open*", "docs__*"}}, Resources: policy.Globs{Allow: []string{"file:///open*"}}},
		"denied":  {Tools: policy.Globs{Deny: []string{"files__secret*"}}, Prompts: policy.Globs{Deny: []string{"files__secret*"}}, Resources: policy.Globs{Deny: []string{"file:///secret*"}}},
	}
	t.Run("hostile URIs", deniedURIs)
	for how, rule := range rules {
		for _, k := range kinds {
			for _, l := range layouts {
				for _, era := range k.eras {
					t.Run(fmt.Sprintf("%s/%s/%s/%s", how, k.name, l.name, era), func(t *testing.T) {
						rule.Who.Any = true
						p := &Router{Naming: l.naming, Policies: policiesOf(t, rule)}
						inWorldOf(t, era, p, l.upstreams, func(w *world) {
							w.hands = map[string]func(*party, *jsonrpc.Message){"files": offering("files", "open", "secret"), "docs": offering("docs", "other")}
							w.configure(func(p *Router) {
								w.path = l.path
								p.Upstreams[0].Prefix = l.prefix
								p.Update(p.Upstreams, nil)
							})
							w.initialize()
							w.client.say(`{"jsonrpc":"2.0","id":"l","method":"` + k.list + `"}`)
							if got := strings.Join(w.client.take(), ""); strings.Contains(got, "secret") || !strings.Contains(got, "open") {
								t.Error("listed:", got)
							}
							ask := func(name string) string {
								w.client.say(`{"jsonrpc":"2.0","id":1,` + k.ask(l, name) + `}`)
								return strings.Join(w.client.take(), "")
							}
							if got := ask("open"); !strings.Contains(got, `"result"`) {
								t.Error("what is allowed:", got)
							}
							w.upstream("files").take()
							secret, none := ask("secret"), ask("secretnone")
							if strings.ReplaceAll(none, "secretnone", "secret") != secret || !strings.Contains(secret, `"error"`) {
								t.Errorf("denied: %s\nunknown: %s", secret, none)
							}
							for _, got := range w.upstream("files").take() {
								if strings.Contains(got, "secret") {
									t.Error("files got", got)
								}
							}
						})
					})
				}
			}
		}
	}
}

// hostileURIs lead a server to docs://private or to file:///secret, if the server reads them
// differently. proxy/policy has more.
var hostileURIs = []string{
	"docs://private/x", "DOCS://Private/x", "docs:private/x", "docs:///private//x", "docs://u@private:1/x", "docs://%70rivate/x", "docs://%2570rivate/x", "docs://private/x?q", "docs://private/x#f",
	"docs://public/../private/x", "docs://public/%2e%2e/private/x", "docs://public/%252e%252e/private/x", "docs://public/..;a/private/x", "docs://public/.\t./private/x", "docs://public/.\n./private/x",
	`docs://public/..\private/x`, "docs://public/..%5Cprivate/x", "docs:public/../private/x", "docs:../private/x", "docs://../private/x", " docs://private/x", "docs://private/x ", "docs://public/private\x00",
	"file:///secret/private", "file:/secret/private", "file:secret/private", "FILE:///SECRET/private", "file://localhost/secret/private", "file://other/secret/private", "/secret/private", "file:///public/..%2fsecret/private",
}

// deniedURIs is TestDeniedIsUnknown for URIs that servers may read differently.
func deniedURIs(t *testing.T) {
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	list := func(format string, behind ...string) string {
		var all []string
		for _, uri := range append(hostileURIs, "docs://public/open") {
			for _, b := range behind {
				all = append(all, fmt.Sprintf(format, text(uri+b)))
			}
		}
		return strings.Join(all, ",")
	}
	lists := map[string]string{
		mcp.MethodResourcesList: `{"resources":[` + list(`{"uri":%s,"name":"r"}`, "") + `]}`,
		mcp.MethodTemplatesList: `{"resourceTemplates":[{"uriTemplate":"docs://private{/x}","name":"t"},` + list(`{"uriTemplate":%s,"name":"t"}`, "/{x}", "{/x*}{?q}") + `]}`,
	}
	server := func(p *party, m *jsonrpc.Message) {
		if result, ok := lists[m.Method]; ok {
			p.conn.Send(jsonrpc.NewResult(m.ID, []byte(result)))
			return
		}
		echo("files")(p, m)
	}
	const completion = `"completion/complete","params":{"argument":{},"ref":{"type":"ref/resource","uri":%s}}`
	asks := map[mcp.Era][]string{mcp.Modern: {`"resources/read","params":{"uri":%s}`, completion}}
	asks[mcp.Legacy] = append(asks[mcp.Modern], `"resources/subscribe","params":{"uri":%s}`, `"resources/unsubscribe","params":{"uri":%s}`)
	for how, globs := range map[string]policy.Globs{
		"allowed": {Allow: []string{"docs://public/*", "file:///public/*"}},
		"denied":  {Deny: []string{"docs://private/*", "file:///secret/*"}},
	} {
		for _, names := range [][]string{{"files"}, {"files", "docs"}} {
			for era, formats := range asks {
				t.Run(fmt.Sprintf("%s/%d/%s", how, len(names), era), func(t *testing.T) {
					p := &Router{Policies: policiesOf(t, policy.Rule{Who: policy.Who{Any: true}, Resources: globs})}
					inWorldOf(t, era, p, names, func(w *world) {
						w.hands = map[string]func(*party, *jsonrpc.Message){"files": server}
						w.initialize()
						for method := range lists {
							w.client.say(`{"jsonrpc":"2.0","id":"l","method":"` + method + `"}`)
							if got := strings.Join(w.client.take(), ""); strings.Contains(strings.ToLower(got), "private") || !strings.Contains(got, "docs://public/open") {
								t.Errorf("%s: %s", method, got)
							}
						}
						w.upstream("files").take()
						w.wantUnknown(formats, text)
						if era == mcp.Modern {
							w.client.say(`{"jsonrpc":"2.0","id":9,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":` + text(append(hostileURIs, "docs://public/open")) + `}}}`)
							time.Sleep(time.Second)
							if got := strings.Join(w.client.take(), ""); !strings.Contains(got, `"resourceSubscriptions":["docs://public/open"]`) {
								t.Error("listens to", got)
							}
						}
						for name, streams := range w.conns {
							for _, p := range streams {
								if got := strings.Join(p.take(), ""); strings.Contains(strings.ToLower(got), "private") {
									t.Errorf("%s got %s", name, got)
								}
							}
						}
					})
				})
			}
		}
	}
}

// wantUnknown requests hostile and other URIs in all ways.
func (w *world) wantUnknown(formats []string, text func(any) string) {
	code := jsonrpc.CodeResourceNotFound
	if w.era == mcp.Modern {
		code = jsonrpc.CodeInvalidParams
	}
	for _, format := range formats {
		ask := func(uri string) string {
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":` + fmt.Sprintf(format, text(uri)) + `}`)
			return strings.Join(w.client.take(), "")
		}
		if got := ask("docs://public/open"); !strings.Contains(got, `"result"`) {
			w.t.Errorf("%s: what is allowed: %s", format, got)
		}
		for _, uri := range hostileURIs {
			unknown := &jsonrpc.Error{Code: code, Message: "Resource not found", Data: map[string]string{"uri": uri}}
			if got, want := ask(uri), `{"jsonrpc":"2.0","id":1,"error":`+string(unknown.Raw())+`}`; got != want {
				w.t.Errorf("%s of %q:\n%s\n%s", format, uri, got, want)
			}
		}
	}
}

// Each method of the table is decided, or needs no decision, so that a new one is not overlooked.
func TestEveryMethodIsDecided(t *testing.T) {
	const (
		byName    = "by the name that it resolves to"
		byURI     = "by its URI"
		byMethod  = "by the methods of the rule"
		byTask    = "by the tool of its task"
		bySight   = "goes only to upstreams that the client sees, and merges what it sees"
		byFilter  = "its filter is confined, and what comes for it"
		here      = "is about this hop"
		ofRequest = "belongs to a request, which was decided"
		toServer  = "answers or tells a server what it has asked this client"
		toClient  = "comes from a server that the client sees"
	)
	decided := map[string]string{
		mcp.MethodInitialize: bySight, mcp.MethodPing: here, mcp.MethodDiscover: bySight, mcp.MethodListen: byFilter, mcp.MethodSetLevel: bySight,
		mcp.MethodToolsList: bySight, mcp.MethodPromptsList: bySight, mcp.MethodResourcesList: bySight, mcp.MethodTemplatesList: bySight,
		mcp.MethodToolsCall: byName, mcp.MethodPromptsGet: byName, mcp.MethodComplete: byName,
		mcp.MethodResourcesRead: byURI, mcp.MethodSubscribe: byURI, mcp.MethodUnsubscribe: byURI, mcp.MethodResourceUpdated: byURI,
		mcp.MethodTasksList: byTask, mcp.MethodTasksGet: byTask, mcp.MethodTasksResult: byTask, mcp.MethodTasksUpdate: byTask, mcp.MethodTasksCancel: byTask,
		mcp.MethodTaskStatus: byTask, mcp.MethodTask: byTask,
		mcp.MethodRootsList: toClient, mcp.MethodSample: toClient, mcp.MethodElicit: toClient, mcp.MethodElicited: toClient, mcp.MethodLog: toClient,
		mcp.MethodInitialized: here, mcp.MethodRootsChanged: toServer,
		mcp.MethodCancelled: ofRequest, mcp.MethodProgress: ofRequest, mcp.MethodAcknowledged: ofRequest,
		mcp.MethodSkillsList: byURI, mcp.MethodSkillsGet: byURI, mcp.MethodDirectoryRead: byURI,
		mcp.MethodEventsList: byMethod, mcp.MethodEventsPoll: byMethod, mcp.MethodEventsStream: byMethod, mcp.MethodEventsSubscribe: byMethod, mcp.MethodEventsUnsubscribe: byMethod,
		mcp.MethodToolsChanged: toClient, mcp.MethodPromptsChanged: toClient, mcp.MethodResourcesChanged: toClient,
	}
	all := methodNames(t)
	for _, name := range all {
		if decided[name] == "" {
			t.Errorf("%s: who says that a client may do this? See policy.go", name)
		}
	}
	// Clients that may do nothing send no request to a server, whatever the method.
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, listed := range []bool{false, true} { // a rule about somebody else, or one that allows something else
			rule := policy.Rule{Who: policy.Who{Token: "other"}}
			if listed {
				rule = policy.Rule{Who: policy.Who{Any: true}, Tools: policy.Globs{Allow: []string{"files__open"}}}
			}
			for _, names := range [][]string{{"files"}, {"files", "docs"}} {
				for _, method := range append(all, "vendor/thing", "tasks/other", "vendor/list", "notifications/vendor") {
					p := &Router{Policies: policiesOf(t, rule)}
					inWorldOf(t, era, p, names, func(w *world) {
						w.initialize()
						params := `{"name":"echo","uri":"test://files/a","taskId":"t","ref":{"type":"ref/resource","uri":"test://files/a"},"level":"info","notifications":{"resourceSubscriptions":["test://files/a"]},"requestId":"x","progressToken":"x","vendor":1}`
						id := `"id":1,`
						if strings.HasPrefix(method, "notifications/") {
							id = ""
						}
						w.client.say(`{"jsonrpc":"2.0",` + id + `"method":"` + method + `","params":` + params + `}`)
						synctest.Wait()
						for name, streams := range w.conns {
							for _, p := range streams {
								for _, got := range p.take() {
									ours := strings.Contains(got, `"test://`) || strings.Contains(got, `"vendor":1`) || strings.Contains(got, `"echo"`)
									passes := slices.Contains([]string{toServer, bySight, byTask}, decided[method]) // files is seen, and nobody knows of which tool t is
									if !listed || ours && !passes {
										t.Errorf("%s, %v, listed %v: %s got %s", era, names, listed, name, got)
									}
								}
							}
						}
					})
				}
			}
		}
	}
}

// A rule that restricts anything denies unknown methods, but for those that it allows by name. What
// these name in their params is decided as for known methods.
func TestExtensionsAreDecided(t *testing.T) {
	denies := policy.Rule{Who: policy.Who{Any: true}, Tools: policy.Globs{Deny: []string{"files__delete"}}, Resources: policy.Globs{Deny: []string{"test://files/secret*"}}}
	allows := denies
	allows.Methods = []string{"acme/*"}
	for _, c := range []struct {
		rule           policy.Rule
		method, params string
		passes         bool
	}{
		{denies, "acme/run", `{}`, false},
		{allows, "other/run", `{}`, false},
		{allows, "acme/run", `{}`, true},
		{allows, "acme/run", `{"uri":"test://files/a","name":"open"}`, true},
		{allows, "acme/run", `{"uri":"test://files/secret"}`, false},
		{allows, "acme/run", `{"uri":1}`, false},
		{allows, "acme/run", `{"name":"delete"}`, false},
		{allows, "acme/run", `{"name":"files__delete"}`, false},
		{denies, "notifications/acme", ``, false},
		{policy.Rule{Who: policy.Who{Any: true}}, "acme/run", `{}`, true},
		{denies, "skills/get", `{"uri":"test://files/secret"}`, false},
		{denies, "resources/directory/read", `{"uri":"test://files/secret"}`, false},
	} {
		for _, names := range []string{"files", "files docs"} {
			p := &Router{Policies: policiesOf(t, c.rule)}
			inWorld(t, p, strings.Fields(names), func(w *world) {
				w.offersTools("files", "open", "delete")
				w.initialize()
				w.client.say(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
				synctest.Wait()
				w.client.take()
				w.upstream("files").take()
				params := c.params
				if names == "files docs" {
					p.Update([]Upstream{{Name: "files", Methods: []string{"acme/*"}}, {Name: "docs"}}, nil)
					synctest.Wait()
				}
				id := `"id":1,`
				if params == "" {
					id, params = "", `{}`
				}
				w.client.say(`{"jsonrpc":"2.0",` + id + `"method":"` + c.method + `","params":` + params + `}`)
				synctest.Wait()
				got := strings.Join(w.upstream("files").take(), "")
				if strings.Contains(got, c.method) != c.passes {
					t.Errorf("%s %s, %s: the server got %q, want %v", c.method, c.params, names, got, c.passes)
				}
			})
		}
	}
}

// A rule says to which URLs servers may send events; where it says nothing, to none. Skills are
// resources: what a rule denies is not listed.
func TestSkillsAndEventsAreDecided(t *testing.T) {
	rule := policy.Rule{
		Who: policy.Who{Any: true}, Resources: policy.Globs{Deny: []string{"skill://secret/*"}}, Methods: []string{"events/*"},
		Deliver: []string{"https://hooks.example.com/*"},
	}
	silent := rule
	silent.Deliver = nil
	subscribe := func(url string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"events/subscribe","params":{"name":"mail","delivery":{"mode":"webhook"` + url + `}}}`
	}
	for _, c := range []struct {
		rule   policy.Rule
		says   string
		passes bool
	}{
		{rule, subscribe(`,"url":"https://hooks.example.com/a"`), true},
		{rule, subscribe(`,"url":"https://example.com/a"`), false},
		{rule, subscribe(`,"url":"https://hooks.example.com/a","url":"https://example.com/a"`), false},
		{rule, subscribe(``), false},
		{silent, subscribe(`,"url":"https://hooks.example.com/a"`), false},
	} {
		inWorld(t, &Router{Policies: policiesOf(t, c.rule)}, []string{"files"}, func(w *world) {
			w.initialize()
			w.upstream("files").take()
			w.client.say(c.says)
			synctest.Wait()
			if got := w.upstream("files").take(); (len(got) > 0) != c.passes {
				t.Errorf("%s: the server got %q", c.says, got)
			}
		})
	}
	p := &Router{Policies: policiesOf(t, rule)}
	inWorld(t, p, []string{"files"}, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"files": func(p *party, m *jsonrpc.Message) {
			switch m.Method {
			case mcp.MethodInitialize:
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"extensions":{"io.modelcontextprotocol/skills":{}}}}`)))
			case mcp.MethodSkillsList:
				p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"skills":[{"uri":"skill://open/SKILL.md"},{"uri":"skill://secret/SKILL.md"}]}`)))
			}
		}}
		w.initialize()
		w.client.take()
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"skills/list"}`)
		synctest.Wait()
		if got := strings.Join(w.client.take(), ""); !strings.Contains(got, "skill://open") || strings.Contains(got, "secret") {
			t.Errorf("the client sees %s", got)
		}
	})
}

// Elements of an array are decided separately, by the grant of their sender.
func TestBatchesAreDecided(t *testing.T) {
	rule := policy.Rule{Who: policy.Who{Token: "ci"}, Tools: policy.Globs{Deny: []string{"docs__*"}}}
	inWorld(t, &Router{Policies: policiesOf(t, rule)}, []string{"files", "docs"}, func(w *world) {
		w.client.who = identityOf("ci")
		w.client.say(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}}`)
		w.client.take()
		w.list()
		w.client.say(`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"docs__echo"}},{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"files__echo"}}]`)
		denied := `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Unknown tool: docs__echo"}}`
		allowed := `{"jsonrpc":"2.0","id":2,"result":{"content":[],"structuredContent":{"by":"files","args":{}}}}`
		got := w.client.take() // responses may come in any order
		if len(got) != 1 || got[0] != "["+denied+","+allowed+"]" && got[0] != "["+allowed+","+denied+"]" {
			t.Errorf("got %q", got)
		}
	})
}

// Things hidden from a client neither make a bare name ambiguous nor precede visible ones of the
// same name.
func TestHiddenNamesDoNotClash(t *testing.T) {
	for _, naming := range []catalog.Naming{catalog.PrefixAuto, catalog.PrefixNever} {
		rule := policy.Rule{Who: policy.Who{Any: true}, Tools: policy.Globs{Deny: []string{"files__*"}}}
		inWorld(t, &Router{Naming: naming, Policies: policiesOf(t, rule)}, []string{"files", "docs"}, func(w *world) {
			w.initialize()
			w.list()
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`)
			w.client.want(`{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"by":"docs","args":{}}}}`)
		})
	}
}

// The open requests of a principal count over its sessions and eras. Requests that it no longer
// waits for do not count, and another principal is not delayed.
func TestLimitsOfPrincipals(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		w.configure(func(p *Router) {
			p.Policies = policiesOf(t, policy.Rule{Who: policy.Who{Any: true}, Limits: policy.Limits{InFlight: 2}})
		})
		call := func(id int) {
			w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo"}}`, id))
		}
		const full = `{"jsonrpc":"2.0","id":%d,"error":{"code":-32603,"message":"Too many requests in flight: try again in 1 s","data":{"reason":"overloaded","phase":"not_sent","retryable":true}}} refused: 429  [] 1s`
		w.client.who = identityOf("a")
		w.initialize()
		w.upstream("files").mute()
		call(1)
		call(2)
		call(3)
		w.client.want(fmt.Sprintf(full, 3))
		w.client.say(`{"jsonrpc":"2.0","id":4,"method":"ping"}`)
		if got := w.client.take(); len(got) != 1 || strings.Contains(got[0], "overloaded") {
			t.Error("a ping is not counted:", got)
		}
		first, ended := w.client, w.ended
		cancel := w.cancel
		w.connect() // another session
		w.client.who = identityOf("a")
		call(5)
		if got := w.client.take(); len(got) != 1 || !strings.Contains(got[0], "Too many requests in flight") {
			t.Error("another session of the same principal:", got)
		}
		w.client.who = identityOf("b")
		w.initialize()
		call(6)
		if w.era == mcp.Legacy {
			w.client.want(`{"jsonrpc":"2.0","id":6,"result":{"content":[],"structuredContent":{"by":"files","args":{}}}}`)
		}
		w.client.who = identityOf("a")
		first.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		synctest.Wait()
		call(7)
		if got := w.client.take(); len(got) == 1 && strings.Contains(got[0], "overloaded") {
			t.Error("a cancelled call counts:", got)
		}
		cancel() // and so does the session, with what is in flight
		<-ended
		first.conn.Close()
		for id := 10; id < 12; id++ {
			call(id)
		}
		for _, got := range w.client.take() {
			if strings.Contains(got, "overloaded") {
				t.Error("after the end of the first session:", got)
			}
		}
	})
}

// Beyond its rate a principal gets the time to retry, and the log has one line a minute.
func TestRateOfPrincipals(t *testing.T) {
	inEras(t, &Router{}, []string{"files"}, func(w *world) {
		var log safeBuffer
		w.configure(func(p *Router) {
			p.Log = slog.New(slog.NewTextHandler(&log, nil))
			p.Policies = policiesOf(t, policy.Rule{Who: policy.Who{Any: true}, Limits: policy.Limits{Rate: 0.5}})
		})
		w.initialize()
		refused := 0
		for id := range 30 {
			w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo"}}`, id))
			if got := strings.Join(w.client.take(), ""); strings.Contains(got, "overloaded") {
				refused++
				if !strings.HasSuffix(got, "refused: 429  [] 2s") || !strings.Contains(got, "Too many requests: try again in 2 s") {
					t.Error(got)
				}
			}
		}
		if refused != 21 { // the burst is 10, of which initialize has taken one
			t.Error(refused, "of 30 calls refused")
		}
		time.Sleep(2 * time.Second)
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}`)
		if got := strings.Join(w.client.take(), ""); strings.Contains(got, "overloaded") {
			t.Error("after 2 s:", got)
		}
		if n := strings.Count(log.String(), "exceeds its limits"); n != 1 {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
	})
}

// The log names the rule that denied a request, and has nothing of the request beyond its name.
func TestLogNamesTheRule(t *testing.T) {
	for _, names := range [][]string{{"files"}, {"files", "docs"}} {
		var log safeBuffer
		p := &Router{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Policies: policiesOf(t, policy.Rule{Who: policy.Who{Token: "x"}}, policy.Rule{Who: policy.Who{Token: "ci"}, Tools: policy.Globs{Allow: []string{"files__no"}}})}
		inWorld(t, p, names, func(w *world) {
			w.client.who = identityOf("ci")
			w.initialize()
			prefix := ""
			if len(names) > 1 {
				prefix = "files__"
			}
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + prefix + `echo","arguments":{"k":"payload"}}}`)
			w.client.say(`{"jsonrpc":"2.0","id":2,"method":"resources/read","params":{"uri":"file:///payload"}}`)
			w.client.take()
			for _, want := range []string{`msg="denied by a policy"`, "method=tools/call name=files__echo", "method=resources/read", "principal=token:ci rule=policies[1]"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("no %s in\n%s", want, log.String())
				}
			}
			if strings.Contains(log.String(), "payload") {
				t.Error(log.String())
			}
		})
	}
}

// A safeBuffer may be written and read concurrently.
type safeBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// New rules apply to the next request, and the client is notified of the lists that change for it,
// and of no other.
func TestReplacePolicies(t *testing.T) {
	deny := func(globs ...string) []policy.Rule {
		return []policy.Rule{{Key: "policies[0]", Who: policy.Who{Any: true}, Tools: policy.Globs{Deny: globs}}}
	}
	const (
		call   = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a__echo"}}`
		denied = `Unknown tool: a__echo`
	)
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		inWorldOf(t, era, &Router{Policies: new(policy.Policies)}, []string{"a", "b"}, func(w *world) {
			changed := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
			if w.initialize(); era == mcp.Modern {
				w.client.say(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true}}}`)
				changed = toolsOfListen
			}
			w.list()
			w.client.take()
			replace := func(rules []policy.Rule, told ...string) {
				t.Helper()
				if err := w.proxy.ReplacePolicies(rules); err != nil {
					t.Fatal(err)
				}
				w.wantSoon(told...)
			}
			id := 100
			mayCall := func(want bool) {
				t.Helper()
				id++
				w.client.say(fmt.Sprintf(call, id))
				if got := w.client.take(); len(got) != 1 || strings.Contains(got[0], denied) == want {
					t.Errorf("era %v: the call got %q, wanted that it may: %v", era, got, want)
				}
			}
			mayCall(true)
			replace(deny("a__echo"), changed)
			mayCall(false)
			replace(deny("a__echo", "a__nothing")) // no list shows a difference
			mayCall(false)
			replace(nil, changed)
			mayCall(true)
			if err := w.proxy.ReplacePolicies(deny("[")); err == nil {
				t.Error("a glob that is none is taken over")
			}
			mayCall(true)
		})
	}
}
