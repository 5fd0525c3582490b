package main

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// A hostileCase runs a command on a terminal, with hostile servers, clients and processes.
type hostileCase struct {
	args []string
	keys string               // typed at the start
	at   func(address string) // a client that connects once the command serves; nil for none
	till string               // a pattern to wait for before ^C is typed; "": the command ends by itself
	mute bool                 // no hostile text is shown at all
}

// obeyed matches what terminals obey, independently of output.go.
var obeyed = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x{7f}-\x{9f}\x{061c}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}]`)

// drawnByUs matches our own escape sequences: colours, top's screen, and the return to the start of a line after
// ^C.
var drawnByUs = regexp.MustCompile(`\x1b\[(0|1|2|31|32|33)m|\x1b\[\?1049[hl]|\x1b\[\?25[hl]|\x1b\[[HKJ]|\^C\r`)

// No command lets a terminal obey the text of servers, clients, files or other processes.
func TestTerminalObeysNobody(t *testing.T) {
	t.Parallel()
	cases := hostileCases(t)
	root := newRoot()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			walk(sub)
		}
		path := strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "mcp-proxy"), " ")
		if c.HasSubCommands() && path != "" {
			return
		}
		if len(cases[path]) == 0 {
			t.Errorf("there is no case for %q", path)
		}
		for _, h := range cases[path] {
			h.args = slices.Concat(strings.Fields(path), h.args)
			t.Run(strings.Join(h.args[:min(3, len(h.args))], " "), func(t *testing.T) { h.run(t) })
		}
	}
	walk(root)
}

func (h *hostileCase) run(t *testing.T) {
	var drawn *screen
	t.Cleanup(func() { // after the screen of onTerminal has everything
		if !h.mute && !drawn.has("hostile") {
			t.Errorf("it shows nothing of others: %q", drawn.plain())
		}
		text := strings.ReplaceAll(drawnByUs.ReplaceAllString(drawn.text.String(), ""), "\r\n", "\n")
		if found := obeyed.FindString(text); found != "" {
			t.Errorf("a terminal obeys %+q in %+q", found, text)
		}
		if !utf8.ValidString(text) {
			t.Errorf("no UTF-8: %q", text)
		}
	})
	near, d, cmd := onTerminal(t, 200, []string{"XDG_RUNTIME_DIR=" + shortDir(t), "TERM=xterm", "NO_COLOR="}, h.args...)
	drawn = d
	io.WriteString(near, h.keys)
	if h.at != nil {
		h.at(drawn.awaitLine(t, `http://[0-9.:]+/mcp`))
	}
	if h.till != "" {
		drawn.awaitLine(t, h.till)
		io.WriteString(near, "\x03")
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended: // any exit code will do
	case <-time.After(20 * time.Second):
		t.Errorf("it does not end: %q", drawn.plain())
	}
}

// hostileCases returns the cases of each command, by its name.
func hostileCases(t *testing.T) map[string][]hostileCase {
	s := emptySite(t)
	server := []string{"--", "hostile"}
	at := func(args ...string) hostileCase { return hostileCase{args: args} }
	file := func(name, text string) string { return s.write(name, text) }
	good := file("good.yaml", "listen: ['127.0.0.1:0']\nupstreams:\n  good: {command: hostile}\n  bad: {command: sh, args: [-c, 'hostile </dev/null; exit 3']}\n")
	wrong := file("wrong.json", `{"upstreams": {"a`+hostileJSON+`": {"command": "x`+hostileJSON+`", "`+hostileJSON+`": 1}}, "mcpServers": {"`+hostileJSON+`": {}}}`)
	binary := file("binary.yaml", "a: \x9b35m\xff"+hostile)
	process, issuer := hostileProcess(t), hostileIssuer(t)
	admin := []string{"--admin", process}
	messages := initialize + "\n" + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok"}}` + "\n" +
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"err"}}` + "\n\x04"
	quiet := hostileCase{mute: true}
	line := startProgram(t, nil, "serve", "--port", "0", "--", "hostile").hear()
	far := regexp.MustCompile(`http://\S+/mcp`).FindString(line)
	calls := func(address string) { hostileClient(t, address) }
	ready, ends := `good +ready(.|\n)*bad +failed|bad +failed(.|\n)*good +ready`, `hostile(.|\n)*ended unexpectedly|hostile(.|\n)*failed to start`

	return map[string][]hostileCase{
		"": {{args: []string{"--" + hostile}, mute: true}, {args: []string{hostile}}},
		"serve": {
			{args: []string{"--config", good}, at: calls, till: ready}, {args: []string{"--config", good, "--log-format", "json"}, at: calls, till: ends},
			{args: []string{"--config", good, "--log-level", "debug"}, at: calls, till: ready},
		},
		"stdio":                 {{args: server, keys: messages}, {args: slices.Concat([]string{"--log-format", "json"}, server), keys: messages}},
		"replay":                {{args: []string{binary}, mute: true}, {args: []string{hostile}}},
		"connect":               {{args: []string{far}, keys: messages}},
		"host":                  {{args: []string{"--listen", "unix://" + s.dir + "/h", "--config", good}, till: ready}},
		"check":                 {at(wrong), {args: []string{binary}, mute: true}, at("--json", wrong)},
		"doctor":                {at(server...), at("--config", good), {args: slices.Concat([]string{"--json"}, server)}, {args: []string{issuer}, mute: true}},
		"tools":                 {at(append([]string{"--all"}, server...)...), at(append([]string{"--json", "--all"}, server...)...), at(append([]string{"--log-level", "debug"}, server...)...)},
		"call":                  {at(append([]string{"ok"}, server...)...), at(append([]string{"no"}, server...)...), at(append([]string{"err"}, server...)...), at(append([]string{"ok", "--json"}, server...)...), at(append([]string{"x" + hostile}, server...)...)},
		"explain":               {at(append(admin, "k3v9x2ma")...), at(append(admin, "name")...), at(append(admin, "name", "--json")...), at(append(admin, "--as", hostile, "x")...)},
		"schema":                {quiet},
		"status":                {at(append(admin, "--servers")...), at(append(admin, "--json")...), at("--admin", issuer)},
		"top":                   {{args: admin, till: "hostile"}, {args: append(admin, "--json"), till: "hostile"}},
		"calls":                 {at(admin...), at(append(admin, "--json")...)},
		"tap":                   {at(append(admin, "--payloads")...), at(append(admin, "--json")...)},
		"healthcheck":           {at(admin...), at(append(admin, "--json")...)},
		"login":                 {{args: []string{issuer, "--no-browser"}, mute: true}, at(issuer, "--device", "--client-id", "x")},
		"logout":                {{args: []string{issuer + "?" + hostile}, mute: true}},
		"version":               {quiet, {args: []string{"--json"}, mute: true}},
		"help":                  {quiet, {args: []string{hostile}, mute: true}},
		"completion bash":       {quiet},
		"completion zsh":        {quiet},
		"completion fish":       {quiet},
		"completion powershell": {quiet},
	}
}

// hostileClient connects a client with a hostile name, whose calls fail.
func hostileClient(t *testing.T, address string) {
	session := ""
	for _, message := range []string{
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"` + hostileJSON + `","version":"1"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"good__err"}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bad__` + hostileJSON + `"}}`,
	} {
		r, err := http.NewRequest(http.MethodPost, address, strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Session-Id": {session}}
		if session == "" {
			r.Header.Del("Mcp-Session-Id")
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
			session = id
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
