package proxy_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// mortal is a server that is killed by each call of a tool.
const mortal = `while read -r line; do
  id=${line#*'"id":'}; id=${id%%[,\}]*}
  case $line in
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}';;
    *'"tools/list"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}}';;
    *'"tools/call"'*) kill -9 $$;;
  esac
done`

// A server is in the snapshot from its start to its end, and not longer: when a client has the
// error, only the state of the upstream shows the server's failure.
func TestEndedServersAreGone(t *testing.T) {
	t.Parallel()
	server := sdkServer()
	t.Cleanup(server.Close)
	socket := filepath.Join(t.TempDir(), "admin.sock")
	p, _ := serveWith(t, config.Config{Upstreams: []config.Upstream{
		{Name: "a", Remote: config.Remote{URL: server.URL}, Era: "legacy"},
		// No other test can get this port, as it can that of a server that was closed.
		{Name: "closed", Remote: config.Remote{URL: "http://127.0.0.1:1"}, Era: "legacy"},
		{Name: "mortal", Process: config.Process{Command: "sh", Args: []string{"-c", mortal}}, Era: "legacy"},
		{Name: "none", Process: config.Process{Command: "/there/is/none"}},
	}}, proxy.Options{AdminSocket: socket})
	servers := func(name string) (n int) {
		for _, u := range p.Snapshot().Upstreams {
			if u.Name == name {
				n++
			}
		}
		return n
	}
	traffic := func(name string) proxy.Traffic {
		all := p.Snapshot().Traffic
		return all[slices.IndexFunc(all, func(t proxy.Traffic) bool { return t.Upstream == name })]
	}

	for range 40 { // short sessions
		client := dialStdio(t, p)
		for i, tool := range []string{"closed__x", "none__x", "a__greet"} {
			client.call(i+1, tool)
			client.hears(`"id":` + string(rune('1'+i)))
		}
		if n := servers("closed") + servers("none"); n > 0 {
			t.Fatalf("%d servers are there that never came up: %+v", n, p.Snapshot().Upstreams)
		}
		client.leave()
	}
	eventually(t, "end of the last session with a", func() bool { return servers("a") == 0 })
	for name, says := range map[string]string{"a": "", "closed": "is unreachable: connection refused", "none": "did not start: command not found"} {
		now := traffic(name)
		if now.Failed.Says != says || (now.Failed.Event != "") != (says != "") || (now.State != "idle") != (says != "") {
			t.Errorf("%s: %+v", name, now)
		}
	}

	client := dialStdio(t, p)
	client.call(1, "a__hang")
	<-server.hanging
	eventually(t, "answers to its first lists", func() bool { return traffic("a").InFlight == 1 })
	if now := traffic("a"); now.State != "running" || now.InFlight != 1 || servers("a") != 1 {
		t.Errorf("in use: %+v", now)
	}
	client.call(2, "mortal__x")
	client.hears(`"id":2`)
	if now := traffic("mortal"); servers("mortal") != 0 || now.State != "failed" || now.Failed.Cause != "signal: killed" || now.InFlight != 0 {
		t.Errorf("killed: %+v", p.Snapshot())
	}
	text := string(operatorGets(t, socket, "/metrics"))
	if !strings.Contains(text, `mcp_proxy_upstream_servers{state="running",upstream="a"} 1`) || strings.Count(text, "mcp_proxy_upstream_servers{") != 1 {
		t.Error("metrics tell of servers that have ended")
	}
	for name, up := range map[string]string{"a": "1", "mortal": "0", "closed": "0", "none": "0"} {
		if !strings.Contains(text, `mcp_proxy_upstream_up{required="false",upstream="`+name+`"} `+up+"\n") {
			t.Errorf("%s is not %s", name, up)
		}
	}
	client.leave()
}
