//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A transcript collects everything that a client receives, unchanged.
type transcript struct {
	*testing.T
	wire

	mu    sync.Mutex
	heard []string
}

// speaking connects a client with a transcript.
func speaking(t *testing.T, s *site, name string) *transcript {
	t.Helper()
	c := &transcript{T: t}
	w, err := wires[name](s, func(text []byte) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.heard = append(c.heard, string(text))
	})
	if err != nil {
		t.Fatal(err)
	}
	c.wire = w
	t.Cleanup(w.vanish)
	return c
}

// says sends a message and waits for a message that contains part.
func (c *transcript) says(text, part string) {
	c.Helper()
	if err := c.send(text); err != nil {
		c.Fatal(err)
	}
	if part == "" {
		return
	}
	eventually(c.T, part, func() bool {
		return slices.ContainsFunc(c.all(), func(text string) bool { return strings.Contains(text, part) })
	})
}

func (c *transcript) all() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.heard)
}

// oddArguments are arguments that a decoder and encoder would change: a number that is no
// float64, escapes, spaces, duplicate keys.
const oddArguments = `{"n": 12345678901234567890123, "f": 1.50, "text": "\u003cé\ud83d\ude00\/>", "a": {"b": 1,  "b": 2}}`

// legacySession runs a client of the legacy era, and returns everything that it receives.
func legacySession(t *testing.T, s *site, name string) []string {
	t.Helper()
	c := speaking(t, s, name)
	c.says(initialize, `"id":0`)
	c.says(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, "")
	c.says(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `"id":1,"result"`)
	for id, arguments := range []string{oddArguments, `{}`, oddArguments} {
		c.says(fmt.Sprintf(`{"jsonrpc":"2.0","id":"e%d","method":"tools/call","params":{"name":"echo","arguments":%s}}`, id, arguments), fmt.Sprintf(`"id":"e%d"`, id))
	}
	c.says(`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"notify","_meta":{"progressToken":"tok"}}}`, `"id":5,"result"`)
	c.says(`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"ask","arguments":{"about":"name"}}}`, `"elicitation/create"`)
	question := c.all()[len(c.all())-1]
	m, err := jsonrpc.Decode([]byte(question))
	if err != nil {
		t.Fatal(err)
	}
	c.says(`{"jsonrpc":"2.0","id":`+m.ID.String()+`,"result":{"action":"accept","content":{"name":"Ada"}}}`, `"id":6,"result"`)
	return c.all()
}

// modernSession is legacySession in the modern era.
func modernSession(t *testing.T, s *site) []string {
	t.Helper()
	c := speaking(t, s, "modern WebSocket")
	meta := fmt.Sprintf(`"_meta":{%q:"2026-07-28",%q:{},"progressToken":"tok"}`, mcp.KeyVersion, mcp.KeyCapabilities)
	c.says(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{`+meta+`}}`, `"id":0`)
	c.says(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+meta+`}}`, `"id":1,"result"`)
	c.says(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"echo","arguments":`+oddArguments+`,`+meta+`}}`, `"id":2,"result"`)
	c.says(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"notify",`+meta+`}}`, `"id":3,"result"`)
	return c.all()
}

// recorded runs a proxy in front of a server, and returns the result of talk, and the file to which a tap
// has recorded it.
func recorded(t *testing.T, server string, talk func(*site) []string) (heard []string, file string) {
	t.Helper()
	dir := shortDir(t)
	env := []string{"XDG_RUNTIME_DIR=" + dir}
	p, s := servingConfig(t, env, "admin: {payloads: true}\nupstreams: {a: {"+server+"}}\n")
	file = filepath.Join(dir, "tape.ndjson")
	tap := startProgram(t, env, "tap", "--record", file)
	eventually(t, "the tap", func() bool { return tap.log.count("recording to") == 1 })
	heard = talk(s)
	tap.cmd.Process.Signal(syscall.SIGINT)
	if err := tap.cmd.Wait(); err != nil {
		t.Fatalf("tap: %v\n%s", err, tap.log)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("serve: %v\n%s", err, p.log)
	}
	return heard, file
}

// servingConfig is serving with a configuration.
func servingConfig(t *testing.T, env []string, text string) (*program, *site) {
	t.Helper()
	dir := shortDir(t)
	file := filepath.Join(dir, "c.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, env, "serve", "--listen", "127.0.0.1:0", "--config", file)
	return p, &site{t: t, dir: dir, url: p.url()}
}

// A recording answers as the server did, byte for byte, to a client that repeats the session over
// any transport.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			talk := func(s *site) []string { return legacySession(t, s, "WebSocket") }
			if era == "modern" {
				talk = func(s *site) []string { return modernSession(t, s) }
			}
			first, file := recorded(t, `command: fakeserver, inheritEnv: [all], env: {FAKE_ERA: `+era+`}`, talk)
			_, s := servingConfig(t, []string{"XDG_RUNTIME_DIR=" + shortDir(t)}, "upstreams: {a: {command: mcp-proxy, args: [replay, "+file+"]}}\n")
			for range 2 { // each session replays from the beginning
				sameTranscript(t, talk(s), first)
			}
			if era == "legacy" {
				for _, name := range []string{"HTTP", "SSE"} {
					sameTranscript(t, legacySession(t, s, name), first)
				}
			}
		})
	}
}

// Clients of the era that was not recorded are translated, as with the server itself.
func TestReplayAcrossEras(t *testing.T) {
	t.Parallel()
	legacy := `command: fakeserver, inheritEnv: [all], env: {FAKE_ERA: legacy}`
	_, file := recorded(t, legacy, func(s *site) []string { return legacySession(t, s, "WebSocket") })
	_, real := servingConfig(t, []string{"XDG_RUNTIME_DIR=" + shortDir(t)}, "upstreams: {a: {"+legacy+"}}\n")
	_, played := servingConfig(t, []string{"XDG_RUNTIME_DIR=" + shortDir(t)}, "upstreams: {a: {command: mcp-proxy, args: [replay, "+file+"]}}\n")
	sameTranscript(t, modernSession(t, played), modernSession(t, real))
}

func sameTranscript(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("heard\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An invalid recording is a server that does not start, and says why.
func TestReplayOfNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tape.ndjson")
	if err := os.WriteFile(file, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, code := command(t, nil, "replay", file); code != 1 || !strings.Contains(text, file+" is not a recording of tap --record") {
		t.Errorf("replay: %d %s", code, text)
	}
	p, s := servingConfig(t, []string{"XDG_RUNTIME_DIR=" + shortDir(t)}, "upstreams: {a: {command: mcp-proxy, args: [replay, "+file+"]}}\n")
	c := s.join("WebSocket")
	c.say(strings.Replace(initialize, `"id":0`, `"id":"init"`, 1))
	got := c.await("init")
	if !strings.Contains(got, "a did not start: exit status 1") || strings.Contains(got, file) {
		t.Errorf("the client hears %s", got)
	}
	eventually(t, "a line in the log", func() bool { return p.log.count("is not a recording of tap --record") > 0 })
}
