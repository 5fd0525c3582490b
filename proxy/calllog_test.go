package proxy_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// If configured, the log has a line for each request: its client, its target and its end. Many at
// once are sampled, and the log counts those left out.
func TestCallsInTheLog(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	for _, on := range []bool{true, false} {
		log := new(journal)
		p, err := proxy.New(&config.Config{Logs: config.Logs{Calls: on}, Upstreams: []config.Upstream{
			{Name: "a", Remote: config.Remote{URL: server.URL}}, {Name: "b", Remote: config.Remote{URL: server.URL}},
		}}, proxy.Options{Log: logTo(log)})
		if err != nil {
			t.Fatal(err)
		}
		client := dialStdio(t, p)
		client.call(1, "a__greet")
		client.hears(`"id":1`)
		const calls = 1000
		for i := range calls {
			client.say(`{"jsonrpc":"2.0","id":` + strconv.Itoa(i+2) + `,"method":"made/up"}`)
			client.hears(`"error"`)
		}
		client.leave()
		p.Close()
		text := log.String()
		want := regexp.MustCompile(`(?m)level=INFO msg=call session=\w{8} client=old principal=operator method=tools/call upstream=a tool=greet dur=\S+ outcome=ok$`)
		if want.MatchString(text) != on {
			t.Errorf("calls: %v, and the log\n%.2000s", on, text)
		}
		lines, leftOut := strings.Count(text, "msg=call "), 0
		for _, found := range regexp.MustCompile(`left_out=(\d+)`).FindAllStringSubmatch(text, -1) {
			n, _ := strconv.Atoi(found[1])
			leftOut += n
		}
		if !on && lines > 0 || on && (lines+leftOut != calls+2 || leftOut == 0) { // and initialize
			t.Errorf("calls: %v, %d lines, %d left out", on, lines, leftOut)
		}
	}
}

// The log line of a lost request has the event of the client's error.
func TestLostCallInTheLog(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	log := new(journal)
	p, err := proxy.New(&config.Config{Logs: config.Logs{Calls: true}, Upstreams: []config.Upstream{
		{Name: "a", Remote: config.Remote{URL: server.URL}}, {Name: "b", Process: config.Process{Command: "no-such-command"}},
	}}, proxy.Options{Log: logTo(log)})
	if err != nil {
		t.Fatal(err)
	}
	client := dialStdio(t, p)
	client.call(1, "b__any")
	client.hears(`"id":1`)
	told := regexp.MustCompile(`"event":"(\w+)"`).FindStringSubmatch(client.lines.Text())
	client.leave()
	p.Close()
	if told == nil {
		t.Fatalf("no event in %s", client.lines.Text())
	}
	want := `method=tools/call upstream=b tool=any dur=\S+ outcome=closed cause=start_failed event=` + told[1] + "\n"
	if text := log.String(); !regexp.MustCompile(want).MatchString(text) {
		t.Errorf("no %s in\n%s", want, text)
	}
}
