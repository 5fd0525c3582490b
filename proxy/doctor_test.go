package proxy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
)

// tools is a trial of an upstream that went well and lists these tools.
func tools(upstream string, names ...string) Trial {
	t := Trial{Upstream: upstream, Transport: "stdio", Version: "2025-11-25", Lists: make(map[string][]json.RawMessage)}
	for _, n := range names {
		t.Lists["tools"] = append(t.Lists["tools"], json.RawMessage(fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, n)))
	}
	t.Tools.Count = len(names)
	return t
}

// Each thing that is wrong or suspicious is found, with its level and what to do; nothing is
// found where nothing is wrong.
func TestJudge(t *testing.T) {
	long := strings.Repeat("n", 60)
	with := func(change func(*Trial)) Trial {
		tr := tools("a", "t")
		change(&tr)
		return tr
	}
	upstream := func(u config.Upstream) *config.Config {
		u.Name = "a"
		return &config.Config{Upstreams: []config.Upstream{u}}
	}
	var many []string
	for i := range 129 {
		many = append(many, fmt.Sprint("t", i))
	}
	big := tools("a", "t")
	big.Lists["tools"] = []json.RawMessage{json.RawMessage(fmt.Sprintf(`{"name":"t","inputSchema":{"type":"object"},"description":%q}`, strings.Repeat("x", 200<<10)))}
	for name, row := range map[string]struct {
		cfg    *config.Config
		trials []Trial
		want   string // level code, of each
	}{
		"nothing":           {nil, []Trial{tools("a", "t")}, ``},
		"failed":            {nil, []Trial{with(func(t *Trial) { t.Failed = "did not start: exit status 1" })}, `error failed`},
		"no such command":   {upstream(config.Upstream{Process: config.Process{Command: "/there/is/none"}}), []Trial{with(func(t *Trial) { t.Failed = "did not start: command not found" })}, `error configuration`},
		"link":              {nil, []Trial{{Link: "far", Failed: "is gone"}}, `error link`},
		"host that dials":   {&config.Config{Links: []config.Link{{Name: "far", Accept: true}}}, nil, `note link`},
		"start":             {nil, []Trial{with(func(t *Trial) { t.StartMs = 4000 })}, `note slow-start`},
		"slow start":        {nil, []Trial{with(func(t *Trial) { t.StartMs = 9000 })}, `warning slow-start`},
		"slow, for all":     {upstream(config.Upstream{Shared: true}), []Trial{with(func(t *Trial) { t.StartMs = 9000 })}, ``},
		"lists":             {nil, []Trial{with(func(t *Trial) { t.ListMs = 4000 })}, `warning slow-list`},
		"slow lists":        {&config.Config{ListTimeout: 10 * time.Second}, []Trial{with(func(t *Trial) { t.ListMs = 10001 })}, `error slow-list`},
		"stop":              {nil, []Trial{with(func(t *Trial) { t.StopGrace, t.StopMs = time.Second, 900 })}, ``},
		"slow stop":         {nil, []Trial{with(func(t *Trial) { t.StopGrace, t.StopMs = time.Second, 1100 })}, `warning slow-stop`},
		"stdout":            {nil, []Trial{with(func(t *Trial) { t.Unusable = 1 })}, `warning stdout`},
		"old transport":     {nil, []Trial{with(func(t *Trial) { t.Transport = "http+sse" })}, `warning old-transport`},
		"old version":       {nil, []Trial{with(func(t *Trial) { t.Version = "2024-11-05" })}, `note old-version`},
		"offers nothing":    {nil, []Trial{tools("a")}, `warning empty`},
		"one twice":         {nil, []Trial{tools("a", "t", "t")}, `error twice`},
		"no name":           {nil, []Trial{tools("a", "")}, `error bad-tool`},
		"no schema":         {nil, []Trial{with(func(t *Trial) { t.Lists["tools"][0] = json.RawMessage(`{"name":"t"}`) })}, `error bad-tool`},
		"no tool":           {nil, []Trial{with(func(t *Trial) { t.Lists["tools"][0] = json.RawMessage(`7`) })}, `error bad-tool`},
		"prefixed apart":    {nil, []Trial{tools("a", "t"), tools("b", "t")}, ``},
		"collision":         {&config.Config{Prefix: "never"}, []Trial{tools("a", "t"), tools("b", "t")}, `error collision`},
		"case":              {nil, []Trial{tools("a", "t", "T")}, `note collision`},
		"long with prefix":  {nil, []Trial{tools("a", "t"), tools("bbbbb", long)}, `note long-name`},
		"hidden":            {upstream(config.Upstream{Tools: config.Tools{Deny: []string{"n*"}}}), []Trial{tools("a", "t", long+long)}, ``},
		"long":              {nil, []Trial{tools("a", long+"long.")}, `warning bad-name`},
		"longer":            {nil, []Trial{tools("a", long+"longs")}, `warning long-name`},
		"longest":           {nil, []Trial{tools("a", long+long+"more than")}, `error long-name`},
		"dots":              {nil, []Trial{tools("a", "a.b")}, `warning bad-name`},
		"spaces":            {nil, []Trial{tools("a", "a b")}, `error bad-name`},
		"many":              {nil, []Trial{tools("a", many...)}, `warning many-tools`},
		"big":               {nil, []Trial{big}, `warning big-tools`},
		"npx":               {upstream(config.Upstream{Process: config.Process{Command: "/there/is/npx", Args: []string{"server"}}}), nil, `error configuration, warning npx`},
		"npx -y":            {upstream(config.Upstream{Process: config.Process{Command: "/there/is/npx", Args: []string{"-y", "server"}}}), nil, `error configuration`},
		"docker":            {upstream(config.Upstream{Process: config.Process{Command: "/there/is/docker", Args: []string{"run", "x"}}}), nil, `error configuration, error docker`},
		"docker -it":        {upstream(config.Upstream{Process: config.Process{Command: "/there/is/docker", Args: []string{"run", "-it", "x"}}}), nil, `error configuration, error docker`},
		"docker -i":         {upstream(config.Upstream{Process: config.Process{Command: "/there/is/docker", Args: []string{"run", "-i", "x"}}}), nil, `error configuration`},
		"open":              {&config.Config{Frontend: config.Frontend{Listen: []string{"0.0.0.0:80", "127.0.0.1:80", "[::1]:80", "unix:///s"}}}, nil, `warning no-token`},
		"any host":          {&config.Config{Frontend: config.Frontend{AllowedHosts: []string{"*"}}}, nil, `warning any-host`},
		"plain":             {upstream(config.Upstream{Remote: config.Remote{URL: "http://example.com/mcp"}}), nil, `warning plain`},
		"plain, here":       {upstream(config.Upstream{Remote: config.Remote{URL: "http://127.0.0.1/mcp"}}), nil, ``},
		"TLS":               {upstream(config.Upstream{Remote: config.Remote{URL: "https://example.com/mcp"}}), nil, ``},
		"kept":              {nil, []Trial{with(func(t *Trial) { t.Kept = t.Lists })}, ``},
		"kept, not known":   {nil, []Trial{with(func(t *Trial) { t.Kept = map[string][]json.RawMessage{"prompts": nil} })}, ``},
		"kept, others":      {nil, []Trial{with(func(t *Trial) { t.Kept = map[string][]json.RawMessage{"tools": nil} })}, `note kept-lists`},
		"kept, failed":      {nil, []Trial{with(func(t *Trial) { t.Kept, t.Failed = map[string][]json.RawMessage{"tools": nil}, "x" })}, `error failed`},
		"errors come first": {nil, []Trial{tools("a"), with(func(t *Trial) { t.Failed = "x" })}, `error failed, warning empty`},
	} {
		if row.cfg == nil {
			row.cfg = &config.Config{}
		}
		d := ops.Judge(row.cfg, row.trials, Check(row.cfg))
		var got []string
		for _, f := range d.Findings {
			got = append(got, f.Level+" "+f.Code)
			if f.What == "" || f.Do == "" || strings.HasSuffix(f.Do, ".") {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if strings.Join(got, ", ") != row.want {
			t.Errorf("%s: got %q, want %q", name, got, row.want)
		}
		if d.Ill() != strings.Contains(row.want, "error") {
			t.Errorf("%s: ill is %v", name, d.Ill())
		}
	}
}

// A replica that runs knows what a configuration does not tell.
func TestJudgeReplicas(t *testing.T) {
	d := ops.Judge(&config.Config{}, []Trial{tools("a")}, nil)
	d.Running(&Snapshot{Replicas: []observe.Replica{{Self: true}, {Instance: "SAME"}, {Instance: "OTHER", Differs: true}, {Instance: "FAR", Unreachable: true}}})
	d.Running(&Snapshot{Process: observe.Process{PID: 7}, Replicas: []observe.Replica{{Self: true}}})
	var got []string
	for _, f := range d.Findings {
		got = append(got, f.Level+" "+f.Code)
		if strings.Contains(f.What, "SAME") || f.Do == "" {
			t.Errorf("%+v", f)
		}
	}
	if want := "error replica-unreachable, warning empty, warning replica-differs, warning replica-alone"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %s", got, want)
	}
}

// What differs from lists that were kept is one finding, which names the elements of each list.
func TestJudgeKept(t *testing.T) {
	now := tools("a", "same", "new 1", "new 2", "new 3", "new 4", "new 5", "new 6")
	now.Lists["resourceTemplates"] = []json.RawMessage{json.RawMessage(`{"uriTemplate":"t:{x}","name":"2"}`)}
	now.Kept = map[string][]json.RawMessage{
		"tools": tools("a", "same", "old").Lists["tools"], "prompts": {json.RawMessage(`{"name":"p"}`)}, "resources": {},
		"resourceTemplates": {json.RawMessage(`{"uriTemplate":"t:{x}","name":"1"}`), json.RawMessage(`7`)},
	}
	now.KeptSince = time.Date(2026, 11, 22, 15, 4, 5, 0, time.UTC)
	d := ops.Judge(&config.Config{}, []Trial{now}, nil)
	want := `its lists differ from those that were kept on 2026-11-22 15:04: new tools "new 1", "new 2", "new 3", "new 4", "new 5" and 1 more; gone tools "old"; gone prompts "p"; changed resourceTemplates "t:{x}"`
	for _, f := range d.Findings {
		if f.Code == "kept-lists" {
			if f.What != want {
				t.Errorf("%s", f.What)
			}
			return
		}
	}
	t.Errorf("%+v", d.Findings)
}

// Two upstreams with the same resources are one finding.
func TestJudgeSameURI(t *testing.T) {
	trial := func(name string) Trial {
		tr := tools(name, name)
		tr.Lists["resources"] = []json.RawMessage{json.RawMessage(`{"uri":"a:1"}`), json.RawMessage(`{"uri":"a:2"}`)}
		return tr
	}
	d := ops.Judge(&config.Config{}, []Trial{trial("one"), trial("two")}, nil)
	if len(d.Findings) != 1 || !strings.Contains(d.Findings[0].What, "one and two list 2 resources") {
		t.Errorf("%+v", d.Findings)
	}
}

// What is tried has the names that clients see, and nothing of what only a server needs.
func TestQuiet(t *testing.T) {
	cfg := &config.Config{
		Prefix: "auto", Frontend: config.Frontend{Listen: []string{"127.0.0.1:1"}}, Admin: config.Admin{Listen: []string{"127.0.0.1:2"}}, Logs: config.Logs{Calls: true},
		Upstreams: []config.Upstream{{Name: "a", Required: true, Process: config.Process{Spare: 1}}, {Name: "b"}},
		Links:     []config.Link{{Name: "far", Accept: true}, {Name: "near", Dial: "tcp://127.0.0.1:1"}},
	}
	q := Quiet(cfg)
	if q.Listen != nil || q.Admin.Listen != nil || q.Logs.Calls || q.Upstreams[0].Required || q.Upstreams[0].Spare != 0 || q.Prefix != "always" || len(q.Links) != 1 {
		t.Errorf("%+v", q)
	}
	if !cfg.Upstreams[0].Required || len(cfg.Links) != 2 || cfg.Prefix != "auto" {
		t.Errorf("it has changed the other: %+v", cfg)
	}
	for tool, want := range map[string][]string{"a__t": {"a"}, "b__t": {"b"}, "t": {"a", "b"}, "c__t": {"a", "b"}} {
		var names []string
		for _, u := range Narrow(cfg, tool).Upstreams {
			names = append(names, u.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: %v", tool, names)
		}
	}
}

// What to do follows from what has happened, whatever words there are for it: of commands that
// were tried, and of all that a trial can say.
func TestRemedy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("no program\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	missing := httptest.NewServer(http.NotFoundHandler())
	defer missing.Close()
	cfg := &config.Config{}
	var want []string
	for i, row := range []struct {
		upstream config.Upstream
		want     string
	}{
		{config.Upstream{Process: config.Process{Command: "/there/is/none"}}, "fix command"},
		{config.Upstream{Process: config.Process{Command: text}}, "the interpreter"},
		{config.Upstream{Process: config.Process{Command: "sh", Cwd: "/there/is/none"}}, "fix cwd"},
		{config.Upstream{Process: config.Process{Command: "sh", Args: []string{"-c", "echo command not found, no such working directory >&2; exit 3"}}}, "run its command by hand: it may lack"},
		{config.Upstream{Process: config.Process{Command: "sh", Args: []string{"-c", "sleep 60"}}, StartTimeout: 50 * time.Millisecond}, "raise startTimeout"},
		{config.Upstream{Remote: config.Remote{URL: "http://127.0.0.1:1/mcp"}}, "host and port"},
		{config.Upstream{Remote: config.Remote{URL: missing.URL + "/mcp"}}, "most end in /mcp"},
	} {
		row.upstream.Name = fmt.Sprint("u", i)
		row.upstream.StartTimeout = cmp.Or(row.upstream.StartTimeout, 20*time.Second)
		cfg.Upstreams, want = append(cfg.Upstreams, row.upstream), append(want, row.want)
	}
	found, err := Diagnose(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for i, tr := range found.Upstreams {
		if tr.OK() || !strings.Contains(tr.Advice(), want[i]) {
			t.Errorf("%s (%s): %s, want %s", tr.Failed, tr.Cause, tr.Advice(), want[i])
		}
	}
	for _, row := range []struct {
		trial Trial
		want  string
	}{
		{Trial{Cause: jsonrpc.CauseLogin, Transport: "http"}, "run the command that it names"},
		{Trial{Cause: jsonrpc.HTTPCause(401), Transport: "http"}, "credentials"},
		{Trial{Cause: jsonrpc.HTTPCause(403), Transport: "websocket"}, "credentials"},
		{Trial{Cause: jsonrpc.CauseTLS, Transport: "http"}, "scheme of its url (http or https), and set tls.ca"},
		{Trial{Cause: jsonrpc.CauseBadHeaderFile, Transport: "http"}, "headersFrom"},
		{Trial{Cause: jsonrpc.CauseNoToken, Transport: "http"}, "auth"},
		{Trial{Cause: jsonrpc.CauseNoSuchHost, Transport: "http"}, "host and port"},
		{Trial{Cause: jsonrpc.CauseConnectionReset, Transport: "http"}, "host and port"},
		{Trial{Cause: jsonrpc.CauseStdoutClosed, Transport: "stdio"}, "by hand"},
		{Trial{Cause: jsonrpc.CauseTimeout, Transport: "link"}, "startTimeout"},
		{Trial{Cause: jsonrpc.CauseStartFailed, Transport: "link", Link: "far"}, "on its host"},
		{Trial{Cause: jsonrpc.HTTPCause(502), Transport: "http"}, "--log-level debug"},
	} {
		if got := row.trial.Advice(); !strings.Contains(got, row.want) {
			t.Errorf("%+v: %s", row.trial, got)
		}
	}
}

// Of a server that speaks only later versions, one reads which these are.
func TestServerOfLaterVersions(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		failed := `{"code":-32601,"message":"Method not found"}`
		if m.Method == "server/discover" {
			failed = `{"code":-32022,"message":"Unsupported protocol version","data":{"supported":["2031-01-01"],"requested":"2026-07-28"}}`
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, failed)
	}))
	defer server.Close()
	cfg := &config.Config{Upstreams: []config.Upstream{{Name: "docs", Remote: config.Remote{URL: server.URL}, StartTimeout: 20 * time.Second}}}
	found, err := Diagnose(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	tr := found.Upstreams[0]
	if want := "speaks only 2031-01-01, and this proxy speaks 2024-11-05 to 2026-07-28"; tr.Failed != want || !strings.Contains(tr.Advice(), "a newer mcp-proxy") {
		t.Errorf("%q, %q", tr.Failed, tr.Advice())
	}
	p := newProxy(t, *cfg)
	defer p.Close()
	if _, err := p.Client(t.Context(), "docs"); err == nil || !strings.Contains(err.Error(), "docs speaks only 2031-01-01, and") {
		t.Errorf("a client gets %v", err)
	}
}
