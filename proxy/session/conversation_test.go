package session

import (
	"context"
	"encoding/json"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

var update = flag.Bool("update", false, "rewrite what peers get in testdata/*.txtar")

// TestConversations plays testdata/*.txtar. The comment of an archive is the proxy's configuration
// (see configure), with prose after "#"; its files are the steps in order (see conversation.step).
// Messages are one a line.
func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no conversations", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			converse(t, archive)
			if *update {
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A conversation is a world that an archive controls.
type conversation struct {
	*world
	version string // that the client asks for
	more    bool   // upstreams are not known yet
	log     warnings
	rules   []policy.Rule
	offers  map[string]map[string]string // scripted results, by upstream and method
}

func converse(t *testing.T, archive *txtar.Archive) {
	c := &conversation{version: "2025-11-25", offers: map[string]map[string]string{}}
	p := &Router{Version: "1", Log: slog.New(&c.log)}
	c.configure(t, p, string(archive.Comment))
	p.Policies = policiesOf(t, c.rules...)
	if c.more {
		p.Update(p.Upstreams, farAway)
	}
	inWorld(t, p, nil, func(w *world) {
		c.world = w
		w.hands = map[string]func(*party, *jsonrpc.Message){}
		for i := range archive.Files {
			f := &archive.Files[i]
			body := lines(long.Replace(string(f.Data)))
			if got := c.step(f.Name, body); got != nil && *update {
				f.Data = []byte(short.Replace(strings.Join(append(got, ""), "\n")))
			} else if want := written(body); got != nil && !slices.Equal(got, want) {
				t.Errorf("%s (step %d)\n got:\n%s\nwant:\n%s", f.Name, i+1, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
		if rest := w.client.take(); len(rest) > 0 {
			t.Errorf("client got what nobody looked at:\n%s", strings.Join(rest, "\n"))
		}
	})
}

// farAway is a link that is not up yet.
var farAway = []Unknown{{Link: "far", End: jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Says: "has not connected yet (link lost)"}}}

// configure reads the lines "key: value" and "key upstream: value".
func (c *conversation) configure(t *testing.T, p *Router, comment string) {
	for _, line := range lines(comment) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			t.Fatal("not a key and a value:", line)
		}
		value = strings.TrimSpace(value)
		key, upstream, _ := strings.Cut(key, " ")
		var u *Upstream
		for i := range p.Upstreams {
			if p.Upstreams[i].Name == upstream {
				u = &p.Upstreams[i]
			}
		}
		switch key {
		case "upstreams":
			p.Upstreams, c.more = named(value)
		case "policy":
			c.rules = append(c.rules, policy.Rule{})
			if err := json.Unmarshal([]byte(value), &c.rules[len(c.rules)-1]); err != nil {
				t.Fatal(err)
			}
		case "naming":
			p.Naming = catalog.Naming(value)
		case "version":
			c.version = value
		case "list-timeout":
			p.ListTimeout, _ = time.ParseDuration(value)
		case "prefix":
			u.Prefix = &value
		case "allow":
			u.Allow = strings.Fields(value)
		case "deny":
			u.Deny = strings.Fields(value)
		case "methods":
			u.Methods = strings.Fields(value)
		case "start-timeout":
			u.StartTimeout, _ = time.ParseDuration(value)
		default:
			t.Fatal("unknown key:", line)
		}
	}
}

// step runs one step, "who verb", and returns the messages if it is a step that checks them.
func (c *conversation) step(name string, body []string) []string {
	c.t.Helper()
	who, verb, _ := strings.Cut(name, " ")
	first := strings.Join(body[:min(1, len(body))], "")
	switch {
	case name == "client initializes":
		c.handshake()
	case name == "client connects":
		c.world.cancel()
		<-c.ended
		c.connect()
	case name == "client is":
		c.client.who = identityOf(first)
	case name == "client half-closes":
		c.client.conn.CloseWrite()
	case name == "proxy serves":
		upstreams, more := named(first)
		c.proxy.Update(upstreams, map[bool][]Unknown{true: farAway}[more])
	case name == "proxy reaches no more":
		now := c.proxy.current()
		c.proxy.Update(now.upstreams, []Unknown{{Link: "far", End: jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused}, Failed: true}})
	case name == "link returns":
		c.proxy.Returned(strings.Fields(first)...)
	case name == "log gets":
		return c.log.take()
	case name == "time passes":
		d, err := time.ParseDuration(first)
		if err != nil {
			c.t.Fatal(err)
		}
		time.Sleep(d)
	case verb == "says":
		for _, m := range body {
			c.party(who).say(m)
			synctest.Wait()
		}
	case verb == "relates": // says, with the id of the request that it belongs to before each message
		for _, line := range body {
			id, text, _ := strings.Cut(line, " ")
			m := decode(c.t, text)
			m.Related, _ = jsonrpc.ParseID([]byte(id))
			c.party(who).conn.Send(m)
			synctest.Wait()
		}
	case verb == "gets":
		return append([]string{}, c.party(who).take()...)
	case verb == "gets, with any ids": // a call and the initialize that it causes get theirs side by side
		return anonymous(c.party(who).take())
	case verb == "gets, with any ids, and behind initialized in any order": // what waited and what begins go side by side
		got := anonymous(c.party(who).take())
		slices.Sort(got[min(2, len(got)):])
		return got
	case verb == "offers":
		c.script(who, body)
	case verb == "dies":
		c.die(who, first, true)
	case verb == "is down":
		c.reach(who, &jsonrpc.ClosedError{Cause: jsonrpc.ParseCause(first)})
	case verb == "is up":
		c.reach(who, nil)
	default:
		c.t.Fatal("unknown step:", name)
	}
	synctest.Wait()
	return nil
}

var anyID = regexp.MustCompile(`"id":[0-9]+`)

// anonymous returns messages with the id 0.
func anonymous(messages []string) []string {
	all := []string{}
	for _, text := range messages {
		all = append(all, anyID.ReplaceAllLiteralString(text, `"id":0`))
	}
	return all
}

// named returns upstreams with these names; "..." stands for others that are not known yet.
func named(names string) (upstreams []Upstream, more bool) {
	for _, name := range strings.Fields(names) {
		if name == "..." {
			more = true
			continue
		}
		upstreams = append(upstreams, Upstream{Name: name})
	}
	return upstreams, more
}

func (c *conversation) party(who string) *party {
	if who == "client" {
		return c.client
	}
	return c.upstream(who)
}

// handshake initializes the client and discards the messages meanwhile.
func (c *conversation) handshake() {
	c.client.say(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"` + c.version + `","capabilities":{"roots":{},"sampling":{},"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	c.client.take()
	c.client.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	c.client.take()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, streams := range c.conns {
		for _, p := range streams {
			p.take()
		}
	}
}

func (c *conversation) reach(upstream string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dial[upstream] = err
}

// script extends the answers of an upstream beyond echo: lines "method result", with "!error" for
// an error, "-" for no answer, and "method?cursor" for a page.
func (c *conversation) script(upstream string, body []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offers[upstream] == nil {
		c.offers[upstream] = map[string]string{}
	}
	for _, line := range body {
		key, value, _ := strings.Cut(line, " ")
		c.offers[upstream][key] = value
	}
	c.hands[upstream] = c.scripted(upstream)
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for _, p := range c.conns[stream(upstream, era)] {
			p.handle(c.hands[upstream])
		}
	}
}

func (c *conversation) scripted(upstream string) func(*party, *jsonrpc.Message) {
	return func(p *party, m *jsonrpc.Message) {
		key := m.Method
		if raw, _ := jsonrpc.Member(m.Params, "cursor"); raw != nil {
			cursor, _ := jsonrpc.Unquote(raw)
			key += "?" + cursor
		}
		c.mu.Lock()
		answer, ok := c.offers[upstream][key]
		c.mu.Unlock()
		if ok && m.Method == "initialize" && answer != "-" && answer[0] != '{' { // as a host does
			defer p.conn.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.CauseRefused, Event: anEvent, Lasting: true})
		}
		switch {
		case !ok:
			echo(upstream)(p, m)
		case answer == "-" || !m.IsRequest():
		case strings.HasPrefix(answer, "!"):
			p.conn.Send(&jsonrpc.Message{ID: m.ID, Error: json.RawMessage(answer[1:])})
		default:
			p.conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(answer)))
		}
	}
}

// lines returns the lines of text that are neither empty nor prose.
func lines(text string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			found = append(found, line)
		}
	}
	return found
}

// The members of _meta that claim the modern era, of several clients, have short
// names in archives.
var long, short = func() (*strings.Replacer, *strings.Replacer) {
	const version, capabilities = `"io.modelcontextprotocol/protocolVersion":"2026-07-28",`, `"io.modelcontextprotocol/clientCapabilities":{`
	names := []string{
		"$modern", version + capabilities + `}`,
		"$tasks", version + capabilities + `"extensions":{"io.modelcontextprotocol/tasks":{}}}`,
		"$vendor", version + capabilities + `"extensions":{"com.acme/x":{}}}`,
		"$named", version + `"io.modelcontextprotocol/clientInfo":{"name":"c","version":"9"},` + capabilities + `"sampling":{}}`,
		"$id", `"io.modelcontextprotocol/subscriptionId"`,
	}
	back := slices.Clone(names)
	slices.Reverse(back)
	return strings.NewReplacer(names...), strings.NewReplacer(back...)
}()

// written returns messages with the members of the envelope in their written order.
func written(messages []string) []string {
	for i, text := range messages {
		if m, err := jsonrpc.Decode([]byte(text)); err == nil {
			messages[i] = string(m.Append(nil))
		}
	}
	return messages
}

// warnings is a log that keeps warnings and errors.
type warnings struct {
	mu   sync.Mutex
	told []string
}

func (w *warnings) take() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	told := append([]string{}, w.told...)
	w.told = nil
	return told
}

// Enabled, Handle, WithAttrs and WithGroup implement slog.Handler.
func (w *warnings) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, r.Message)
	return nil
}

func (w *warnings) WithAttrs([]slog.Attr) slog.Handler { return w }
func (w *warnings) WithGroup(string) slog.Handler      { return w }
