//go:build unix

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// SIGHUP reloads links: new ones come up, changed ones are dialled again, removed ones end, the
// others stay up, and clients are notified of each change. Invalid links change
// nothing.
func TestReloadLinks(t *testing.T) {
	t.Parallel()
	s := emptySite(t)
	host := func(name string, args ...string) (at string) {
		file := s.write(name+"-host.yaml", fmt.Sprintf("upstreams: {%s: {command: fakeserver, env: {FAKE_LOG: %q}}}\n", name, s.record(name)))
		args = append([]string{"host", "--config", file}, args...)
		if len(args) == 3 {
			at = "unix://" + s.dir + "/" + name
			args = append(args, "--listen", at)
		}
		p := startProgram(t, nil, args...)
		if at != "" {
			p.hear()
		}
		return at
	}
	file := ""
	links := func(list string) {
		file = s.write("links.yaml", "upstreams: {b: {command: fakeserver}}\nlinks:\n"+list)
	}
	stays := "  one: {dial: '" + host("x") + "'}\n"
	links(stays)
	p := startProgram(t, nil, "serve", "--listen", "127.0.0.1:0", "--config", file)
	s.url = p.url()
	c := s.connect()
	reload := func(list string) {
		t.Helper()
		before := c.heardOf("tools/list_changed")
		links(list)
		p.cmd.Process.Signal(syscall.SIGHUP)
		eventually(t, "list_changed", func() bool { return c.heardOf("tools/list_changed") > before })
	}
	works := func(tool string) {
		t.Helper()
		eventually(t, tool, func() bool { return !strings.HasPrefix(c.get(2, tool), "!") })
	}
	gone := func(tool string) {
		t.Helper()
		eventually(t, "the end of "+tool, func() bool { return strings.HasPrefix(c.get(2, tool), "!") })
	}
	c.list()
	c.call(1, "x__slow")
	s.awaitNoted("x", `"slow"`, 1)

	// A link that we dial is added.
	reload(stays + "  two: {dial: '" + host("y") + "'}\n")
	works("y__echo")
	works("b__echo")

	// Invalid links change nothing.
	for i, bad := range []string{"  two: {accept: true, tokenFile: none}\n", "  two: {accept: true}\n", "  two: {dial: 'wss://localhost:1/link', tls: {ca: none}}\n"} {
		links(stays + bad)
		p.cmd.Process.Signal(syscall.SIGHUP)
		eventually(t, "the refusal", func() bool { return p.log.count("configuration not reloaded") == i+1 })
	}
	works("y__echo")

	// The link changes during a call on it.
	c.call(3, "y__hang")
	s.awaitNoted("y", `"hang"`, 1)
	reload(stays + "  two: {dial: '" + host("z") + "'}\n")
	if got := c.await("3"); !strings.Contains(got, jsonrpc.ReasonClosed) || !strings.Contains(got, `"cause":"upstream changed"`) {
		t.Error("the call on the link that changed got", got)
	}
	works("z__echo")
	gone("y__echo")

	// A link that its host dials replaces it.
	s.write("token", "secret")
	links(stays + "  back: {accept: true, tokenFile: token}\n")
	p.cmd.Process.Signal(syscall.SIGHUP)
	gone("z__echo")
	host("w", "--dial", strings.Replace(s.url, "http", "ws", 1)+"/link", "--token-file", s.dir+"/token")
	works("w__echo")

	// The link that stayed was not affected; it is removed last.
	c.get(4, "x__release")
	if got := c.await("1"); got != fakeDone {
		t.Error("the call on the link that stays got", got)
	}
	reload("  back: {accept: true, tokenFile: token}\n")
	gone("x__echo")
	works("w__echo")
	if n := p.log.count(`"msg":"link lost"`); n > 0 {
		t.Errorf("links that are not wanted were lost:\n%s", p.log)
	}
	reload("") // and the names of the only upstream that is left have no prefix
	works("echo")
	for _, name := range []string{"w", "x", "y", "z"} {
		eventually(t, "the end of what ran behind links", func() bool { return s.serversEnded(name) })
	}
}
